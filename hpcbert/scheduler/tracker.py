"""Follow campaigns, each through its own scheduler."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpcbert import scheduler
from hpcbert.campaign.repeats import Key, TrackedCampaign
from hpcbert.scheduler.base import FLOOR, Poller, SchedulerContext, has_changed
from hpcbert.slurm.states import RepeatState


class Tracker:
    """Polls campaigns and knows the state of their repeats, as a `Poller` of one scheduler does."""

    def __init__(
        self,
        watched: Sequence[TrackedCampaign],
        context: SchedulerContext,
        *,
        floor: float = FLOOR,
    ) -> None:
        self.states: dict[Key, RepeatState] = {}
        self.failures, self.complaint, self.absent = 0, "", False
        self.garbage: tuple[str, ...] = ()
        self._pollers: dict[Poller, frozenset[Key]] = {}
        for runs_on, tracked_campaigns in scheduler.group_by_scheduler(watched, context):
            poller = runs_on.poller(tracked_campaigns, floor=floor)
            self._pollers[poller] = frozenset(
                repeat.key
                for tracked_campaign in tracked_campaigns
                for repeat in tracked_campaign.repeats
            )

    def poll(self) -> dict[Key, RepeatState]:
        """Look once and return the states that changed since the last look.

        `states` stays the same object as long as nothing in it differs.
        """
        before: dict[Key, RepeatState] = self.states
        states: dict[Key, RepeatState] = {}
        for poller in self._pollers:
            poller.poll()
            states |= poller.states
        self.failures = max((poller.failures for poller in self._pollers), default=0)
        self.complaint = "; ".join(poller.complaint for poller in self._pollers if poller.complaint)
        self.absent = any(poller.absent for poller in self._pollers)
        self.garbage = tuple(line for poller in self._pollers for line in poller.garbage)
        if states == before:
            return {}
        self.states = states
        return {key: state for key, state in states.items() if has_changed(before.get(key), state)}

    def pause(self) -> float:
        """Return the seconds until the next poll is worthwhile."""
        pauses = (poller.pause() for poller in self._pollers)
        return min((seconds for seconds in pauses if seconds is not None), default=0.0)

    def has_news(self) -> bool:
        """Return, without any query, whether jobs wrote something that makes a poll worthwhile."""
        return any(poller.has_news() for poller in self._pollers)

    def seconds_to_news(self) -> float:
        """Return the seconds until it is time for `has_news` even if nothing is written."""
        return min((poller.seconds_to_news() for poller in self._pollers), default=math.inf)

    def is_over(self) -> bool:
        """Return whether the states of all watched repeats are final, as far as known."""
        return all(poller.is_final(key) for poller, keys in self._pollers.items() for key in keys)

    def is_final(self, key: Key) -> bool:
        """Return whether a repeat's state no longer changes, even if its end stays unknown."""
        return any(key in keys and poller.is_final(key) for poller, keys in self._pollers.items())
