"""Schedulers: one protocol (`base`), and one package for each implementation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcbert.config.schedulers import find_traits, load_class
from hpcbert.system.grouping import group

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hpcbert.campaign.repeats import TrackedCampaign
    from hpcbert.scheduler.base import Scheduler, SchedulerContext


def create_scheduler(name: str, context: SchedulerContext) -> Scheduler:
    """Return the scheduler that a site or a campaign names.

    Raises:
        ConfigError: Its package is broken.
    """
    traits = find_traits(name)
    scheduler: Scheduler = load_class(traits)(traits, context)
    return scheduler


def group_by_scheduler(
    campaigns: Iterable[TrackedCampaign], context: SchedulerContext
) -> Iterator[tuple[Scheduler, list[TrackedCampaign]]]:
    """Yield the schedulers of campaigns, each with its campaigns."""
    by_name = group((campaign.campaign.scheduler, campaign) for campaign in campaigns)
    for name, tracked_campaigns in by_name.items():
        yield create_scheduler(name, context), tracked_campaigns
