"""Real logs, and what was published of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpcbert.logs import scan
from hpcbert.logs.grammar import Grammar
from hpcbert.logs.setting import Setting
from tests.kit.cases import cases
from tests.kit.logs import TEST_RECIPES, parse
from tests.kit.shared import index

pytestmark = pytest.mark.slow

RECIPES = {"ngc_tf1": "ngc-tf1", "ngc_pytorch": "ngc-pytorch", "paddle": "paddle"}
LAST = re.compile(rb"(?:Iteration: |step:? )(\d+)[ ,]")


def parse_recipe(name: str) -> Grammar:
    return parse(TEST_RECIPES / name / "recipe.toml")


def rule_of(note: str) -> tuple[str, int]:
    """Return the rule that INDEX.tsv found nearest to the published value, and its warm-up."""
    if "training_sequences_per_second" in note or "Throughput Average" in note:
        return "footer", 0
    if match := re.search(r"Iteration>=(\d+)", note):
        return "rate", int(match[1]) - 1
    words = {"lines[1:]": "all-but-first", "lines[5:]": "all-but-five", "lines[10:]": "all-but-ten"}
    words |= {"all throughput_train": "all", "median(ips)": "median"}
    return next(rule for text, rule in words.items() if text in note), 0


@pytest.mark.parametrize(
    ("framework", "count"), [("ngc_tf1", 48), ("ngc_pytorch", 45), ("paddle", 32)]
)
@pytest.mark.needs("published")
def test_logs_of_paddles_reports_reproduce_their_closest_rule(
    shared: Path, framework: str, count: int
) -> None:
    grammar = parse_recipe(RECIPES[framework])
    rows = [
        row
        for row in index(shared)
        if row.framework == framework and row.name.startswith("PaddlePaddle")
    ]
    assert len(rows) == count
    for row in rows:
        name, skip = rule_of(row.note)
        setting = Setting(
            nodes=row.nodes,
            gpus=row.gpus,
            batch_size_per_device=row.batch_size,
            skip=skip,
            iters=max(map(int, LAST.findall(row.path.read_bytes())), default=0),
        )
        expected = float(re.search(r"= ([\d.]+) \(rel err", row.note)[1])  # type: ignore[index]
        reading = scan.read(row.path, grammar, grammar.rule(name), setting)
        assert reading.throughput == pytest.approx(expected, abs=6e-4), row.name


@cases
def test_mlperf_logs_through_labels_and_pyxis(
    shared: Path, log: str, rule: str, expected: float
) -> None:
    grammar = parse_recipe("mlperf")
    path = shared / "logs" / f"mlcommons+training_results_{log}"
    reading = scan.read(path, grammar, grammar.rule(rule), Setting())
    assert reading.throughput == pytest.approx(expected, abs=6e-3)


@pytest.mark.needs("published")
def test_deepspeeds_own_timer_by_rate_and_clock(shared: Path) -> None:
    grammar = parse_recipe("deepspeed")
    folder = "DeepSpeed-Chat/training/step1_supervised_finetuning/training_log_output"
    path = shared / "logs/microsoft+DeepSpeedExamples/83757d9/applications" / folder
    log = path / "opt-1.3b-globalBatchSize128.log"
    setting = Setting(nodes=1, gpus_per_node=8, gpus=8, batch_size_per_device=16)
    setting = setting._replace(skip=20, iters=120)
    current = scan.read(log, grammar, grammar.rule("current"), setting)
    clock = scan.read(log, grammar, grammar.rule("clock"), setting)
    assert current.throughput == pytest.approx(172.1, abs=0.5)
    assert clock.throughput == pytest.approx(current.throughput, rel=0.01)


@pytest.mark.needs("published")
def test_a_step_rate_of_paddle_is_no_address(shared: Path) -> None:
    grammar = parse_recipe("paddle")
    log = shared / "logs/PaddlePaddle+Perf/v2.0-ee2e639/Bert/logs/base_bs48_fp32_gpu8.log"
    assert b"ips: 127.0.0.1" in log.read_bytes()
    assert scan.read_progress(log, grammar).iteration == 500
