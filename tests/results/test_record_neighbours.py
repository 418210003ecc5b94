"""Published numbers beside one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbert.model import Group, Measured, Run, Shape
from hpcbert.results.record import find_twins
from hpcbert.results.reduce import tabulate
from tests.kit import cli, logs
from tests.kit.cases import cases
from tests.kit.cli import CliResult, run


@pytest.fixture
def log_folder(tmp_path: Path, empty_directory: None) -> Path:
    """Logs of a point that DLPerf published too."""
    for number in range(1, 6):
        text = logs.log("1n8g", 1000.0 + number, iters=120, batch=32, start=1.7e9 + 1e4 * number)
        logs.write_file(
            tmp_path / "own", f"pytorch/bert/bz32/1n8g/bert_b32_fp32_{number}.log", text
        )
    return tmp_path / "own"


def collect(path: Path, *words: object) -> CliResult:
    return cli.run("collect", path, "--model", "bert-base", *words)


def test_every_framework_stands_beside_ones_own(log_folder: Path) -> None:
    result = collect(log_folder, "--beside", "dlperf", "--json")
    (oneflow,) = [
        neighbour
        for neighbour in result.data["beside"]
        if neighbour["published"]["framework"] == "oneflow"
    ]
    assert oneflow["published"]["median"] == 1105.55
    assert oneflow["published"]["per_gpu"] == pytest.approx(1105.55 / 8)
    assert oneflow["ratio"] == pytest.approx(1105.55 / 1003, rel=1e-4)
    assert oneflow["published"]["origin"]["name"] == "dlperf:oneflow-fp32-b32"
    assert "GPU" in [difference["what"] for difference in oneflow["differences"]]
    assert result.returncode == 0


@pytest.mark.parametrize(("form", "median"), [("text", "1,105.55"), ("markdown", "1105.55")])
def test_it_is_said_in_words_that_machines_differ(log_folder: Path, form: str, median: str) -> None:
    text = collect(log_folder, "--beside", "dlperf:oneflow", "--format", form).stdout
    assert "dlperf:oneflow-fp32-b32" in text
    assert median in text
    assert "GPU: Tesla V100-SXM2-16GB there, unknown here" in text


def test_nothing_of_the_kind_is_said(log_folder: Path) -> None:
    text = collect(log_folder, "--beside", "nvidia").stdout
    assert "nvidia has no number for these devices, models" in text


@pytest.mark.parametrize(
    "words",
    ["nobody", "dlperf:nothing", "dlperf --format csv", "dlperf --output x.json"],
)
def test_what_cannot_stand_beside_is_refused(log_folder: Path, words: str) -> None:
    result = collect(log_folder, "--beside", *words.split(), "--json")
    assert result.returncode == 2
    assert result.error["message"]


def test_the_record_is_compared_with(log_folder: Path) -> None:
    options = ("--model", "bert-base", "--by", "framework")
    words = ("compare", "dlperf:oneflow-fp32", log_folder, *options)
    (comparison,) = cli.run(*words, "--json").data["comparisons"]
    # What is collected comes first, and what was published after it.
    (point,) = comparison["points"]
    assert point["ratio"] == pytest.approx(1105.55 / 1003, rel=1e-4)
    assert point["verdict"] == "unknown"
    text = cli.run(*words).stdout
    assert "one number was published, without its runs" in text
    assert "per GPU" in text


def test_two_tables_of_the_record_are_compared(empty_directory: None) -> None:
    words = ("compare", "dlperf:oneflow-fp16", "dlperf:oneflow-fp16-b64-v0.4.0", "--json")
    (comparison,) = cli.run(*words).data["comparisons"]
    assert len(comparison["points"]) == 4
    differing = {part["what"] for part in comparison["points"][0]["differences"]}
    assert differing == {"GPU driver", "package oneflow"}


def test_results_with_the_record_are_kept(log_folder: Path, tmp_path: Path) -> None:
    from hpcbert.commands.collect import find_places, load_result_set
    from hpcbert.results.document import parse_results, render_results

    result_set = load_result_set(
        ["dlperf:deepspeed-fp32-b32", "dlperf:oneflow-fp32"], find_places()
    )
    assert parse_results(render_results(result_set), file="x.json") == result_set


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "variant", "length", "published"),
    [
        ("oneflow", "", "128", {"oneflow"}),
        ("oneflow", "", "512", set()),
        ("oneflow", "", "", set()),
        ("oneflow", "acc4", "128", set()),
        ("mine", "", "128", None),
    ],
    ids=["same", "other length", "unknown length", "accumulation", "other framework"],
)
def test_the_line_next_to_yours_is_of_the_same_work(
    framework: str, variant: str, length: str, published: set[str] | None
) -> None:
    facts = (("sequence_length", (length,)),) if length else ()
    group = Group(framework, "bert-base", "fp32", 32, "rate", variant)
    run = Run(1, 0, 100.0, True, (), "-", "none", "")
    tables = tabulate([Measured(group, Shape(1, 1), 1, (run,), facts=facts)])
    twins = find_twins(tables)
    assert {table.group.framework for table in twins} == published or (published is None and twins)


# --- List -----------------------------------------------------------------------------------------


def test_a_list_has_year_program_and_rate_of_each_number() -> None:
    words = ("record", "--model", "bert-large", "--gpus", "8")
    rows = run(*words, "--json").data["rows"]
    assert len(rows) > 150
    assert {(row["model"], row["devices"]) for row in rows} == {("bert-large", 8)}
    values = [row["value"] for row in rows if row["value"] and not row["task"]]
    assert values == sorted(values, reverse=True)
    assert (rows[0]["year"], rows[0]["precision"]) == (2025, "fp8")
    text = run(*words).stdout
    assert len(text.splitlines()) < 45
    assert "203.648" in text, "a row with minutes alone"
    assert "--all" in text
    assert len(run(*words, "--all").stdout.splitlines()) > 150


@cases
def test_a_list_of_nothing_is_an_error(words: tuple[str, ...], message: str) -> None:
    result = run("record", *words)
    assert result.returncode == 2
    assert message in result.stderr
