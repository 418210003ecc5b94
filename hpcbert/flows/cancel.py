"""Cancelling exactly the jobs of one campaign."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcbert import scheduler
from hpcbert.campaign import store
from hpcbert.scheduler.base import World

if TYPE_CHECKING:
    from hpcbert.campaign.repeats import TrackedCampaign
    from hpcbert.scheduler.base import Target
    from hpcbert.system.runner import Runner


def find(watched: TrackedCampaign, *, run: Runner) -> Target:
    """Return what of a campaign waits or runs.

    Raises:
        SchedulerError: The scheduler does not answer, so nothing can be told for certain.
        UsageError: The campaign is not the caller's alone: others could have named the jobs.
    """
    store.claim(watched.directory)
    return scheduler.of(watched.campaign.scheduler, World(run)).living_jobs(watched)


def cancel(watched: TrackedCampaign, target: Target, *, run: Runner) -> None:
    """Cancel what `find` found.

    Raises:
        SchedulerError: The scheduler refused, or the jobs have ended already.
    """
    if target.jobs:
        scheduler.of(watched.campaign.scheduler, World(run)).cancel(watched, target)
