"""What the power sampler costs: the rate of a run with it over that without it.

Run: python benchmarks/sampling.py [PAIRS] [-- more words for the workload]

Pairs of runs of the PyTorch reference, one with sample.sh beside it and one without, in turn, so
that what drifts hits both. Where there is no nvidia-smi, a stand-in prints what it would print.
Prints the ratio of the medians, and the range of the pairs' own ratios.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

WORKLOADS = Path(__file__).parent.parent / "hpcbert" / "workloads"
STAND_IN = """#!/bin/bash
exec {pause}<> <(:)
while true; do
  printf '%(%Y/%m/%d %H:%M:%S)T.000, %d, 250.00, 30000\\n' -1 0 -1 1 -1 2 -1 3 -1 4 -1 5 -1 6 -1 7
  read -rt 1 -u "$pause"
done
"""


def rate(words: list[str], folder: Path, *, sampled: bool) -> float:
    sampler = None
    if sampled:
        script = (WORKLOADS / "sample.sh").read_text()
        sampler = subprocess.Popen(["bash", "-c", script, "sample", str(folder), "x.1.0", "1"])
    try:
        done = subprocess.run(
            [sys.executable, str(WORKLOADS / "bert_pretrain.py"), *words],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    finally:
        if sampler:
            sampler.terminate()
            sampler.wait()
    line = next(one for one in done.stdout.splitlines() if one.startswith("hpcbert-result"))
    return float(json.loads(line.partition(" ")[2])["samples_per_second"])


def main() -> None:
    words = sys.argv[1:]
    own = words[words.index("--") + 1 :] if "--" in words else []
    pairs = int(words[0]) if words and words[0].isdigit() else 9
    asked = own or ["--model", "tiny", "--batch-size", "4", "--threads", "1"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not shutil.which("nvidia-smi"):
            (folder / "nvidia-smi").write_text(STAND_IN)
            (folder / "nvidia-smi").chmod(0o755)
            os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"
        rates: dict[bool, list[float]] = {True: [], False: []}
        for number in range(pairs):
            for sampled in (number % 2 == 0, number % 2 == 1):
                rates[sampled].append(rate(asked, folder, sampled=sampled))
        looks = len((folder / next(iter(folder.glob("*.csv"))).name).read_text().splitlines())
    ratios = [one / other for one, other in zip(rates[True], rates[False], strict=True)]
    whole = statistics.median(rates[True]) / statistics.median(rates[False])
    print(f"with / without: {whole:.4f} ({pairs} pairs, {min(ratios):.4f} .. {max(ratios):.4f})")
    print(f"lines of the last sampled run: {looks}")


if __name__ == "__main__":
    main()
