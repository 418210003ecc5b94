"""A clock that only tests move."""

from __future__ import annotations

from collections.abc import Callable

from tests.kit.lines import T


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
