"""Waiting for an event, instead of sleeping."""

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

from hpcbert.system.runner import Runner
from tests.kit.slurm import T

Found = TypeVar("Found")
# Seconds after which a test fails; only a failing one waits so long.
CEILING = 900.0
# The pause per second of a question; and its maximum, in least pauses and in seconds.
_SHARE, _PAUSES, _LONGEST = 20, 10, 1.0


def until(
    condition: Callable[[], Found], event: str | Callable[[], object], *, pause: float = 0.05
) -> Found:
    """Return the value of a condition as soon as it is true; fail if it never is.

    At least `pause` seconds lie between two questions, and up to ten times as many between those that
    take long: what starts a process each time would keep a core from the jobs waited for.
    """
    end = time.monotonic() + CEILING
    while True:
        moment = time.monotonic()
        if value := condition():
            return value
        answered = time.monotonic()
        if answered > end:
            pytest.fail(f"in vain: {event if isinstance(event, str) else event()}")
        time.sleep(max(pause, min(_SHARE * (answered - moment), _PAUSES * pause, _LONGEST)))


def unqueued(run: Runner, name: str = "", *words: str) -> bool:
    """Return whether squeue answers these words and lists no job with that in its name.

    squeue also prints nothing when it gives up on a busy controller. It reports a job that ended
    MinJobAge ago as unknown.
    """
    outcome = run(["squeue", "--noheader", "--format=%j", *words])
    forgotten = "Invalid job id" in outcome.stderr
    listed = any(name in line for line in outcome.stdout.splitlines())
    return forgotten or (outcome.ok and not listed)


class Clock:
    """Seconds since the epoch; waiting advances it, and planned events happen in time."""

    def __init__(self, now: float = T) -> None:
        self.now = float(now)
        self.pauses: list[float] = []
        self._planned: list[tuple[float, Callable[[], None]]] = []

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        """Plan an event for so many seconds after T."""
        self._planned.append((T + seconds, act))

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        due = [act for when, act in self._planned if when <= self.now]
        self._planned = [(when, act) for when, act in self._planned if when > self.now]
        for act in due:
            act()
