"""The durations of earlier runs of a point, from the status files of their campaigns."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from hpcbert.campaign import store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.model import Point, Protocol

Campaigns = tuple[TrackedCampaign, ...]
# Number of runs of a point after which older campaigns are not read.
_ENOUGH = 25


@dataclass(frozen=True)
class EarlierRuns:
    """Successful runs of a point.

    Attributes:
        seconds: Duration of each, from the job's start to its end.
        campaigns: Ids of their campaigns, newest first.
    """

    seconds: tuple[float, ...]
    campaigns: tuple[str, ...]

    @property
    def typical(self) -> float:
        """Their median, seconds."""
        return median(self.seconds)


def find_own_campaigns(runs: Path) -> tuple[Campaigns, tuple[Path, ...]]:
    """Return the user's own campaigns below a directory, newest first.

    Args:
        runs: The directory; damaged campaigns are skipped.

    Returns:
        The campaigns, and the directories of those with another schema.
    """
    manifests, paths = store.read_manifests(reversed(store.find_campaigns(runs)))
    return tuple(TrackedCampaign(*item) for item in manifests.items()), paths


def find_earlier_runs(
    tracked_campaigns: Campaigns,
    points: Collection[Point],
    *,
    protocol: Protocol,
    rehearse: bool = False,
) -> dict[Point, EarlierRuns]:
    """Return the run times of earlier campaigns, by point.

    Args:
        tracked_campaigns: The campaigns, newest first.
        points: The points; those without earlier runs are not in the result.
        protocol: Its iterations and seconds: runs of other lengths are not comparable.
    """
    lengths = protocol.iters, protocol.window_seconds
    seconds: dict[Point, list[float]] = {point: [] for point in points}
    campaign_ids: dict[Point, list[str]] = {point: [] for point in points}
    for tracked_campaign in tracked_campaigns:
        campaign = tracked_campaign.campaign
        other = campaign.protocol
        if (other.iters, other.window_seconds) != lengths or campaign.rehearse != rehearse:
            continue
        for point in campaign.of_point:
            if point not in seconds or len(seconds[point]) >= _ENOUGH:
                continue
            durations = list(_list_durations(tracked_campaign, point))
            if durations:
                seconds[point] += durations
                campaign_ids[point].append(campaign.id)
    return {
        point: EarlierRuns(tuple(durations), tuple(campaign_ids[point]))
        for point, durations in seconds.items()
        if durations
    }


def _list_durations(watched: TrackedCampaign, point: Point) -> Iterator[float]:
    """Yield the duration of each run of a point that ended with status 0."""
    for array, number in watched.campaign.current:
        if array.point != point:
            continue
        run = watched.record(array, number).newest(first=array.first_attempt)
        if run.exit == 0 and run.start is not None and run.end is not None and run.end > run.start:
            yield run.end - run.start
