"""Measure the gain from giving each rank its own CPUs and threads.

The reference workload trains on CPUs, with a rank for each CPU of this machine. The candidates take
turns, so that other load on the machine affects all of them. The result is the difference of a
longer and a shorter run, which excludes the cost of starting. The output has medians, CPU time
first, because other programs change it less than elapsed time.

    python benchmarks/binding.py --turns 5 --model mini --batch-size 4
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

PROGRAM = Path(__file__).parent.parent / "hpcbert" / "workloads" / "bert_pretrain.py"
SHORT, LONG = 4, 24
CPUS = sorted(os.sched_getaffinity(0))


class Cost(NamedTuple):
    """CPU seconds of all ranks, and elapsed seconds."""

    cpu: float
    wall: float


class Candidate(NamedTuple):
    """How ranks are started.

    Attributes:
        threads: Of each rank; 0 leaves it to the libraries.
        bound: Whether each has its own CPU.
    """

    name: str
    threads: int
    bound: bool


CANDIDATES = (
    Candidate("unbound, threads left to the libraries", 0, bound=False),
    Candidate("unbound, one thread a rank", 1, bound=False),
    Candidate("bound, one thread a rank", 1, bound=True),
)


def run(candidate: Candidate, words: list[str], iters: int) -> Cost:
    """Train on all ranks once."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment |= {"OMP_NUM_THREADS": str(candidate.threads)} if candidate.threads else {}
    argv = [sys.executable, str(PROGRAM), "--device=cpu", f"--iters={iters}", "--skip=1", *words]
    start = time.perf_counter()
    ranks = []
    for rank, cpu in enumerate(CPUS):
        own = {"RANK": str(rank), "WORLD_SIZE": str(len(CPUS)), "LOCAL_RANK": str(rank)}
        at = ["taskset", "-c", str(cpu)] if candidate.bound else []
        env = {**environment, **own}
        ranks.append(subprocess.Popen([*at, *argv], env=env, stdout=subprocess.DEVNULL))
    spent = 0.0
    for one in ranks:
        _, status, usage = os.wait4(one.pid, 0)
        one.returncode = os.waitstatus_to_exitcode(status)
        if one.returncode:
            raise SystemExit(f"a rank ended with {one.returncode}")
        spent += usage.ru_utime + usage.ru_stime
    return Cost(spent, time.perf_counter() - start)


def main() -> None:
    """Print a line for each candidate."""
    parser = argparse.ArgumentParser(allow_abbrev=False, epilog="Other options are the workload's.")
    parser.add_argument("--turns", type=int, default=5)
    asked, words = parser.parse_known_args()
    costs: dict[str, list[Cost]] = {one.name: [] for one in CANDIDATES}
    for _ in range(asked.turns):
        for one in CANDIDATES:
            few, many = (run(one, words, iters) for iters in (SHORT, LONG))
            each = [(more - less) / (LONG - SHORT) for less, more in zip(few, many, strict=True)]
            costs[one.name].append(Cost(*each))
    medians = {
        name: Cost(*map(statistics.median, zip(*own, strict=True))) for name, own in costs.items()
    }
    first = medians[CANDIDATES[0].name]
    for name, cost in medians.items():
        sys.stdout.write(
            f"{name:40} "
            f"{cost.cpu * 1e3:8.1f} ms of CPU time a step ({cost.cpu / first.cpu:.2f} x), "
            f"{cost.wall * 1e3:8.1f} ms passed ({cost.wall / first.wall:.2f} x)\n"
        )


if __name__ == "__main__":
    main()
