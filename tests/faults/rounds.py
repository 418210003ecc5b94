"""The fault suite: real daemons are killed, links cut, disks filled, and no number is wrong.

All faults run beside each other where they don't disturb each other, in an order that a seed
decides. HPCBERT_FAULTS_ROUNDS=N repeats the suite with N orders, HPCBERT_FAULTS_SEED=S says which
order is the first; the seed is in the name of each test.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from tests.faults.kit import Cluster
from tests.kit.waiting import CEILING

Fault = Callable[[Cluster], None]
ROUNDS = int(os.environ.get("HPCBERT_FAULTS_ROUNDS", "1"))
SEED = int(os.environ.get("HPCBERT_FAULTS_SEED", "1"))
ONLY = os.environ.get("HPCBERT_FAULTS_ONLY", "")
# The faults of each lane, those of "last" when all others are over; that of "clock" but waits.
LANES: dict[str, list[Fault]] = {}


def fault(lane: str) -> Callable[[Fault], Callable[..., None]]:
    """Make a test of a fault: it happens in the round of each seed, and the test gives its result."""

    def decorate(body: Fault) -> Callable[..., None]:
        if ONLY in body.__name__:
            LANES.setdefault(lane, []).append(body)

        @pytest.mark.skipif(ONLY not in body.__name__, reason="HPCBERT_FAULTS_ONLY names another")
        @pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
        def test(rounds: Callable[[int], Round], seed: int) -> None:
            rounds(seed).results[body.__name__].result(timeout=10 * CEILING)

        test.__name__, test.__doc__ = body.__name__, body.__doc__
        return test

    return decorate


class Round:
    """All faults once, in an order of its own."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        chance = random.Random(seed)
        lanes = [(name, chance.sample(lane, len(lane))) for name, lane in LANES.items()]
        chance.shuffle(lanes)
        bodies = [body for _, lane in lanes for body in lane]
        self.results: dict[str, Future[None]] = {body.__name__: Future() for body in bodies}
        threads = {
            name: self._thread(self._lane, cluster, lane) for name, lane in lanes if name != "last"
        }
        lane_threads = [thread for name, thread in threads.items() if name != "clock"]
        last = dict(lanes).get("last", [])
        self._threads = [*threads.values(), self._thread(self._end, cluster, last, lane_threads)]

    def _thread(self, body: Callable[..., None], *args: object) -> threading.Thread:
        thread = threading.Thread(target=body, args=args, daemon=True)
        thread.start()
        return thread

    def _lane(self, cluster: Cluster, lane: list[Fault]) -> None:
        for fault in lane:
            result = self.results[fault.__name__]
            try:
                fault(cluster)
            except BaseException as error:  # noqa: BLE001 - whatever it is, its test tells it
                result.set_exception(error)
                cluster.mend(alone=fault in LANES.get("last", []))
            else:
                result.set_result(None)

    def _end(self, cluster: Cluster, last: list[Fault], threads: list[threading.Thread]) -> None:
        for thread in threads:
            thread.join()
        self._lane(cluster, last)

    def close(self) -> None:
        for thread in self._threads:
            thread.join()
