"""OneFlow's two programs print one line in several forms; each is read by every rule of its recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbert.logs.setting import Setting
from tests.kit.logs import Reader
from tests.kit.recipes import grammar

# Oneflow-Inc/OneFlow-Benchmark@854ddd0 with a time; Oneflow-Inc/models@fc7cbf8, utils/metric.py: the
# epoch stands between throughput and time, and the accuracy before them.
FORMS = {
    "benchmark": "throughput: {rate:.3f} {time}",
    "accuracy-alone": "pred_acc: 0.487, throughput: {rate:.3f} {time}",
    "epoch-alone": "throughput: {rate:.3f}, epoch: 0 {time}",
    "models": "pred_acc: 0.487, throughput: {rate:.3f}, epoch: 0 {time}",
    "models-later-epoch": "pred_acc: 0.487, throughput: {rate:.3f}, epoch: 12 {time}",
}


def format_log(form: str) -> str:
    return "".join(
        f"step: {step}, total_loss: 10.992, mlm_loss: 10.299, nsp_loss: 0.694, "
        + FORMS[form].format(rate=64, time=1795317070.5 + step / 4)
        + "\n"
        for step in range(19, 120, 20)
    )


READ = [
    *(("oneflow", form) for form in FORMS),
    *(("oneflow-models", form) for form in FORMS if form != "benchmark"),
]


@pytest.mark.parametrize(("recipe", "form"), READ)
def test_both_rules_read_every_form_of_the_line(recipe: str, form: str, tmp_path: Path) -> None:
    setting = Setting(nodes=1, gpus_per_node=2, batch_size_per_device=8, skip=20, iters=120)
    read = Reader(tmp_path)
    for rule in ("dlperf-time", "rate"):
        reading = read(grammar(recipe), format_log(form), rule, setting)
        assert reading.throughput == pytest.approx(64), reading
