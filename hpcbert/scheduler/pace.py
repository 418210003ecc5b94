"""How often a scheduler is asked: seldom where nothing changes, and never in step with others."""

from __future__ import annotations

from dataclasses import dataclass, replace

FLOOR = 10.0
# Times the floor: from 10 to 60 seconds.
_SPAN = 6
_GROWTH = 1.5
_JITTER = 0.2


@dataclass(frozen=True)
class Pace:
    """The interval between two polls.

    Attributes:
        floor: Shortest interval, seconds; the longest is six times that.
        interval: The present one, before jitter.
    """

    floor: float = FLOOR
    interval: float = 0.0

    def after(self, *, changed: bool, failed: bool) -> Pace:
        """Return the pace after a poll: quick again after a change, slower after a failure."""
        if failed:
            interval = max(self.floor, self.interval) * 2
        elif changed or not self.interval:
            interval = self.floor
        else:
            interval = self.interval * _GROWTH
        return replace(self, interval=min(interval, self.floor * _SPAN))

    def seconds(self, chance: float) -> float:
        """Return the seconds to the next poll; `chance`, in [0, 1), is the jitter's."""
        return max(self.floor, self.interval) * (1 + _JITTER * chance)
