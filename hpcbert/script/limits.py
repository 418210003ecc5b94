"""Time limits of retries: a repeat that reached its limit gets a longer one, or is refused."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from hpcbert.errors import UsageError
from hpcbert.timelimit import TimeLimit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hpcbert.campaign.repeats import TrackedCampaign
    from hpcbert.model import Array


def pointless(array: Array, state: str, wanted: str) -> bool:
    """Return whether a repeat reached its time limit and would not have a longer one now.

    Args:
        array: What the repeat was submitted with.
        state: How it ended.
        wanted: The time limit from now on; empty for the present one.
    """
    if state != "TIMEOUT":
        return False
    had = of(array)
    longer = bool(wanted) and TimeLimit.parse(wanted).exceeds(had)
    return had.seconds is not None and not longer


def refuse_pointless(
    watched: TrackedCampaign, ended: Iterable[tuple[Array, int, str]], wanted: str
) -> None:
    """Refuse to resubmit a repeat that reached its time limit without a longer one.

    Args:
        watched: The campaign.
        ended: What to resubmit: the array, the repeat, the state it ended in.
        wanted: The time limit from now on; empty for the present one.

    Raises:
        UsageError: A repeat did; the hint is the command that gives it a longer one.
    """
    late = [(array, number) for array, number, state in ended if pointless(array, state, wanted)]
    if not late:
        return
    had = max(of(array).seconds or 0 for array, _ in late)
    names = ", ".join(f"{array.point.key} repeat {number}" for array, number in late)
    new = TimeLimit(min(2 * had, TimeLimit.MOST))
    where = shlex.quote(str(watched.directory))
    raise UsageError(
        f"{names} reached the time limit of {TimeLimit(had)}, and would do so again.",
        where=watched.campaign.id,
        hint=f"Set a longer one: hpcbert retry {where} --time {new}",
    )


def kept(watched: TrackedCampaign, first: Array) -> str:
    """Return the time limit that an earlier retry gave a point; empty for the first one."""
    last = [array for array in watched.campaign.arrays if array.point == first.point][-1]
    return "" if last == first else last.request.time_limit


def of(array: Array) -> TimeLimit:
    """Return the time limit that an array requested."""
    return TimeLimit.parse(array.request.time_limit)
