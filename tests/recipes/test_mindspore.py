"""MindSpore's loss has many forms; each is read, and each step's counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbert.logs.setting import Setting
from tests.kit.cases import read_constant
from tests.kit.logs import Reader
from tests.kit.recipes import grammar

# MindSpore 1 prints a tensor without dimensions, MindSpore 2 one of a single number; with loss
# scaling the loss is the first of several outputs (mindspore-ai/models@9d99f64, src/utils.py).
OUTPUTS = read_constant(__file__, "OUTPUTS")
KNOWN = Setting(
    nodes=1, gpus_per_node=2, gpus=2, batch_size_per_device=8, accumulation=1, skip=4, iters=24
)


def format_epochs(
    outputs: str, *, loss: str = "11.05", at: int = 0, time: str = "Train epoch"
) -> str:
    """Return 24 steps, a line each, of which two are an epoch."""
    return "".join(
        f"epoch: {(n - 1) // 2}, current epoch percent: 0.500, step: {n}, outputs are "
        + outputs.format(loss if n == at else "11.05")
        + "\n"
        + ("" if n % 2 else f"{time} time: {1000 + n}.500 ms, per step time: 500.0 ms\n")
        for n in range(1, 25)
    )


@pytest.mark.parametrize("outputs", OUTPUTS)
@pytest.mark.parametrize("recipe", ["mindspore", "mindspore-models"])
def test_every_form_of_the_loss_is_read(recipe: str, outputs: str, tmp_path: Path) -> None:
    read = Reader(tmp_path)
    total = sum(1000.5 + n for n in range(6, 25, 2)) / 1000
    for time in ("Train epoch", "epoch", "train epoch"):
        reading = read(grammar(recipe), format_epochs(OUTPUTS[outputs], time=time), "", KNOWN)
        assert reading.throughput == pytest.approx(16 * 20 / total), reading


@pytest.mark.parametrize("loss", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("outputs", sorted(set(OUTPUTS) - {"scientific"}))
def test_each_steps_loss_counts(outputs: str, loss: str, tmp_path: Path) -> None:
    read = Reader(tmp_path)
    # 7 is within an epoch, 8 at its end.
    for at in (7, 8):
        log = format_epochs(OUTPUTS[outputs], loss=loss, at=at)
        reading = read(grammar("mindspore-models"), log, "", KNOWN)
        assert f"the loss is {loss} at iteration {at}" in str(reading.reasons), reading
