"""How long runs of a point took before: from the status files of earlier campaigns."""

from __future__ import annotations

import contextlib
from statistics import median
from typing import TYPE_CHECKING

from hpcbert.campaign import store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.errors import HpcbertError
from hpcbert.system.lazy import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from hpcbert.model import Point

Campaigns = tuple[TrackedCampaign, ...]
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


def campaigns(runs: Path) -> Campaigns:
    """Return the caller's own campaigns below a directory, newest first, as far as they are read.

    Args:
        runs: Where they lie; a damaged one is passed over.
    """
    found: list[TrackedCampaign] = []
    for directory in reversed(store.find_campaigns(runs)):
        with contextlib.suppress(HpcbertError):
            found.append(TrackedCampaign(directory, store.read_manifest(directory)))
    return tuple(found)


def earlier(
    before: Campaigns, points: Collection[Point], *, iters: int, rehearse: bool = False
) -> dict[Point, Earlier]:
    """Return what is known of points from earlier campaigns.

    Args:
        before: The campaigns, newest first.
        points: Those of interest; a point that nothing is known of is not in the result.
        iters: Iterations of a run: runs of other lengths say nothing.
        rehearse: Whether rehearsals are meant, or runs.
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
    """Yield how long each run of a point took that ended with status 0."""
    for array, number in watched.campaign.current:
        if array.point != point:
            continue
        run = watched.record(array, number).newest(first=array.first_attempt)
        if run.exit == 0 and run.start is not None and run.end is not None and run.end > run.start:
            yield run.end - run.start
