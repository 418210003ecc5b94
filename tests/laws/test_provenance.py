"""Every form of a table says its window, its rule, and by what, when and how it was made."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path

import pytest

from hpcbert import __version__
from tests.campaign.test_foreign import deepspeed_log
from tests.kit.cli import Collect
from tests.kit.logs import write_file

pytestmark = pytest.mark.slow


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "argv", ["/bin/hpcbert", "collect", "my logs", "--token=abc123"])
    root = tmp_path / "logs" / "deepspeed"
    for number, rate in enumerate((100.0, 100.5, 99.5, 90.0), start=1):
        write_file(
            root, f"1n1g/bert_b32_fp32_{number}.log", deepspeed_log([rate] * 118, run=number)
        )
    write_file(root, "1n2g/bert_b32_fp32_1.log", deepspeed_log([180.0] * 118, samples=64))
    return root


@pytest.mark.parametrize(
    "form", ["text", "wide", "markdown", "csv", "csv-runs", "json", "dlperf-json"]
)
def test_every_form_says_how_it_was_made(logs: Path, collect: Collect, form: str) -> None:
    result = collect(logs, "--format", form, "--skip", "40")
    output = result.stdout if form != "dlperf-json" else result.stderr
    output = output.replace("\\", "")
    for part in ("rate", "iterations 41 to 120", __version__, "T", "hpcbert collect 'my logs'"):
        assert part in output, part
    assert "abc123" not in result.output


def test_markdown_explains_its_flags_and_its_range(logs: Path, collect: Collect) -> None:
    text = collect(logs, "--format", "markdown").stdout
    assert "min and max are the slowest and the fastest" in text
    assert "* outlier: one run is further from the median" in text
    assert "* single-run: one run" in text
    assert "* superlinear" not in text
    assert "* 1n1g: repeat 4: outlier (90.00, 9.8% below the median)" in text.replace("\\", "")


def test_one_run_has_no_range(logs: Path, collect: Collect) -> None:
    (row,) = (
        line
        for line in collect(logs, "--format", "markdown").stdout.splitlines()
        if "| 2 |" in line
    )
    cells = [cell.strip() for cell in row.split("|")]
    assert cells[6:9] == ["", "", ""]
    (row,) = (line for line in collect(logs).stdout.splitlines() if "180.00" in line)
    assert "180.00 .. 180.00" not in row
    assert "single-run" in row


def test_csv_by_run_has_a_line_a_run(logs: Path, collect: Collect) -> None:
    (logs / "1n2g/bert_b32_fp32_1.log").write_text("nothing\n")
    lines = list(csv.DictReader(io.StringIO(collect(logs, "--format", "csv-runs").stdout)))
    values = [(line["gpus"], line["repeat"], line["valid"], line["throughput"]) for line in lines]
    assert values == [
        ("1", "1", "yes", "100.0"),
        ("1", "2", "yes", "100.5"),
        ("1", "3", "yes", "99.5"),
        ("1", "4", "yes", "90.0"),
        ("2", "1", "no", ""),
    ]
    assert lines[3]["flags"] == "outlier"
    assert lines[4]["reasons"]
    assert all(line["log"].endswith(".log") for line in lines)
