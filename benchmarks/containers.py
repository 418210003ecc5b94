"""The cost for a rank of entering its container: one start per node and joins, or a start each.

All ranks of a node begin at once, as under srun, and report when their command runs. Candidates
take turns with a floor, the bare command; the container is made in advance. As an ordinary user
with enroot, the real one or that of tests/containers/stand-in, on PATH:

    python benchmarks/containers.py --image FILE.sqsh --scratch DIRECTORY --ranks 8
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ENTER = Path(__file__).resolve().parent.parent / "hpcbert" / "shell" / "enter.sh"
SAY_WHEN = ("bash", "-c", "echo $EPOCHREALTIME")


def begin(ranks: int, argv: list[str], variables: dict[str, str]) -> tuple[float, float]:
    """Run a command once per rank; return when the last one ran it, and CPU time, in seconds."""
    before = _cpu()
    started = time.time()
    children = [
        subprocess.Popen(
            argv,
            env={**os.environ, **variables, "SLURM_LOCALID": str(rank), "SLURM_PROCID": str(rank)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    said = [child.communicate(timeout=300)[0] for child in children]
    if any(child.returncode for child in children):
        raise SystemExit(f"failed: {' '.join(argv)}")
    return max(float(text) for text in said) - started, _cpu() - before


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _settings(scratch: str) -> dict[str, str]:
    """Return enroot's directories, as enter.sh arranges them below its scratch directory."""
    folder = f"{scratch}/hpcbert-{os.getuid()}"
    places = {"DATA": "data", "CACHE": "cache", "TEMP": "temp", "RUNTIME": "run"}
    return {f"ENROOT_{name}_PATH": f"{folder}/{place}" for name, place in places.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--image", required=True, help="squashfs file")
    parser.add_argument("--scratch", required=True, help="directory on a local disk")
    parser.add_argument("--ranks", type=int, default=8, help="ranks of the node")
    parser.add_argument("--turns", type=int, default=9)
    words = parser.parse_args()
    name, node = f"hpcbert-p{os.getpid()}", os.uname().nodename
    ours = ["bash", "-p", str(ENTER)]
    own = ["--name", name, "--scratch", words.scratch]
    step = {"SLURM_STEP_TASKS_PER_NODE": str(words.ranks), "SLURM_NODEID": "0"}
    step |= {"SLURMD_NODENAME": node}
    subprocess.run(
        [*ours, "create", *own, "--image", words.image], env={**os.environ, **step}, check=True
    )
    join = [*ours, "enter", *own, "--image", words.image, "--", *SAY_WHEN]
    each = ["enroot", "start", f"{name}-{node}", *SAY_WHEN]
    settings = _settings(words.scratch)
    cases: dict[str, Callable[[int], tuple[float, float]]] = {
        "bare": lambda _: begin(words.ranks, list(SAY_WHEN), {}),
        "one start, ranks join": lambda turn: begin(
            words.ranks, join, {**step, "SLURM_STEP_ID": str(turn)}
        ),
        "one start a rank": lambda _: begin(words.ranks, each, settings),
    }
    found: dict[str, list[tuple[float, float]]] = {case: [] for case in cases}
    for turn in range(words.turns):
        for case, run in cases.items():
            found[case].append(run(turn))
    subprocess.run([*ours, "remove", *own], env={**os.environ, **step}, check=True)
    print(f"{words.ranks} ranks, medians of {words.turns} turns, milliseconds")
    print(f"{'':24}{'last rank runs':>16}{'CPU a rank':>12}")
    for case, pairs in found.items():
        last, cpu = (1000 * statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"{case:24}{last:16.0f}{cpu / words.ranks:12.1f}")


if __name__ == "__main__":
    main()
