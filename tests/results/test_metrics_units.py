"""Rates in tokens and sequences, in every form of output and every command that has rates."""

import csv
import io
import json
from dataclasses import replace

import pytest

from hpcbert.commands.report import list_pictures
from hpcbert.model import Counted, Shape, SpeedupTable
from hpcbert.results import document, frame
from hpcbert.results.document import ResultSet
from hpcbert.results.formats import FORMATS
from hpcbert.results.metrics import convert_tables, explain_missing, mark_tables
from hpcbert.results.reduce import tabulate
from tests.kit.cases import cases
from tests.kit.cli import first_row, rows, run
from tests.kit.logs import log, write_file
from tests.results.test_reduce import MADE, make_point

LENGTH, REAL = ("sequence_length", ("512",)), ("real_token_share", ("0.5",))


def make_tables(*facts: tuple[str, tuple[str, ...]]) -> tuple[SpeedupTable, ...]:
    counted = Counted(20, 120, "iterations 21 to 120")
    return tabulate([make_point("1n2g", [99.0, 100.0, 101.0], facts=facts, counted=counted)])


@cases
def test_rates_of_a_row(facts, unit, rate, real):
    """Of 100 samples/s on two GPUs."""
    # Another table keeps the conversion from being refused as a whole.
    tables = make_tables(*facts) + make_tables(LENGTH, ("packing", ("2",)))
    converted = convert_tables(tables, unit)[0]
    row = converted.rows[0]
    assert row.median == (rate and pytest.approx(rate))
    assert row.max == (rate and pytest.approx(1.01 * rate))
    assert converted.unit == unit
    assert bool(explain_missing(tables, unit)) == (rate is None)
    data = document.tables_data(mark_tables(tables, unit))["tables"][0]["rows"][0]
    assert data["median"] == 100.0
    expected = {"unit": f"{unit}/s", "real": real, "per_gpu": rate and pytest.approx(rate / 2)}
    rates = data.get("rates", {})
    assert {key: rates[key] for key in expected if rates} == (expected if unit != "samples" else {})


CONVERTED = [name for name, form in FORMATS.items() if form.units == "convert"]


@pytest.mark.parametrize("name", CONVERTED)
def test_every_form_of_a_table_has_the_rate_its_unit_and_that_per_device(name):
    tables = convert_tables(make_tables(LENGTH, REAL), "tokens")
    text = FORMATS[name].write(tables, MADE, 0).replace(",", "")
    assert "51200" in text
    assert "tokens/s" in text
    if name != "csv-runs":
        assert "25600" in text  # per GPU, and real tokens


def test_columns_figures_and_a_narrow_terminal_have_the_unit():
    marked = mark_tables(make_tables(LENGTH, REAL), "tokens")
    text = FORMATS["json"].write(marked, MADE, 0)
    assert document.parse_results(text, file="x").tables == make_tables(LENGTH, REAL)
    tables = convert_tables(make_tables(LENGTH, REAL), "tokens")
    (line,) = csv.DictReader(io.StringIO(FORMATS["csv"].write(tables, MADE, 0)))
    assert (line["median"], line["unit"]) == ("51200.0", "tokens/s")
    assert (line["per_gpu"], line["real_tokens_per_second"]) == ("25600.0", "25600.0")
    frames = frame.rows_frame(tables), frame.runs_frame(tables)
    assert frames[0]["median"].tolist() == [51_200.0]
    assert {*frames[0]["unit"], *frames[1]["unit"]} == {"tokens/s"}
    text = FORMATS["text"].write(tables, MADE, 60)
    assert max(map(len, text.splitlines())) < 80
    assert "real tokens/s 25,600" in text
    curve = (replace(tables[0].rows[0], shape=Shape(1, 1)), *tables[0].rows)
    results = ResultSet((replace(tables[0], rows=curve),))
    panels = [panel for picture in list_pictures(results, MADE, "zh") for panel in picture.panels]
    assert "词元/秒" in {panel.y for panel in panels}


