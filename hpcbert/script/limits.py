"""Time limits of retries: a repeat that reached its limit gets a longer one, or is refused."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.errors import UsageError
from hpcbert.model import Array
from hpcbert.timelimit import TimeLimit


def is_pointless(array: Array, state: str, time_limit: str) -> bool:
    """Return whether a repeat reached its time limit and would not have a longer one now.

    Args:
        array: What the repeat was submitted with.
        state: How it ended.
        time_limit: The time limit from now on; empty for the present one.
    """
    if state != "TIMEOUT":
        return False
    previous_limit = requested_limit(array)
    is_longer = bool(time_limit) and TimeLimit.parse(time_limit).exceeds(previous_limit)
    return previous_limit.seconds is not None and not is_longer


def refuse_pointless(
    tracked_campaign: TrackedCampaign,
    ended_repeats: Iterable[tuple[Array, int, str]],
    time_limit: str,
) -> None:
    """Refuse to resubmit a repeat that reached its time limit without a longer one.

    Args:
        tracked_campaign: The campaign.
        ended_repeats: What to resubmit: the array, the repeat, the state it ended in.
        time_limit: The time limit from now on; empty for the present one.

    Raises:
        UsageError: A repeat did; the hint is the command that gives it a longer one.
    """
    timeouts = [
        (array, number)
        for array, number, state in ended_repeats
        if is_pointless(array, state, time_limit)
    ]
    if not timeouts:
        return
    previous_limit = max(requested_limit(array).seconds or 0 for array, _ in timeouts)
    names = ", ".join(f"{array.point.key} repeat {number}" for array, number in timeouts)
    new_limit = TimeLimit(min(2 * previous_limit, TimeLimit.MOST))
    directory = shlex.quote(str(tracked_campaign.directory))
    raise UsageError(
        f"{names} reached the time limit of {TimeLimit(previous_limit)}, and would do so again.",
        where=tracked_campaign.campaign.id,
        hint=f"Set a longer one: hpcbert retry {directory} --time {new_limit}",
    )


def retried_limit(tracked_campaign: TrackedCampaign, first_array: Array) -> str:
    """Return the time limit that an earlier retry gave a point; empty for the first one."""
    last_array = [
        array for array in tracked_campaign.campaign.arrays if array.point == first_array.point
    ][-1]
    return "" if last_array == first_array else last_array.request.time_limit


def requested_limit(array: Array) -> TimeLimit:
    """Return the time limit that an array requested."""
    return TimeLimit.parse(array.request.time_limit)
