"""The fault suite: real daemons are killed, links cut, disks filled, and no number is wrong.

All faults run beside each other where they don't disturb each other, in an order that a seed
decides. HPCBERT_FAULTS_ROUNDS=N repeats the suite with N orders, HPCBERT_FAULTS_SEED=S says which
order is the first; the seed is in the name of each test.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.faults.faults import LANES, LAST, time_is_up
from tests.faults.kit import Cluster
from tests.waiting import CEILING

pytestmark = pytest.mark.slurm

Fault = Callable[[Cluster], None]
ROUNDS = int(os.environ.get("HPCBERT_FAULTS_ROUNDS", "1"))
SEED = int(os.environ.get("HPCBERT_FAULTS_SEED", "1"))
ONLY = os.environ.get("HPCBERT_FAULTS_ONLY", "")
FAULTS = [
    fault
    for fault in (*(one for lane in LANES.values() for one in lane), *LAST)
    if ONLY in fault.__name__
]


class Round:
    """All faults once, in an order of its own."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        chance = random.Random(seed)
        lanes = [chance.sample(lane, len(lane)) for lane in LANES.values()]
        chance.shuffle(lanes)
        lanes = [[fault for fault in lane if fault in FAULTS] for lane in lanes]
        last = [fault for fault in chance.sample(LAST, len(LAST)) if fault in FAULTS]
        self.results: dict[str, Future[None]] = {fault.__name__: Future() for fault in FAULTS}
        lanes = [lane for lane in lanes if lane]
        self._threads = [self._thread(self._lane, cluster, lane) for lane in lanes]
        pairs = zip(self._threads, lanes, strict=True)
        others = [thread for thread, lane in pairs if time_is_up not in lane]
        self._threads.append(self._thread(self._end, cluster, last, others))

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
                cluster.mend(alone=fault in LAST)
            else:
                result.set_result(None)

    def _end(self, cluster: Cluster, last: list[Fault], others: list[threading.Thread]) -> None:
        for thread in others:
            thread.join()
        self._lane(cluster, last)

    def close(self) -> None:
        for thread in self._threads:
            thread.join()


@pytest.fixture(scope="module")
def rounds(
    lab: Any, as_user: Any, user: Any, checkout: Any, narrow: Path
) -> Iterator[Callable[[int], Round]]:
    """Starts the round of a seed when it is first asked for."""
    work = lab.layout.runs / f"faults-{os.getpid()}"
    work.mkdir()
    os.chown(work, user.uid, user.gid)
    cluster = Cluster(lab, as_user, checkout.python, checkout.path, narrow, work)
    started: dict[int, Round] = {}

    def start(seed: int) -> Round:
        if seed not in started:
            for one in started.values():
                one.close()
            started[seed] = Round(cluster, seed)
        return started[seed]

    yield start
    for one in started.values():
        one.close()
    cluster.clear()


@pytest.mark.parametrize("fault", [fault.__name__ for fault in FAULTS])
@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
def test_no_number_is_wrong_and_no_job_lost_when(
    rounds: Callable[[int], Round], seed: int, fault: str
) -> None:
    rounds(seed).results[fault].result(timeout=10 * CEILING)