@pytest.fixture
def write_logs(tmp_path):
    """Writes four logs on one and on two GPUs, of 10 samples/s a GPU; returns their folder."""

    def write(length: int | None = None, name: str = "logs", *, real: bool = False) -> str:
        for gpus, repeat in ((gpus, repeat) for gpus in (1, 2) for repeat in (1, 2, 3, 4)):
            start = 1763717655.5 + 10_000 * (4 * gpus + repeat) + len(name)
            text = log(f"1n{gpus}g", 10.0 * gpus, iters=120, start=start)
            facts = f'"sequence_length": {length}, ' if length else ""
            text = text.replace('hpcbert-config {"', f'hpcbert-config {{{facts}"')
            text += 'hpcbert-result {"real_token_share": 0.5}\n' if real else ""
            path = f"{name}/pytorch/1n{gpus}g/bert_b4_fp32_{repeat}.log"
            write_file(tmp_path, path, f"run {name} {repeat}\n{text}")
        return str(tmp_path / name)

    return write


def test_collect_in_tokens(write_logs):
    words = ("collect", write_logs(512, real=True), "--unit", "tokens")
    rates = [row["rates"] for row in rows(run(*words, "--json").document)]
    values = [[round(rate[key]) for key in ("median", "per_gpu", "real")] for rate in rates]
    assert values == [[5120, 5120, 2560], [10240, 5120, 5120]]
    text = run(*words, "--format", "markdown").stdout
    assert "| tokens/s |" in text
    assert "| 10240" in text
    # A user may say the length.
    plain = ("collect", write_logs(name="plain"), "--set", "sequence_length=128")
    row = first_row(run(*plain, "--unit", "tokens", "--json").document)
    assert round(row["rates"]["median"]) == 1280


@cases
def test_no_rate_is_invented(words, reason, write_logs):
    answer = run("collect", write_logs(), *words)
    assert answer.returncode == 2
    assert reason in answer.stderr
    assert "tokens/s" not in answer.stdout


def test_compare_in_tokens(write_logs, tmp_path):
    long = write_logs(512, "long")
    words = ("compare", write_logs(128, "short"), long, "--unit", "tokens")
    assert run(*words).returncode == 2  # two experiments
    (comparison,) = run(*words, "--anyway", "--json").data["comparisons"]
    assert comparison["unit"] == "tokens/s"
    assert {round(point["ratio"], 6) for point in comparison["points"]} == {4.0}
    assert "BASE tokens/s" in run(*words, "--anyway").stdout
    # A point without a length fails the gate for that reason.
    saved = tmp_path / "new.json"
    run("collect", write_logs(512, "new"), "--format", "json", "--output", saved)
    data = json.loads(saved.read_text())
    data["tables"][0]["rows"][0]["metrics"]["tokens_per_second"] = None
    saved.write_text(json.dumps(data))
    answer = run("compare", long, saved, "--unit", "tokens", "--fail-under", "90%")
    assert answer.returncode == 7
    assert "1n1g" in answer.stderr
    assert "no rate in this unit" in answer.stderr


def test_predict_in_tokens():
    words = ("predict", "dlperf:oneflow-fp32-b32", "--nodes", "8")
    assert "samples/s" in run(*words).stdout
    assert "864,519 tokens/s" in run(*words, "--unit", "tokens").stdout
    data = run(*words, "--unit", "tokens", "--json").data["tables"][0]["predictions"][0]
    assert data["rates"]["throughput"] == pytest.approx(128 * data["throughput"])
    assert data["rates"]["per_gpu"] == pytest.approx(2 * data["throughput"])


@pytest.mark.slow
def test_report_and_figures_in_tokens(write_logs, tmp_path):
    target = tmp_path / "report"
    words = ("report", write_logs(512), "--unit", "tokens", "--output", target)
    assert run(*words).returncode == 0
    page = (target / "report.md").read_text(encoding="utf-8")
    assert "| tokens/s |" in page
    assert "10240" in page
    assert ">tokens/s<" in (target / "figures/scaling-1.svg").read_text(encoding="utf-8")
    row = json.loads((target / "results.json").read_text())["tables"][0]["rows"][0]
    assert (round(row["median"]), round(row["rates"]["median"])) == (10, 5120)
