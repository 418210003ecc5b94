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

PROGRAM = Path(__file__).parent.parent / "hpcbert" / "workloads" / "bert_pretrain.py"
SHORT, LONG = 4, 24
CPUS = sorted(os.sched_getaffinity(0))


# How ranks are started: how many threads each has (0: left to the libraries), and whether on a CPU
# of its own.
CANDIDATES = {
    "unbound, threads left to the libraries": (0, False),
    "unbound, one thread a rank": (1, False),
    "bound, one thread a rank": (1, True),
}


def measure_run(threads: int, words: list[str], *, is_bound: bool) -> tuple[float, float]:
    """Train on all ranks once, and return their CPU seconds and the elapsed ones."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment |= {"OMP_NUM_THREADS": str(threads)} if threads else {}
    program = [sys.executable, str(PROGRAM), "--device=cpu", "--skip=1", *words]
    start, before = time.perf_counter(), os.times()
    ranks = []
    for rank, cpu in enumerate(CPUS):
        place = {"RANK": str(rank), "WORLD_SIZE": str(len(CPUS)), "LOCAL_RANK": str(rank)}
        prefix = ["taskset", "-c", str(cpu)] if is_bound else []
        env = {**environment, **place}
        ranks.append(subprocess.Popen([*prefix, *program], env=env, stdout=subprocess.DEVNULL))
    statuses = [process.wait() for process in ranks]
    if any(statuses):
        raise SystemExit("a rank failed")
    after = os.times()
    spent = after.children_user + after.children_system
    spent -= before.children_user + before.children_system
    return spent, time.perf_counter() - start


def main() -> None:
    """Print a line for each candidate."""
    parser = argparse.ArgumentParser(allow_abbrev=False, epilog="Other options are the workload's.")
    parser.add_argument("--turns", type=int, default=5)
    options, words = parser.parse_known_args()
    costs: dict[str, list[tuple[float, ...]]] = {name: [] for name in CANDIDATES}
    for _ in range(options.turns):
        for name, (threads, is_bound) in CANDIDATES.items():
            shorter, longer = (
                measure_run(threads, [*words, f"--iters={iters}"], is_bound=is_bound)
                for iters in (SHORT, LONG)
            )
            pairs = zip(shorter, longer, strict=True)
            costs[name].append(tuple((more - less) / (LONG - SHORT) for less, more in pairs))
    baseline: list[float] = []
    for name, turns in costs.items():
        cpu, wall = map(statistics.median, zip(*turns, strict=True))
        baseline = baseline or [cpu, wall]
        sys.stdout.write(
            f"{name:40} "
            f"{cpu * 1e3:8.1f} ms of CPU time a step ({cpu / baseline[0]:.2f} x), "
            f"{wall * 1e3:8.1f} ms passed ({wall / baseline[1]:.2f} x)\n"
        )


if __name__ == "__main__":
    main()
