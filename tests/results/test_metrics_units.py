"""Rates in tokens and sequences, in every form of output and every command that has rates."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hpcbert.model import (
    Counted,
    Facts,
    Group,
    Measured,
    Provenance,
    Run,
    Shape,
    SpeedupTable,
    Unit,
)
from hpcbert.results import document, frame
from hpcbert.results.document import ResultSet
from hpcbert.results.formats import FORMATS
from hpcbert.results.metrics import convert_tables, explain_missing, mark_tables
from hpcbert.results.reduce import tabulate
from tests.kit.cases import cases
from tests.kit.cli import run
from tests.kit.logs import log, write_file

MADE = Provenance("1.2.3", "2026-11-22T10:00:00Z", "hpcbert collect")
LENGTH = ("sequence_length", ("512",))
REAL = ("real_token_share", ("0.5",))
PACKED = ("packing", ("2",))


def make_tables(facts: Facts, speed: float = 100.0) -> tuple[SpeedupTable, ...]:
    numbers = (0.99 * speed, speed, 1.01 * speed)
    runs = tuple(
        Run(number, 0, value, True, (), "-", "none", f"{number}.log")
        for number, value in enumerate(numbers, 1)
    )
    group = Group("pytorch", "bert-base", "bf16", 32, "rate")
    counted = Counted(20, 120, "iterations 21 to 120")
    return tabulate([Measured(group, Shape(1, 2), 3, runs, facts=facts, counted=counted)])


@cases
def test_rates_of_a_row(facts: Facts, unit: Unit, rate: float | None, real: float | None) -> None:
    """Of 100 samples/s on two GPUs."""
    # Another table keeps the conversion from being refused as a whole.
    tables = make_tables(facts) + make_tables((LENGTH, PACKED))
    converted = convert_tables(tables, unit)[0]
    row = converted.rows[0]
    assert row.median == (rate and pytest.approx(rate))
    assert row.max == (rate and pytest.approx(1.01 * rate))
    assert converted.unit == unit
    assert bool(explain_missing(tables, unit)) == (rate is None)
    data = document.tables_data(mark_tables(tables, unit))["tables"][0]["rows"][0]
    assert data["median"] == 100.0
    if unit == "samples":
        assert "rates" not in data
        return
    rates = data["rates"]
    assert (rates["unit"], rates["real"]) == (f"{unit}/s", real)
    assert rates["per_gpu"] == (rate and pytest.approx(rate / 2))


@pytest.mark.parametrize(
    "name", [name for name, form in FORMATS.items() if form.units == "convert"]
)
def test_every_form_of_a_table_has_the_rate_its_unit_and_that_per_device(name: str) -> None:
    tables = convert_tables(make_tables((LENGTH, REAL)), "tokens")
    text = FORMATS[name].write(tables, MADE, 0).replace(",", "")
    assert "51200" in text
    assert "tokens/s" in text
    if name != "csv-runs":
        assert "25600" in text  # per GPU, and real tokens


def test_spreadsheets_and_frames_have_a_column_with_the_unit() -> None:
    tables = convert_tables(make_tables((LENGTH, REAL)), "tokens")
    (line,) = csv.DictReader(io.StringIO(FORMATS["csv"].write(tables, MADE, 0)))
    assert (line["median"], line["unit"]) == ("51200.0", "tokens/s")
    assert (line["per_gpu"], line["real_tokens_per_second"]) == ("25600.0", "25600.0")
    rows, runs = frame.rows_frame(tables), frame.runs_frame(tables)
    assert rows["median"].tolist() == [51_200.0]
    assert {*rows["unit"], *runs["unit"]} == {"tokens/s"}


def test_a_narrow_terminal_keeps_the_rates() -> None:
    tables = convert_tables(make_tables((LENGTH, REAL)), "tokens")
    text = FORMATS["text"].write(tables, MADE, 60)
    assert max(map(len, text.splitlines())) < 80
    assert "real tokens/s 25,600" in text


def test_a_file_with_rates_reads_as_before() -> None:
    tables = make_tables((LENGTH, REAL))
    text = FORMATS["json"].write(mark_tables(tables, "tokens"), MADE, 0)
    assert document.parse_results(text, file="x").tables == tables


# --- the commands ---------------------------------------------------------------------------------


@pytest.fixture
def write_logs(tmp_path: Path) -> Callable[..., str]:
    """Writes three logs on one and on two GPUs, of 10 samples/s a GPU; returns their folder."""

    def write(length: int | None = None, name: str = "logs", *, real: bool = False) -> str:
        for gpus in (1, 2):
            for repeat in (1, 2, 3, 4):
                start = 1763717655.5 + 10_000 * (4 * gpus + repeat) + len(name)
                text = log(f"1n{gpus}g", 10.0 * gpus, iters=120, start=start)
                facts = f'"sequence_length": {length}, ' if length else ""
                text = text.replace('hpcbert-config {"', f'hpcbert-config {{{facts}"')
                if real:
                    text += 'hpcbert-result {"real_token_share": 0.5}\n'
                path = f"{name}/pytorch/1n{gpus}g/bert_b4_fp32_{repeat}.log"
                write_file(tmp_path, path, f"run {name} {repeat}\n{text}")
        return str(tmp_path / name)

    return write


def test_collect_in_tokens(write_logs: Callable[..., str]) -> None:
    logs = write_logs(512, real=True)
    answer = run("collect", logs, "--unit", "tokens", "--json")
    rates = [row["rates"] for row in answer.data["tables"][0]["rows"]]
    assert [round(rate["median"]) for rate in rates] == [5120, 10240]
    assert [round(rate["per_gpu"]) for rate in rates] == [5120, 5120]
    assert [round(rate["real"]) for rate in rates] == [2560, 5120]
    text = run("collect", logs, "--unit", "tokens", "--format", "markdown").stdout
    assert "| tokens/s |" in text
    assert "| 10240" in text


@cases
def test_no_rate_is_invented(
    words: tuple[str, ...], reason: str, write_logs: Callable[..., str]
) -> None:
    answer = run("collect", write_logs(), *words)
    assert answer.returncode == 2
    assert reason in answer.stderr
    assert "tokens/s" not in answer.stdout


def test_a_user_may_say_the_length(write_logs: Callable[..., str]) -> None:
    words = ("--set", "sequence_length=128", "--unit", "tokens", "--json")
    row = run("collect", write_logs(), *words).data["tables"][0]["rows"][0]
    assert round(row["rates"]["median"]) == 1280


def test_compare_in_tokens(write_logs: Callable[..., str]) -> None:
    short, long = write_logs(128, "short"), write_logs(512, "long")
    assert run("compare", short, long, "--unit", "tokens").returncode == 2  # two experiments
    data = run("compare", short, long, "--unit", "tokens", "--anyway", "--json").data
    (comparison,) = data["comparisons"]
    assert comparison["unit"] == "tokens/s"
    assert {round(point["ratio"], 6) for point in comparison["points"]} == {4.0}
    text = run("compare", short, long, "--unit", "tokens", "--anyway").stdout
    assert "BASE tokens/s" in text


def test_a_point_without_a_length_fails_the_gate_for_that_reason(
    write_logs: Callable[..., str], tmp_path: Path
) -> None:
    base, saved = write_logs(512, "base"), tmp_path / "new.json"
    run("collect", write_logs(512, "new"), "--format", "json", "--output", str(saved))
    data = json.loads(saved.read_text())
    data["tables"][0]["rows"][0]["metrics"]["tokens_per_second"] = None
    saved.write_text(json.dumps(data))
    words = ("compare", base, str(saved), "--unit", "tokens", "--fail-under", "90%")
    answer = run(*words)
    assert answer.returncode == 7
    assert "1n1g" in answer.stderr
    assert "no rate in this unit" in answer.stderr


def test_predict_in_tokens() -> None:
    words = ("predict", "dlperf:oneflow-fp32-b32", "--nodes", "8")
    samples, tokens = run(*words).stdout, run(*words, "--unit", "tokens").stdout
    assert "samples/s" in samples
    assert "864,519 tokens/s" in tokens
    data = run(*words, "--unit", "tokens", "--json").data["tables"][0]["predictions"][0]
    assert data["rates"]["throughput"] == pytest.approx(128 * data["throughput"])
    assert data["rates"]["per_gpu"] == pytest.approx(2 * data["throughput"])


@pytest.mark.slow
def test_report_and_figures_in_tokens(write_logs: Callable[..., str], tmp_path: Path) -> None:
    logs, target = write_logs(512), tmp_path / "report"
    words = ("report", logs, "--unit", "tokens", "--output", str(target))
    assert run(*words).returncode == 0
    page = (target / "report.md").read_text(encoding="utf-8")
    assert "| tokens/s |" in page
    assert "10240" in page
    assert ">tokens/s<" in (target / "figures/scaling-1.svg").read_text(encoding="utf-8")
    saved = json.loads((target / "results.json").read_text(encoding="utf-8"))
    row = saved["tables"][0]["rows"][0]
    assert (round(row["median"]), round(row["rates"]["median"])) == (10, 5120)


def test_the_words_of_figures_follow_the_tables() -> None:
    from hpcbert.commands.report import list_pictures

    (table,) = make_tables((LENGTH,))
    rows = (replace(table.rows[0], shape=Shape(1, 1)), *table.rows)
    results = ResultSet(convert_tables([replace(table, rows=rows)], "tokens"))
    panels = [panel for picture in list_pictures(results, MADE, "zh") for panel in picture.panels]
    assert "词元/秒" in {panel.y for panel in panels}
