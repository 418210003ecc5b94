"""Measure what leaving padding out is worth in the reference workload, as a ratio in one run.

Padded and unpadded steps of the same data take turns, so that whatever else the machine does meets
both; printed are the medians' ratio and the share of real tokens.

    python benchmarks/reference.py --model base --sequence-length 512 --batch-size 2 --fill wiki
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import TYPE_CHECKING

from hpcbert.workloads import bert_pretrain as workload

if TYPE_CHECKING:
    from collections.abc import Sequence

STEPS = 9


def make_trainer(words: Sequence[str]) -> workload.Trainer:
    """Return a trainer of one rank."""
    settings, ranks = workload.parse_settings(words), workload.Ranks()
    device = workload.choose_device(settings.device, ranks)
    source = workload.open_source(settings, ranks, device)
    return workload.Trainer(settings, ranks, device, source)


def seconds_of(trainer: workload.Trainer) -> float:
    """Return how long one optimizer step takes."""
    start = time.perf_counter()
    trainer.step().tolist()
    return time.perf_counter() - start


def main() -> None:
    """Print one line."""
    words = sys.argv[1:]
    padded, unpadded = make_trainer(words), make_trainer([*words, "--unpad"])
    for trainer in (padded, unpadded):
        seconds_of(trainer)
    pairs = [(seconds_of(padded), seconds_of(unpadded)) for _ in range(STEPS)]
    before, after = (statistics.median(times) for times in zip(*pairs, strict=True))
    settings = padded.settings
    whole = settings.batch_size * settings.sequence_length * settings.accumulation * padded.steps
    real = float(padded.work[0]) / whole
    sys.stdout.write(
        f"{settings.model} {settings.sequence_length} {settings.precision} {settings.fill}: "
        f"{100 * real:.0f} % real tokens, {before:.3f} s padded, {after:.3f} s unpadded, "
        f"{before / after:.2f} x\n"
    )


if __name__ == "__main__":
    main()
