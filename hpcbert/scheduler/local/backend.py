"""The local queue as a scheduler: one process per submission, on this machine."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hpcbert.campaign.repeats import Key, TrackedCampaign
from hpcbert.config.site import Site
from hpcbert.errors import SchedulerError
from hpcbert.finding import Finding
from hpcbert.model import Array, Campaign
from hpcbert.scheduler.base import PlainScheduler, Target
from hpcbert.scheduler.local import queue
from hpcbert.script import limits
from hpcbert.slurm.states import RepeatState
from hpcbert.system import packages


class Local(PlainScheduler):
    """Runs campaigns on this machine, one repeat after another."""

    one_job = True

    def start(self, directory: Path, campaign: Campaign) -> str:
        """Start a queue; it needs a time limit, and uses the longest if there is none."""
        limit = limits.requested_limit(campaign.arrays[0]).bound
        return queue.start_queue(
            directory, campaign, time_limit_minutes=limit / 60, environ=self.world.environ
        )

    def find(self, directory: Path, arrays: Sequence[Array]) -> str:
        """Return the queue that runs for this campaign."""
        return queue.find_queue(directory)

    def states(self, watched: TrackedCampaign) -> Mapping[Key, RepeatState]:
        """Read the status files, and check whether the queue is alive."""
        return queue.read_states(watched, now=self.world.now())

    def living(self, campaigns: Sequence[TrackedCampaign]) -> Sequence[TrackedCampaign]:
        """Return the campaigns that may still run something, even on another machine."""
        return [campaign for campaign in campaigns if queue.is_unfinished(campaign)]

    def living_jobs(self, watched: TrackedCampaign) -> Target:
        """Leave a process alone that a manifest names but that is not this campaign's queue."""
        target = super().living_jobs(watched)
        other_programs = {
            job: program
            for job in target.jobs
            if (program := queue.describe_other_process(watched.directory, job))
        }
        return Target(
            tuple(job for job in target.jobs if job not in other_programs),
            tuple(repeat for repeat in target.repeats if repeat.array.job_id not in other_programs),
            left=tuple(
                f"Not cancelled: {job} runs {program}." for job, program in other_programs.items()
            ),
        )

    def cancel(self, watched: TrackedCampaign, target: Target) -> None:
        """Make the queue end the running repeats and start no more."""
        if not queue.cancel_queue(watched.directory, watched.campaign):
            raise SchedulerError(
                "The local queue has ended already, so there is nothing to cancel."
            )

    def examine(self, site: Site, *, nodes: int) -> Iterable[Finding]:
        """Return whether the pytorch recipe can train here."""
        if importlib.util.find_spec("torch"):
            return [Finding("PyTorch", "ok", "the pytorch recipe can train on this machine")]
        detail = "not installed in hpcbert's environment; the pytorch recipe can't train here"
        install = packages.describe_torch_install()
        hint = f"Name another interpreter in the site.toml, or install it. {install}"
        return [Finding("PyTorch", "warn", detail, hint)]
