"""A program whose lines look like another's: no number, and the reason names it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpcbert.logs.setting import Setting
from tests.kit import recipes
from tests.kit.cli import CollectJson, only_run
from tests.kit.logs import Reader, codes, write_file
from tests.kit.recipes import grammar, sample, setting

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


@pytest.mark.parametrize("rule", ["clock", "dlperf-time", "footer"])
def test_a_log_of_gaudi_gives_the_number_of_the_same_run(rule: str, tmp_path: Path) -> None:
    """The lines as perform_training logs them: the rate of one device comes last."""
    data = sample("ngc-pytorch")
    gaudi = data.replace(b"batch_size_per_gpu", b"batch_size_per_pu")
    extra = rb"\g<0>average_training_time_step : 0.277  average_perf_per_step : 115.4 "
    gaudi = re.sub(rb"learning_rate : \S+ (?=\n)", extra, gaudi)
    assert gaudi.count(b"average_perf_per_step") > 100
    readings = [
        recipes.Reader("ngc-pytorch", tmp_path).read(log, rule, setting("ngc-pytorch"))
        for log in (data, gaudi)
    ]
    assert readings[0].throughput is not None
    assert readings[1].throughput == readings[0].throughput
    packed = b'DLL - PARAMETER Config : ["Namespace(enable_packed_data_mode=True, x=1)"]\n' + gaudi
    refused = recipes.Reader("ngc-pytorch", tmp_path).read(packed, rule, setting("ngc-pytorch"))
    assert (refused.throughput, refused.reasons[0].code) == (None, "format")
    assert dict(readings[1].stated_facts)["batch_size_per_device"] == 32
