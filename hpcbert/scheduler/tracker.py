"""Follow campaigns, each through its own scheduler."""

from __future__ import annotations

import math
import os
import random
import time
from typing import TYPE_CHECKING

from hpcbert import scheduler
from hpcbert.scheduler.base import World
from hpcbert.scheduler.poller import FLOOR, differ

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hpcbert.campaign.repeats import Key, TrackedCampaign
    from hpcbert.scheduler.poller import Poller
    from hpcbert.slurm.states import RepeatState
    from hpcbert.system.runner import Runner


class Tracker:
    """Polls campaigns and knows the state of their repeats, as a `Poller` of one scheduler does.

    Args:
        watched: The campaigns.
        run: Starts the schedulers' commands.
        environ: The environment to derive that of commands from.
        clock: Seconds since the epoch.
        chance: A number in [0, 1), for jitter.
        floor: Shortest interval between two queries of a shared scheduler, seconds.
    """

    def __init__(
        self,
        watched: Sequence[TrackedCampaign],
        *,
        run: Runner,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
        floor: float = FLOOR,
    ) -> None:
        self.states: dict[Key, RepeatState] = {}
        self.failures, self.complaint, self.absent = 0, "", False
        self.garbage: tuple[str, ...] = ()
        self._pollers: dict[Poller, frozenset[Key]] = {}
        for runs_on, those in scheduler.each(watched, World(run, clock, environ=environ)):
            poller = runs_on.poller(those, floor=floor, chance=chance)
            self._pollers[poller] = frozenset(repeat.key for one in those for repeat in one.repeats)

    def poll(self) -> dict[Key, RepeatState]:
        """Look once and return the states that changed since the last look."""
        before, self.states = self.states, {}
        for one in self._pollers:
            one.poll()
            self.states |= one.states
        self.failures = max((one.failures for one in self._pollers), default=0)
        self.complaint = "; ".join(one.complaint for one in self._pollers if one.complaint)
        self.absent = any(one.absent for one in self._pollers)
        self.garbage = tuple(line for one in self._pollers for line in one.garbage)
        return {key: one for key, one in self.states.items() if differ(before.get(key), one)}

    def pause(self) -> float:
        """Return the seconds until the next poll is worthwhile."""
        pauses = (one.pause() for one in self._pollers)
        return min((one for one in pauses if one is not None), default=0.0)

    def stirred(self) -> bool:
        """Return, without any query, whether jobs wrote something that makes a poll worthwhile."""
        return any(one.stirred() for one in self._pollers)

    def soon(self) -> float:
        """Return the seconds until `stirred` is true even if nothing more is written."""
        return min((one.soon() for one in self._pollers), default=math.inf)

    def over(self) -> bool:
        """Return whether nothing watched can change any more, as far as known."""
        return all(one.settled(key) for one, keys in self._pollers.items() for key in keys)

    def settled(self, key: Key) -> bool:
        """Return whether a repeat's state is final: an end beyond doubt, or never to be one."""
        return any(key in keys and one.settled(key) for one, keys in self._pollers.items())
