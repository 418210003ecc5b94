"""Waiting for an event: what a test does instead of sleeping."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcbert.system.runner import Outcome

Found = TypeVar("Found")
# Seconds after which something hangs. Far above what a busy machine needs: nothing waits so long
# but a test that fails.
CEILING = 900.0
# Seconds of pause for each that a question takes; of them no more than so many pauses, or seconds.
_SHARE, _PAUSES, _LONGEST = 20, 10, 1.0


def until(
    condition: Callable[[], Found], what: str | Callable[[], object], *, pause: float = 0.05
) -> Found:
    """Return what a condition gives as soon as that is true; fail where it never is.

    Args:
        condition: Asked again and again.
        what: What never came, or a function that says so.
        pause: Least seconds between two questions. Up to ten times as many lie between those that
            take long: what starts a process each time would keep a core from the jobs waited for.
    """
    end = time.monotonic() + CEILING
    while True:
        asked = time.monotonic()
        if found := condition():
            return found
        answered = time.monotonic()
        if answered > end:
            pytest.fail(f"in vain: {what if isinstance(what, str) else what()}")
        time.sleep(max(pause, min(_SHARE * (answered - asked), _PAUSES * pause, _LONGEST)))


def unqueued(asked: Outcome, text: str = "") -> bool:
    """Say whether squeue answered and no line that it printed holds a text.

    It prints nothing either when it gives up on a controller that is busy. Of a job that ended
    MinJobAge ago it says that there is none.
    """
    forgotten = "Invalid job id" in asked.stderr
    listed = any(text in line for line in asked.stdout.splitlines())
    return forgotten or (asked.ok and not listed)
