"""Retries: the script of a point once more, for some repeats, and with a longer time limit.

A repeat that reached its limit gets a longer one, or is refused.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.config.schedulers import Traits
from hpcbert.errors import UsageError
from hpcbert.model import Array, JobRequest
from hpcbert.script.request import is_marked
from hpcbert.timelimit import TimeLimit

_ATTEMPT = re.compile(r"\bfirst_attempt=\d+\b")
_NAME = re.compile(r"\barray_name=\S+")
_TOGETHER = re.compile(r"\brepeats=\([\d ]+\)")


def is_pointless(array: Array, state: str, time_limit: str) -> bool:
    """Return whether a repeat reached its time limit and a retry would have no longer one.

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
    arrays = tracked_campaign.campaign.arrays
    last_array = [array for array in arrays if array.point == first_array.point][-1]
    return "" if last_array == first_array else last_array.request.time_limit


def requested_limit(array: Array) -> TimeLimit:
    """Return the time limit that an array requested."""
    return TimeLimit.parse(array.request.time_limit)


def is_written_to(request: JobRequest, directory: Path) -> bool:
    """Return whether a job writes to this campaign directory; False if that is a copy."""
    output = Path(request.output.replace("%%", "%"))
    with contextlib.suppress(OSError, ValueError):
        return directory.samefile(output.parent.parent)
    return False


def retry_request(
    request: JobRequest,
    *,
    name: str,
    indices: Sequence[int],
    exclude: Sequence[str],
    time_limit: str = "",
) -> JobRequest:
    """Return the request of a retry.

    Args:
        request: That of the point's first submission.
        name: The new job's.
        indices: The array's indices.
        exclude: Nodes to exclude, in addition to those of the first request.
        time_limit: Limit of one repeat; empty for the first one's.
    """
    nodes = [*filter(None, [request.exclude]), *exclude]
    array = f"{','.join(map(str, indices))}%{request.throttle or 1}"
    return replace(
        request,
        job_name=name,
        comment=name if is_marked(request) else request.comment,
        array=array if request.array else "",
        exclude=",".join(nodes),
        time_limit=time_limit or request.time_limit,
    )


def rewrite_script(
    text: str,
    first_request: JobRequest,
    new_request: JobRequest,
    *,
    scheduler: Traits,
    repeats: Sequence[int],
    first_attempt: int,
) -> str:
    """Return a script that runs some repeats again, and is the same otherwise, byte for byte.

    What differs in the request follows the script's own lines: the scheduler takes the last.

    Args:
        text: The script of the point's first submission.
        first_request: The request of that submission.
        new_request: The request of the retry.
        scheduler: The properties of their scheduler.
        repeats: The repeats to run, as an array's indices.
        first_attempt: Number of their first attempt.

    Raises:
        UsageError: It is not a script of this version's.
    """
    options = {
        "job-name": (first_request.job_name, new_request.job_name),
        "comment": (first_request.comment, new_request.comment),
        "array": (first_request.array, new_request.array),
        "time": (first_request.time_limit, new_request.time_limit),
        "exclude": (first_request.exclude, new_request.exclude),
    }
    changes = [f"--{name}={new}" for name, (old, new) in options.items() if old != new]
    lines = "".join(f"{line}\n" for line in scheduler.format_directives(changes))
    match = re.search(rf"(?:^{re.escape(scheduler.prefix)} .*\n)+", text, re.MULTILINE)
    if (lines and match is None) or not _ATTEMPT.search(text):
        raise UsageError(
            f"The campaign's script has no {scheduler.prefix} lines, or no first_attempt=.",
            hint="Another version of hpcbert made it: submit the point again.",
        )
    if match:
        text = text[: match.end()] + lines + text[match.end() :]
    text = _ATTEMPT.sub(f"first_attempt={first_attempt}", text, count=1)
    text = _NAME.sub(f"array_name={shlex.quote(new_request.job_name)}", text, count=1)
    if new_request.array:
        return text
    numbers = " ".join(map(str, repeats))
    return _TOGETHER.sub(f"repeats=({numbers})", text, count=1)
