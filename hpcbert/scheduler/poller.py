"""Follow the repeats of one scheduler's campaigns, poll by poll, at an adaptive pace.

A shared scheduler is asked seldom while nothing changes, and not in step with other users.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from hpcbert.campaign.repeats import Key, TrackedCampaign
from hpcbert.slurm.states import RepeatState

States = Callable[[TrackedCampaign], Mapping[Key, RepeatState]]


# Seconds between two looks at what needs no query.
INTERVAL = 1.0
# Shortest interval between two queries of a shared scheduler, and the longest one, in multiples of
# the floor: from 10 to 60 seconds.
FLOOR = 10.0
_MAX_FACTOR = 6
_GROWTH = 1.5
_JITTER = 0.2
# Seconds after which it is first asked about an end that a job wrote: its script still runs when
# it writes, and slurmctld knows after some 30 ms. If it does not, the next waits are 0.5, 1, ...
_FIRST_DELAY = 1 / 8
_EARLY_WAIT = 0.25


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
        """Return the pace after a poll: faster after a change, slower after a failure."""
        if failed:
            interval = max(self.floor, self.interval) * 2
        elif changed or not self.interval:
            interval = self.floor
        else:
            interval = self.interval * _GROWTH
        return replace(self, interval=min(interval, self.floor * _MAX_FACTOR))

    def seconds(self, chance: float, minimum: float = 0.0) -> float:
        """Return the seconds to the next poll; `chance`, in [0, 1), sets the jitter.

        There are no fewer than `minimum`, unless that is more than the longest interval.
        """
        minimum = min(minimum, self.floor * _MAX_FACTOR)
        return max(self.floor, self.interval, minimum) * (1 + _JITTER * chance)


@dataclass(frozen=True)
class EarlyQueries:
    """When to ask early, about ends that jobs wrote.

    On average there is at most one query per floor interval, plus those saved in quiet times.

    Attributes:
        floor: Shortest interval between two polls, seconds.
        saved: Queries that may be made as of `last_query`, at most what the longest interval saves.
        last_query: When the last query was made, seconds since the epoch.
        wait: Seconds to the next early query.
        due: The time of the next early query.
    """

    floor: float
    saved: float = _MAX_FACTOR
    last_query: float = 0.0
    wait: float = _EARLY_WAIT
    due: float = float("inf")

    def note_end(self, now: float) -> EarlyQueries:
        """Return the schedule after a job wrote an end just now."""
        return replace(self, wait=_EARLY_WAIT, due=now + _FIRST_DELAY)

    def after(self, now: float, *, changed: bool) -> EarlyQueries:
        """Return the schedule after any query; the waits grow as long as nothing changes."""
        wait = _EARLY_WAIT if changed else min(self.wait * 2, max(_EARLY_WAIT, self.floor))
        saved = max(0.0, self._saved(now) - 1)
        return replace(self, saved=saved, last_query=now, wait=wait, due=now + wait)

    def seconds(self, now: float, *, last: bool) -> float:
        """Return the seconds to the next query; one about the last end ignores the floor."""
        shortfall = 0.0 if last else (1 - self._saved(now)) * self.floor
        return max(0.0, self.due - now, shortfall)

    def _saved(self, now: float) -> float:
        accrual = (now - self.last_query) / self.floor if self.floor else _MAX_FACTOR
        return min(_MAX_FACTOR, self.saved + max(0.0, accrual))


class Poller(Protocol):
    """Polls one scheduler about campaigns.

    Attributes:
        states: The states of the last poll, by array name and repeat.
        failures: Polls in a row in which the scheduler gave no answer.
        complaint: The scheduler's last complaint.
        absent: Whether there is no scheduler to ask, so that asking again is useless.
        garbage: The first few lines of the last answers that could not be read.
    """

    states: dict[Key, RepeatState]
    failures: int = 0
    complaint: str = ""
    absent: bool = False
    garbage: tuple[str, ...] = ()

    def poll(self) -> None:
        """Poll once if the next poll is due."""

    def pause(self) -> float | None:
        """Return the seconds until the next poll is worthwhile; None: none will be."""

    def has_news(self) -> bool:
        """Return, without any query, whether jobs wrote something that makes a poll worthwhile."""

    def seconds_to_news(self) -> float:
        """Return the seconds until `has_news` is true even if nothing more is written."""
        return math.inf

    def is_final(self, key: Key) -> bool:
        """Return whether a repeat's state no longer changes, even if its end stays unknown."""


class PlainPoller(Poller):
    """Asks at every poll, and trusts the answer.

    Args:
        ask: Returns the states of a campaign's repeats at this moment; it always answers.
    """

    def __init__(self, ask: States, watched: Sequence[TrackedCampaign]) -> None:
        self._ask, self._watched = ask, watched
        self.states = {}

    def poll(self) -> None:
        """Ask about every campaign."""
        for tracked_campaign in self._watched:
            repeat_states = self._ask(tracked_campaign)
            # Repeats that a retry replaced are not waited for.
            self.states |= {
                repeat.key: repeat_states[repeat.key] for repeat in tracked_campaign.repeats
            }

    def pause(self) -> float | None:
        """Return a constant interval, seconds."""
        return INTERVAL

    def has_news(self) -> bool:
        """Return whether a job's record on disk has changed since the last look."""
        return any(tracked_campaign.records.reread_changed() for tracked_campaign in self._watched)

    def is_final(self, key: Key) -> bool:
        """Return whether a repeat neither waited nor ran at the last poll."""
        return key in self.states and not self.states[key].kind.alive


def has_changed(before: RepeatState | None, after: RepeatState) -> bool:
    """Return whether word, kind or attempt differ from the state before; True without one."""
    return before is None or any(
        getattr(before, name) != getattr(after, name) for name in ("word", "kind", "attempt")
    )
