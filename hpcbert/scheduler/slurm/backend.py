"""Slurm as a scheduler: what its commands are asked, and for what."""

from __future__ import annotations

import random
import shlex
import shutil
from typing import TYPE_CHECKING

from hpcbert.config.slurmwords import given
from hpcbert.scheduler.base import Check, Scheduler
from hpcbert.scheduler.pace import FLOOR
from hpcbert.scheduler.slurm import (
    adopt,
    calls,
    cancel,
    capacity,
    control,
    doctor,
    living,
    submission,
)
from hpcbert.script import directives
from hpcbert.slurm import commands, nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from hpcbert.campaign.repeats import Key, TrackedCampaign
    from hpcbert.config.site import Site
    from hpcbert.finding import Finding
    from hpcbert.model import Array, Campaign
    from hpcbert.scheduler.base import Target
    from hpcbert.scheduler.slurm.poller import SlurmPoller
    from hpcbert.slurm.states import RepeatState

# Where there is no configuration, there is no cluster to ask.
_NO_CLUSTER = ("Could not establish a configuration source",)


class Slurm(Scheduler):
    """Runs campaigns by sbatch, squeue, sacct, scontrol, sinfo and scancel."""

    def submit(self, directory: Path, campaign: Campaign) -> Campaign:
        """Call sbatch for every array that is not submitted yet and has no job."""
        return submission.hand_over(directory, campaign, self.world)

    def adopted(self, watched: TrackedCampaign, *, strict: bool = False) -> TrackedCampaign:
        """Look for the jobs of unanswered calls of sbatch."""
        return adopt.adopted(watched, self.world, strict=strict)

    def states(self, watched: TrackedCampaign) -> Mapping[Key, RepeatState]:
        """Poll once, after a look for jobs that are not in the manifest."""
        poller = self.poller([self.adopted(watched)], floor=FLOOR, chance=random.random)
        poller.poll()
        return poller.states

    def poller(
        self, watched: Sequence[TrackedCampaign], *, floor: float, chance: Callable[[], float]
    ) -> SlurmPoller:
        """Return what asks sacct, then squeue."""
        from hpcbert.scheduler.slurm.poller import SlurmPoller  # with submitit

        return SlurmPoller(watched, self.world, floor=floor, chance=chance)

    def living(self, campaigns: Sequence[TrackedCampaign]) -> Sequence[TrackedCampaign]:
        """Ask squeue once, about all of them."""
        return living.living(campaigns, self.world)

    def refuse_doubling(
        self, watched: TrackedCampaign, missing: Sequence[tuple[Array, int]]
    ) -> None:
        """Ask squeue for jobs of the submitter and for the campaign's ids."""
        living.refuse(watched, missing, self.world)

    def living_jobs(self, watched: TrackedCampaign) -> Target:
        """Ask squeue for the campaign's jobs."""
        return cancel.find(watched, self.world)

    def cancel(self, watched: TrackedCampaign, target: Target) -> None:
        """Call scancel for jobs, once a cluster."""
        cancel.cancel(watched, target, self.world)

    def most_repeats(self, site: Site) -> int | None:
        """Return the cluster's MaxArraySize less one."""
        cluster = given(site.slurm.sbatch_args, "clusters").partition(",")[0]
        return control.most_indices(self.world.run, cluster=cluster)

    def nodes(self, script: str) -> Mapping[str, bool] | None:
        """Ask sinfo for the nodes of a script's partition; none where it does not say."""
        environment = commands.environment(self.world.environ)
        outcome = self.world.run(nodes.sinfo_argv(), env=environment)
        rows = nodes.read_sinfo(outcome.stdout if outcome.ok else "")
        return nodes.of_partition(rows, directives.option(script, "partition"))

    def describe(self, directory: Path, array: Array) -> str:
        """Return the sbatch command line."""
        return shlex.join(calls.sbatch_argv(directory, array))

    def checks(self, scripts: Mapping[str, str]) -> tuple[Check, ...]:
        """Check syntax, and have sbatch itself try the scripts where it is."""
        there = shutil.which("sbatch") is not None
        found = []
        for path, text in scripts.items():
            found.append(self.check_syntax(path, text))
            found += [self._tested(path, text)] if there else []
        if not there:
            missing = "There is no sbatch on this machine."
            found.append(Check("sbatch --test-only", None, missing))
        return tuple(found)

    def _tested(self, path: str, text: str) -> Check:
        environment = commands.submission_environment(self.world.environ)
        test = self.world.run(["sbatch", "--test-only"], stdin=text, env=environment)
        away = any(phrase in test.stderr for phrase in (*calls.TRANSIENT, *_NO_CLUSTER))
        ok = None if away else test.ok
        return Check(f"sbatch --test-only {path}", ok, adopt.complaint(test))

    def obstacles(self, directory: Path, scripts: Sequence[str]) -> Iterable[Finding]:
        """Compare what scripts ask for with the partitions; other clusters' are not known."""
        if any(directives.option(text, "clusters") for text in scripts):
            return ()
        jobs = [capacity.wanted(text) for text in scripts]
        return capacity.of_cluster(jobs, directory, capacity.ask(self.world.run))

    def examine(self, site: Site, *, nodes: int) -> Iterable[Finding]:
        """Return whether Slurm answers and has what the site says."""
        return doctor.examine(site, self.world.run, nodes)
