"""Every form of a table says its window, its rule, and by what, when and how it was made."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path

import pytest

from hpcbert import __version__
from tests.kit.cli import Collect
from tests.kit.logs import log, write_file

pytestmark = pytest.mark.slow


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "argv", ["/bin/hpcbert", "collect", "my logs", "--token=abc123"])
    rates = (("1n1g", (100.0, 100.5, 99.5, 90.0)), ("1n2g", (180.0,)))
    for shape, numbers in rates:
        for repeat, rate in enumerate(numbers, 1):
            text = log(shape, rate, iters=120, start=1763717655.5 + 1000 * repeat)
            write_file(tmp_path / "logs", f"pytorch/{shape}/bert_b4_fp32_{repeat}.log", text)
    return tmp_path / "logs" / "pytorch"


@pytest.mark.parametrize(
    "form", ["text", "wide", "markdown", "csv", "csv-runs", "json", "dlperf-json"]
)
def test_every_form_says_how_it_was_made(logs: Path, collect: Collect, form: str) -> None:
    result = collect(logs, "--format", form, "--skip", "40")
    output = result.stdout if form != "dlperf-json" else result.stderr
    output = output.replace("\\", "")
    for part in ("clock", "iterations 41 to 120", __version__, "T", "hpcbert collect 'my logs'"):
        assert part in output, part
    assert "abc123" not in result.output


def test_markdown_explains_flags_and_a_range_is_of_several_runs(
    logs: Path, collect: Collect
) -> None:
    text = collect(logs, "--format", "markdown").stdout.replace("\\", "")
    assert "min and max are the slowest and the fastest" in text
    assert "* outlier: one run is further from the median" in text
    assert "* single-run: one run" in text
    assert "* superlinear" not in text
    assert "* 1n1g: repeat 4: outlier (90.00, 9.8% below the median)" in text
    (row,) = (line for line in text.splitlines() if "| 2 |" in line)
    assert [cell.strip() for cell in row.split("|")][6:9] == ["", "", ""]
    (row,) = (line for line in collect(logs).stdout.splitlines() if "180.00" in line)
    assert "180.00 .. 180.00" not in row
    assert "single-run" in row


def test_csv_by_run_has_a_line_a_run(logs: Path, collect: Collect) -> None:
    (logs / "1n2g/bert_b4_fp32_1.log").write_text("nothing\n")
    lines = list(csv.DictReader(io.StringIO(collect(logs, "--format", "csv-runs").stdout)))
    places = [(line["gpus"], line["repeat"], line["valid"]) for line in lines]
    assert places == [*(("1", str(n), "yes") for n in range(1, 5)), ("2", "1", "no")]
    rates = [float(line["throughput"]) for line in lines[:4]]
    assert rates == pytest.approx([100.0, 100.5, 99.5, 90.0], rel=1e-5)
    assert lines[4]["throughput"] == ""
    assert lines[3]["flags"] == "outlier"
    assert lines[4]["reasons"]
    assert all(line["log"].endswith(".log") for line in lines)
