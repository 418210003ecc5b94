"""How long runs of a point took before: from the status files of earlier campaigns."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from hpcbert.campaign import store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.errors import HpcbertError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from hpcbert.model import Campaign, Point

# Runs of a point after which no older campaign is looked at.
_ENOUGH = 25


@dataclass(frozen=True)
class Earlier:
    """Runs of a point that ended well before.

    Attributes:
        seconds: Of each, from the job's start to its end.
        campaigns: Ids of the campaigns that they are of, newest first.
    """

    seconds: tuple[float, ...]
    campaigns: tuple[str, ...]

    @property
    def typical(self) -> float:
        """Their median, seconds."""
        return median(self.seconds)


def earlier(
    runs: Path, points: Collection[Point], *, iters: int, rehearse: bool = False
) -> dict[Point, Earlier]:
    """Return what is known of points from the caller's own campaigns, newest first.

    Args:
        runs: Where campaigns lie.
        points: Those of interest; a point that nothing is known of is not in the result.
        iters: Iterations of a run: runs of other lengths say nothing.
        rehearse: Whether rehearsals are meant, or runs.
    """
    found: dict[Point, Earlier] = {}
    for directory in reversed(store.find_campaigns(runs)):
        try:
            campaign = store.read_manifest(directory)
        except HpcbertError:
            continue
        if campaign.protocol.iters != iters or campaign.rehearse != rehearse:
            continue
        wanted = [
            point
            for point in campaign.of_point
            if point in points and len(_known(found, point).seconds) < _ENOUGH
        ]
        for point in wanted:
            seconds = tuple(_seconds(directory, campaign, point))
            if seconds:
                before = _known(found, point)
                named = (*before.campaigns, campaign.id)
                found[point] = Earlier((*before.seconds, *seconds), named)
        if all(len(_known(found, point).seconds) >= _ENOUGH for point in points):
            break
    return found


def _known(found: dict[Point, Earlier], point: Point) -> Earlier:
    return found.get(point, Earlier((), ()))


def _seconds(directory: Path, campaign: Campaign, point: Point) -> Iterator[float]:
    """Yield how long each run of a point took that ended with status 0."""
    watched = TrackedCampaign(directory, campaign)
    for array, number in campaign.current:
        if array.point != point:
            continue
        run = watched.record(array, number).newest(first=array.first_attempt)
        if run.exit == 0 and run.start is not None and run.end is not None and run.end > run.start:
            yield run.end - run.start
