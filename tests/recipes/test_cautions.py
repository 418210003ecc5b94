"""Rates that upstream prints wrongly: taken only when asked for by name, and never without a word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hpcbert.cli.collect import collect as command
from hpcbert.config import places

TEMPLATES = places.package_templates()


def run_collect(*words: str) -> Result:
    return CliRunner().invoke(command, [*words, "--json"])


def test_mlperfs_printed_rate_is_given_with_a_warning_and_is_too_high(shared: Path) -> None:
    release = shared / "logs" / "mlcommons+training_results_v1.0" / "50619b5"
    logs = str(release / "NVIDIA/results/dgxa100_ngc21.05_pytorch")
    words = [logs, "--fw", "mlperf-bert", "--pattern", "result_{repeat}.txt", "--nodes", "1"]
    words += ["--gpus-per-node", "8", "--batch-size", "56", "--precision", "fp16"]
    document = json.loads(run_collect(*words, "--rule", "printed").stdout)
    (row,) = document["data"]["tables"][0]["rows"]
    # Samples over run_start to run_stop of these ten logs: 2082 to 2205 a second.
    assert (round(row["min"]), round(row["max"])) == (2193, 2943)
    assert "--max_steps" in document["warnings"][0]


@pytest.mark.parametrize(
    ("framework", "rule"),
    [("ngc-tf1", "footer"), ("deepspeed", "dlperf-rate"), ("oneflow", "rate")],
)
def test_a_rule_with_a_caution_warns_and_others_do_not(
    framework: str, rule: str, tmp_path: Path
) -> None:
    folder = tmp_path / "logs" / framework / "bert/bz32/4n8g"
    folder.mkdir(parents=True)
    sample = (TEMPLATES / framework / "sample.log").read_bytes()
    (folder / "bert_b32_fp32_1.log").write_bytes(sample)
    document = json.loads(run_collect(str(tmp_path), "--rule", rule).stdout)
    warned = [text for text in document["warnings"] if text.startswith(f"rule {rule}: ")]
    assert len(warned) == (framework != "oneflow")
