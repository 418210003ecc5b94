"""A clock that only tests move."""

from __future__ import annotations

from tests.kit.lines import T


class Clock:
    """Seconds since the epoch; waiting moves it on."""

    def __init__(self, now: float = T) -> None:
        self.now = float(now)
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
