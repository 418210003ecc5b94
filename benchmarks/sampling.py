"""The cost of the power sampler: the time of steps with it, divided by the time without it.

Run: python benchmarks/sampling.py [TURNS] [-- words for the workload]

The sampler runs next to one run of the PyTorch reference. It is stopped and continued in turns of
some steps, so that other load on the machine affects both. Without nvidia-smi, a stand-in prints
its output for eight GPUs. The output has the ratio of the median steps (on a busy machine, the
ratio of processor time says more), the number of samples, and the sampler's processor time as a
share of the time that it ran.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hpcbert.workloads import bert_data, bert_ranks, bert_settings
from hpcbert.workloads import bert_pretrain as workload

SCRIPT = Path(__file__).parent.parent / "hpcbert" / "shell" / "sample.sh"
STAND_IN = """#!/bin/bash
exec {pause}<> <(:)
while true; do
  printf '%(%Y/%m/%d %H:%M:%S)T.000, %d, 250.00, 30000\\n' -1 0 -1 1 -1 2 -1 3 -1 4 -1 5 -1 6 -1 7
  read -rt 1 -u "$pause"
done
"""
SECONDS = 2.5  # of a turn: two samples


def turn(trainer: workload.Trainer) -> list[tuple[float, float]]:
    """Return how long each step of a turn takes, by the clock and in processor time."""
    found: list[tuple[float, float]] = []
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        begin, used = time.perf_counter(), time.process_time()
        trainer.step().tolist()
        found.append((time.perf_counter() - begin, time.process_time() - used))
    return found


def main() -> None:
    """Print two lines."""
    words = sys.argv[1:]
    own = words[words.index("--") + 1 :] if "--" in words else []
    turns = int(words[0]) if words and words[0].isdigit() else 20
    settings = bert_settings.parse_settings(own or ["--model", "tiny", "--batch-size", "4"])
    ranks = bert_ranks.Ranks()
    device = bert_ranks.choose_device(settings.device, ranks)
    trainer = workload.Trainer(
        settings, ranks, device, bert_data.open_source(settings, ranks, device)
    )
    turn(trainer)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not shutil.which("nvidia-smi"):
            (folder / "nvidia-smi").write_text(STAND_IN)
            (folder / "nvidia-smi").chmod(0o755)
            os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"
        sampler = subprocess.Popen(
            ["bash", "-c", SCRIPT.read_text(), "sample", "8", "1"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        steps: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for number in range(2 * turns):
            at_work = number % 2 == 0
            os.killpg(sampler.pid, signal.SIGCONT if at_work else signal.SIGSTOP)
            steps[at_work] += turn(trainer)
        os.killpg(sampler.pid, signal.SIGCONT)
        printed, _ = sampler.communicate(b"\n")
        count = json.loads(printed.splitlines()[-1])["count"]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    share = (used.ru_utime + used.ru_stime) / (turns * SECONDS)
    (clock, own), (other_clock, other) = (
        map(statistics.median, zip(*steps[at_work], strict=True)) for at_work in (True, False)
    )
    lengths = f"{len(steps[True])} and {len(steps[False])} steps"
    print(
        f"with / without: {clock / other_clock:.4f}, "
        f"in processor time {own / other:.4f} ({lengths})"
    )
    print(f"{count} samples; the sampler took {share:.3%} of a processor")


if __name__ == "__main__":
    main()
