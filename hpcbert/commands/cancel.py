"""Cancel exactly the jobs of one campaign."""

from __future__ import annotations

from hpcbert import scheduler
from hpcbert.campaign import ends, store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.scheduler.base import Target, World
from hpcbert.slurm.states import Kind, RepeatState
from hpcbert.system.runner import Runner


def find_living(tracked_campaign: TrackedCampaign, *, run: Runner) -> Target:
    """Return the repeats and jobs of a campaign that wait or run.

    Raises:
        SchedulerError: The scheduler does not answer, so nothing is certain.
        UsageError: Others can write to the campaign, so they could have named the jobs.
    """
    store.refuse_foreign(tracked_campaign.directory)
    return scheduler.create_scheduler(tracked_campaign.campaign.scheduler, World(run)).living_jobs(
        tracked_campaign
    )


def cancel(tracked_campaign: TrackedCampaign, target: Target, *, run: Runner) -> None:
    """Cancel what `find_living` found.

    Raises:
        SchedulerError: The scheduler refused, or the jobs have ended already.
    """
    if not target.jobs:
        return
    scheduler.create_scheduler(tracked_campaign.campaign.scheduler, World(run)).cancel(
        tracked_campaign, target
    )
    states = {
        repeat.key: RepeatState("CANCELLED", Kind.FAILED, "none", detail="was cancelled")
        for repeat in target.repeats
        if repeat.newest.start is None
    }
    ends.write(tracked_campaign, states, states)
