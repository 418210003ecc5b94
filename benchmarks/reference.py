"""Measure the reference workload against variants of itself and transformers, as ratios in one run.

All candidates train on the same samples; their steps take turns, so that other load on the machine
affects all of them. The output has medians, and the ratios of medians to the first candidate: of
CPU time if they train on the CPU, because other programs hardly change it, else of wall-clock time.

    python benchmarks/reference.py --model base --sequence-length 512 --batch-size 2 --fill wiki \\
        --against=--unpad
    python benchmarks/reference.py --model base --against=transformers --against='--precision bf16'

`transformers` needs that package, version 5. `without-fused` and `without-tile` undo the single
kernel for the whole optimizer and the vocabulary's padding.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from hpcbert.workloads import bert_data, bert_model, bert_optimizers, bert_ranks, bert_settings
from hpcbert.workloads import bert_pretrain as workload

if TYPE_CHECKING:
    from collections.abc import Sequence

PEER = "transformers"
WITHOUT: dict[str, tuple[Any, str, Any]] = {
    "without-fused": (bert_optimizers, "FUSED", False),
    "without-tile": (bert_model, "TILE", 1),
}


def open_trainer(words: Sequence[str]) -> workload.Trainer:
    """Return a trainer of one rank."""
    settings, ranks = bert_settings.parse_settings(words), bert_ranks.Ranks()
    if settings.threads:
        torch.set_num_threads(settings.threads)
    device = bert_ranks.choose_device(settings.device, ranks)
    return workload.Trainer(settings, ranks, device, open_source(settings))


def open_source(settings: bert_settings.Settings) -> Any:
    ranks = bert_ranks.Ranks()
    return bert_data.open_source(settings, ranks, bert_ranks.choose_device(settings.device, ranks))


def open_candidate(words: Sequence[str], variant: str) -> Any:
    """Return an object with the `step` of a trainer."""
    if variant in WITHOUT:
        with mock.patch.object(*WITHOUT[variant]):
            return open_trainer(words)
    if variant != PEER:
        return open_trainer([*words, *shlex.split(variant)])
    import peers

    trainer = open_trainer(words)
    return peers.Peer(trainer, open_source(trainer.settings))


def seconds_of(candidate: Any) -> float:
    """Return the duration of one optimizer step."""
    clock = time.process_time if candidate.device.type == "cpu" else time.perf_counter
    start = clock()
    candidate.step().tolist()
    return clock() - start


def main() -> None:
    """Print a line for each candidate."""
    parser = argparse.ArgumentParser(allow_abbrev=False, epilog="Other options are the workload's.")
    parser.add_argument("--against", action="append", default=[], help="options, or transformers")
    parser.add_argument("--turns", type=int, default=9)
    asked, words = parser.parse_known_args()
    variants = ["", *asked.against]
    candidates = [open_candidate(words, variant) for variant in variants]
    for candidate in candidates:
        seconds_of(candidate)
        seconds_of(candidate)
    turns = [[seconds_of(candidate) for candidate in candidates] for _ in range(asked.turns)]
    medians = [statistics.median(times) for times in zip(*turns, strict=True)]
    for variant, candidate, median in zip(variants, candidates, medians, strict=True):
        settings = candidate.settings
        samples = settings.batch_size * settings.accumulation
        sys.stdout.write(
            f"{variant or 'as it is':30} {median:11.6f} s a step of {samples} samples, "
            f"{medians[0] / median:.2f} x as fast\n"
        )
    first = candidates[0]
    settings = first.settings
    whole = settings.batch_size * settings.sequence_length * settings.accumulation * first.steps
    share = float(first.work[0]) / whole
    sys.stdout.write(
        f"{settings.model} {settings.sequence_length} {settings.precision}, "
        f"{100 * share:.0f} % real tokens\n"
    )


if __name__ == "__main__":
    main()
