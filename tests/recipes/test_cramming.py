"""Logs of cramming, which hpcbert reads and does not start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.cases import cases, read_constant
from tests.kit.cli import CollectJson, first_row, only_run

_CONFIG: str = read_constant(__file__, "_CONFIG")
_WORKER = (
    "[2023-05-22 09:00:00,001] Distributed worker initialized on rank {rank} (local rank {rank}) "
    "with 4 total processes. OMP Threads set to 8. Run ID is none.\n"
)


def format_log(
    *, ranks: int = 1, mixed: str = "true", dtype: str = "float16", loss: str = "2.3"
) -> str:
    """Return a log of 30,000 micro-batches, the mean time of which is 0.125 s."""
    text = "".join(_WORKER.format(rank=rank) for rank in range(ranks)) if ranks > 1 else ""
    text += _CONFIG.format(mixed=mixed, dtype=dtype)
    for number in range(1, 31):
        seconds = 0.125 + (-1) ** number * 0.001
        text += (
            f"[2023-05-22 10:{number:02}:11,345] Train loss {loss} at step {number * 1000} with lr "
            f"0.00031. [Avg: 2.3511]  Perf: {seconds:.4f}s per step (131072t/s). "
            "Estimated Total Train: 1 day, 0:00:00.\n"
        )
    return text


@cases
def test_steps_are_micro_batches_of_all_ranks(
    ranks: int, options: tuple[object, ...], precision: str, tmp_path: Path, run: CollectJson
) -> None:
    log = tmp_path / "pretrain.log"
    mixed = "false" if precision == "fp32" else "true"
    dtype = "bfloat16" if precision == "bf16" else "float16"
    log.write_text(format_log(ranks=ranks, mixed=mixed, dtype=dtype))
    document = run(log, *options)
    (table,) = document["data"]["tables"]
    assert first_row(document)["median"] == pytest.approx(ranks * 128 / 0.125, rel=1e-3)
    assert (table["framework"], table["precision"]) == ("cramming", precision)
    assert table["batch_size_per_device"] == 128


def test_a_loss_that_is_no_number_refuses_the_log(tmp_path: Path, run: CollectJson) -> None:
    log = tmp_path / "pretrain.log"
    log.write_text(format_log(loss="nan"))
    (reason,) = only_run(run(log, "--nodes", 1, "--gpus-per-node", 1))["reasons"]
    assert reason["code"] == "loss"
