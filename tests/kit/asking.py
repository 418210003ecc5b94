"""Questions to the scheduler of a campaign, as commands ask them."""

from __future__ import annotations

from collections.abc import Mapping

from hpcbert import scheduler
from hpcbert.campaign.repeats import Key, TrackedCampaign
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.scheduler.tracker import Tracker
from hpcbert.slurm.states import RepeatState
from hpcbert.system.runner import Runner


def snapshot(watched: TrackedCampaign, *, run: Runner) -> Mapping[Key, RepeatState]:
    """Return the states at this moment."""
    tracker = Tracker([watched], run=run)
    tracker.poll()
    return tracker.states


def adopted(watched: TrackedCampaign, *, run: Runner, strict: bool = False) -> TrackedCampaign:
    """Return a campaign with the jobs of interrupted submissions."""
    return scheduler.create_scheduler(watched.campaign.scheduler, SchedulerContext(run)).adopt_jobs(
        watched, strict=strict
    )
