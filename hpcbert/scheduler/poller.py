"""What follows the repeats of one scheduler's campaigns, poll by poll, and how often it asks.

A scheduler that others use is asked seldom where nothing changes, and never in step with others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from hpcbert.system.lazy import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hpcbert.campaign.repeats import Key, TrackedCampaign
    from hpcbert.slurm.states import RepeatState

    States = Callable[[TrackedCampaign], Mapping[Key, RepeatState]]

# Seconds between two looks at what costs nobody anything.
INTERVAL = 1.0
# Shortest interval between two questions to a scheduler that others use, and the longest one: times
# the floor, from 10 to 60 seconds.
FLOOR = 10.0
_SPAN = 6
_GROWTH = 1.5
_JITTER = 0.2
# Seconds after which it is first asked about an end that a job wrote: its script is still there
# when it writes.
_MOMENT = 0.25


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

    def seconds(self, chance: float, least: float = 0.0) -> float:
        """Return the seconds to the next poll; `chance`, in [0, 1), is the jitter's.

        They are no fewer than `least`, unless that is more than the longest interval.
        """
        least = min(least, self.floor * _SPAN)
        return max(self.floor, self.interval, least) * (1 + _JITTER * chance)


@dataclass(frozen=True)
class Haste:
    """When to ask ahead of time, about ends that jobs wrote.

    All questions together are no more than one a floor's time, and those that a quiet while saved.

    Attributes:
        floor: Shortest interval between two polls, seconds.
        saved: Questions that may be asked, as of `asked`; at most what the longest interval saves.
        asked: When a question was asked last, seconds since the epoch.
        wait: Seconds to the next one ahead of time.
        due: When that is.
    """

    floor: float
    saved: float = _SPAN
    asked: float = 0.0
    wait: float = _MOMENT
    due: float = float("inf")

    def heard(self, now: float) -> Haste:
        """Return it after an end that was written just now."""
        return replace(self, wait=_MOMENT, due=now + _MOMENT)

    def after(self, now: float, *, changed: bool) -> Haste:
        """Return it after a question, whenever it was asked; later and later where none helps."""
        wait = _MOMENT if changed else min(self.wait * 2, max(_MOMENT, self.floor))
        saved = max(0.0, self._saved(now) - 1)
        return replace(self, saved=saved, asked=now, wait=wait, due=now + wait)

    def allows(self, now: float, *, last: bool) -> bool:
        """Say whether it may be asked; about the last end of all it always may, in its time."""
        return now >= self.due and (last or self._saved(now) >= 1)

    def _saved(self, now: float) -> float:
        more = (now - self.asked) / self.floor if self.floor else _SPAN
        return min(_SPAN, self.saved + max(0.0, more))


class Poller(Protocol):
    """Polls one scheduler about campaigns.

    Attributes:
        states: What the last poll knew, by array name and repeat.
        failures: Polls in a row in which the scheduler was asked and gave no answer.
        complaint: What was said then.
        absent: Whether there is nobody to ask, so that asking again is useless.
        garbage: Lines of the last answers that nobody understood, the first few.
    """

    states: dict[Key, RepeatState]
    failures: int = 0
    complaint: str = ""
    absent: bool = False
    garbage: tuple[str, ...] = ()

    def poll(self) -> None:
        """Look once, if it is time to."""

    def pause(self) -> float | None:
        """Return the seconds to wait before the next poll is worth it; None: none ever is."""

    def stirred(self) -> bool:
        """Say, without asking anybody, whether jobs wrote what makes a poll worth it by now."""

    def settled(self, key: Key) -> bool:
        """Say whether a repeat's state is an end that stands beyond doubt, or never will."""


class PlainPoller(Poller):
    """Asks at every poll, and believes the answer.

    Args:
        ask: Returns the states of a campaign's repeats at this moment; it always answers.
        watched: The campaigns.
    """

    def __init__(self, ask: States, watched: Sequence[TrackedCampaign]) -> None:
        self._ask, self._watched = ask, watched
        self.states = {}

    def poll(self) -> None:
        """Ask about every campaign."""
        for one in self._watched:
            found = self._ask(one)
            # Nobody waits for what a retry took over.
            self.states |= {repeat.key: found[repeat.key] for repeat in one.repeats}

    def pause(self) -> float | None:
        """Return the same seconds whatever happens."""
        return INTERVAL

    def stirred(self) -> bool:
        """Say whether anything was written."""
        return any(one.records.stirred() for one in self._watched)

    def settled(self, key: Key) -> bool:
        """Say whether a repeat has ended, or nobody knows how it did."""
        return key in self.states and not self.states[key].kind.alive


def differ(before: RepeatState | None, after: RepeatState) -> bool:
    """Say whether a repeat's state is worth a word after the one before it."""
    return before is None or any(
        getattr(before, name) != getattr(after, name) for name in ("word", "kind", "attempt")
    )
