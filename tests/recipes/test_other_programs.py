"""A program whose lines look like another's: no number, and the reason names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbert.logs.setting import Setting
from tests.kit.cli import CollectJson, only_run
from tests.kit.logs import Reader, codes, write_file
from tests.kit.recipes import grammar, sample

_STAMP = "I0302 02:{:02d}:{:02d}.095144 140737349982016 model_training_utils.py"
_NVIDIA = "NVIDIA's TensorFlow 2 BERT (DeepLearningExamples)"


def format_nvidia(*, steps: bool = True, perf: bool = True) -> str:
    """Return lines of NVIDIA's TensorFlow 2 BERT: 16 samples a step, one each 2.18 s."""
    text = ""
    for n in range(1, 121):
        stamp = _STAMP.format(*divmod(int(n * 2.18), 60))
        text += f"{stamp}:538] Step: {n} Lr 2.9e-05 Loss scale 32768\n"
        if steps:
            text += f"{stamp}:539] Train Step: {n}/120  / loss = 10.21 / time = 0.143 sec\n"
        else:
            text += f"{stamp}:539] Train Step: {n}/120  / loss = 10.21\n"
        text += f"{stamp}:540] Perf 7.35\n" if perf else ""
    return text


@pytest.mark.parametrize("recipe", ["tf2", "perfzero"])
@pytest.mark.parametrize(("steps", "perf"), [(True, True), (True, False), (False, True)])
def test_nvidias_tf2_is_not_read_as_the_official_program(
    recipe: str, *, steps: bool, perf: bool, tmp_path: Path
) -> None:
    setting = Setting(nodes=1, gpus_per_node=1, gpus=1, batch_size_per_device=2)
    text = format_nvidia(steps=steps, perf=perf)
    for rule in grammar(recipe).rules:
        for body in (text, text.replace("\n", "\r\n"), sample(recipe).decode() + text):
            reading = Reader(tmp_path)(grammar(recipe), body, rule.name, setting)
            assert reading.throughput is None, rule.name
        reading = Reader(tmp_path)(grammar(recipe), text, rule.name, setting)
        assert codes(reading) == ["format"]
        assert _NVIDIA in str(reading.reasons[0])


def test_the_excerpt_of_an_issue_is_refused_by_its_name(
    shared: Path, tmp_path: Path, run: CollectJson
) -> None:
    text = (shared / "logs/excerpts/tf2_ngc_bert_perf_lines.txt").read_text()
    log = write_file(tmp_path, "logs/run_1.log", text)
    document = run(
        log, "--fw", "tf2", "--pattern", "run_{repeat}.log", "--nodes", "1", "--gpus-per-node",
        "1", "--batch-size", "2", "--precision", "fp16", "--skip", "83", "--iters", "84",
    )  # fmt: skip
    (reason,) = only_run(document)["reasons"]
    assert reason["code"] == "format"
    assert _NVIDIA in reason["detail"]


def test_any_recipe_may_name_another_program(tmp_path: Path) -> None:
    toml = """
[[log.records]]
name = "step"
contains = " samples/s"
match = 'step (?P<iteration>\\d+): (?P<rate>[\\d.]+) samples/s'

[[log.rules]]
name = "rate"
kind = "rate"

[[log.others]]
contains = "forked "
match = '^forked by (?:\\w+)$'
program = "a fork"
"""
    text = "".join(f"step {n}: 5.0 samples/s\n" for n in range(1, 121))
    setting = Setting(nodes=1, gpus_per_node=1, gpus=1)
    assert Reader(tmp_path)(toml, "forked twice by x\n" + text, "", setting).throughput == 5
    refused = Reader(tmp_path)(toml, "forked by x\n" + text, "", setting)
    assert "'forked by x' is a line of a fork" in str(refused.reasons[0])
