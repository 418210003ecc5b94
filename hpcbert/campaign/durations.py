"""The durations of earlier runs of a point, from the status files of their campaigns."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from hpcbert.campaign import store
from hpcbert.campaign.repeats import TrackedCampaign

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from hpcbert.model import Point

Campaigns = tuple[TrackedCampaign, ...]
# Number of runs of a point after which older campaigns are not read.
_ENOUGH = 25


@dataclass(frozen=True)
class Earlier:
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


def campaigns(runs: Path) -> tuple[Campaigns, tuple[Path, ...]]:
    """Return the user's own campaigns below a directory, newest first.

    Args:
        runs: The directory; damaged campaigns are skipped.

    Returns:
        The campaigns, and the directories of those with another schema.
    """
    manifests, paths = store.read_manifests(reversed(store.find_campaigns(runs)))
    return tuple(TrackedCampaign(*item) for item in manifests.items()), paths


def earlier(
    before: Campaigns, points: Collection[Point], *, iters: int, rehearse: bool = False
) -> dict[Point, Earlier]:
    """Return what is known about points from earlier campaigns.

    Args:
        before: The campaigns, newest first.
        points: The points; those without earlier runs are not in the result.
        iters: Iterations of a run: runs of other lengths are not comparable.
        rehearse: Whether to look for rehearsals or for runs.
    """
    found: dict[Point, Earlier] = {}
    for watched in before:
        campaign = watched.campaign
        if campaign.protocol.iters != iters or campaign.rehearse != rehearse:
            continue
        wanted = [
            point
            for point in campaign.of_point
            if point in points and len(_known(found, point).seconds) < _ENOUGH
        ]
        for point in wanted:
            seconds = tuple(_seconds(watched, point))
            if seconds:
                newer = _known(found, point)
                named = (*newer.campaigns, campaign.id)
                found[point] = Earlier((*newer.seconds, *seconds), named)
        if all(len(_known(found, point).seconds) >= _ENOUGH for point in points):
            break
    return found


def _known(found: dict[Point, Earlier], point: Point) -> Earlier:
    return found.get(point, Earlier((), ()))


def _seconds(watched: TrackedCampaign, point: Point) -> Iterator[float]:
    """Yield the duration of each run of a point that ended with status 0."""
    for array, number in watched.campaign.current:
        if array.point != point:
            continue
        run = watched.record(array, number).newest(first=array.first_attempt)
        if run.exit == 0 and run.start is not None and run.end is not None and run.end > run.start:
            yield run.end - run.start
