"""Cancel exactly the jobs of one campaign."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcbert import scheduler
from hpcbert.campaign import ends, store
from hpcbert.scheduler.base import World
from hpcbert.slurm.states import Kind, RepeatState

if TYPE_CHECKING:
    from hpcbert.campaign.repeats import TrackedCampaign
    from hpcbert.scheduler.base import Target
    from hpcbert.system.runner import Runner


def find(watched: TrackedCampaign, *, run: Runner) -> Target:
    """Return the repeats and jobs of a campaign that wait or run.

    Raises:
        SchedulerError: The scheduler does not answer, so nothing is certain.
        UsageError: Others can write to the campaign, so they could have named the jobs.
    """
    store.claim(watched.directory)
    return scheduler.of(watched.campaign.scheduler, World(run)).living_jobs(watched)


def cancel(watched: TrackedCampaign, target: Target, *, run: Runner) -> None:
    """Cancel what `find` found.

    Raises:
        SchedulerError: The scheduler refused, or the jobs have ended already.
    """
    if not target.jobs:
        return
    scheduler.of(watched.campaign.scheduler, World(run)).cancel(watched, target)
    states = {
        repeat.key: RepeatState("CANCELLED", Kind.FAILED, "none", detail="was cancelled")
        for repeat in target.repeats
        if repeat.newest.start is None
    }
    ends.write(watched, states, states)
