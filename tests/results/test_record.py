"""The published record: every number is that of its source; published numbers next to yours."""

import csv
import re
from dataclasses import replace
from statistics import median

import pytest

from hpcbert.commands.collect import find_places, load_result_set
from hpcbert.errors import UsageError
from hpcbert.results import record
from hpcbert.results.document import parse_results, render_results
from hpcbert.results.reduce import tabulate
from tests.kit.cases import cases
from tests.kit.cli import run
from tests.kit.logs import write_logs
from tests.kit.recipes import NAMES, grammar
from tests.results.test_reduce import GROUP, make_point

SOURCES = [record.load_source(name) for name in record.source_names()]
TABLES = [table for source in SOURCES for table in source.tables]


def test_every_table_has_its_source_and_is_found_by_the_beginning_of_its_name():
    assert record.source_names() == (
        "aws-neuron", "deepspeed", "dlperf", "milabench", "mlperf", "modernbert", "mosaicbert", "nemo",
        "nvidia", "oneflow", "paddle-perf", "superbench",
    )  # fmt: skip
    assert sum(len(table.points) for table in TABLES) > 800
    rounds = {table.name.partition("-")[0] for table in record.load_source("mlperf").tables}
    numbers = ["0.7", "1.0", "1.1", "2.0", "2.1", "3.0", "3.1", "4.0", "4.1", "5.0"]
    assert rounds == {f"v{number}" for number in numbers}
    names = [table.full_name for table in TABLES]
    assert len(set(names)) == len(names)
    for table in TABLES:
        assert re.fullmatch(r"[0-9a-f]{40}|", table.commit), table.name
        assert table.path
        assert table.accelerator, table.name
        assert (table.year or 0) >= 2018, table.name
        assert all(point.value or point.minutes for point in table.points), table.name
        if table.framework in NAMES:
            if table.commit and any(point.value for point in table.points):
                assert (table.sequence_length is None) == (table.model == "rn50"), table.name
            rules = {rule.name for rule in grammar(table.framework).rules}
            assert {table.rule, *(point.rule for point in table.points)} - {""} <= rules
        assert len({point.shape for point in table.points}) == len(table.points), table.name
        assert all(error.what and error.proof for error in table.errors)
        assert record.find_tables(table.full_name)
        for point in table.points:
            if point.value and point.runs:
                assert median(point.runs) == pytest.approx(point.value, abs=0.006)

    def find_names(word):
        return [table.name for table in record.find_tables(word)]

    assert sorted(find_names("dlperf:oneflow-fp32")) == [
        "oneflow-fp32-b32", "oneflow-fp32-b64", "oneflow-fp32-b96",
    ]  # fmt: skip
    assert find_names("dlperf:oneflow-fp16-b64-v0.4.0") == ["oneflow-fp16-b64-v0.4.0"]
    assert len(find_names("dlperf")) == len(find_names("dlperf:")) > 30
    names = [name for name in find_names("dlperf:tf2") if "fp32-b32" in name]
    assert names == ["tf2-fp32-b32", "tf2-fp32-b32-xla"]
    for word in ("nobody", "dlperf:nothing", "dlperf:oneflow-fp3"):
        with pytest.raises(UsageError, match="The record has no"):
            record.find_tables(word)


@pytest.mark.needs("published")
def test_every_number_that_was_read_is_in_it(shared):
    """Each by its place, precision, batch size per device, nodes, GPUs and value."""
    expected = {
        (f"{source.repository}@{table.commit[:7]}:{table.path}", table.precision,
         table.batch_size_per_device, point.shape.nodes, point.shape.gpus, point.value)
        for source in SOURCES
        for table in source.tables
        for point in table.points
    }  # fmt: skip
    read = set()
    with (shared / "logs" / "published.tsv").open(newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            # What a script printed, beside the table of the same page, is no table.
            if "printed-aggregate" not in row["source"]:
                place, numbers = row["source"].partition("#")[0], ("batch_per_gpu", "nodes", "gpus")
                values = (int(row[name]) for name in numbers)
                read.add((place, row["precision"], *values, float(row["samples_per_s"])))
    assert len(read) > 580
    assert read <= expected


@cases
def test_rows_that_give_no_ratio_are_left_out(name, words):
    with pytest.raises(UsageError, match=words):
        record.published_results([name])
    results = record.published_results([name, "dlperf:oneflow-fp32"])
    assert any(words in warning for warning in results.warnings)
    assert {table.group.framework for table in results.tables} == {"oneflow"}


def test_tables_are_listed_and_shown_and_rows_have_year_program_and_rate():
    data = run("record", "--json").data
    assert [entry["name"] for entry in data] == list(record.source_names())
    assert sum(len(entry["tables"]) for entry in data) == len(TABLES)
    assert "dlperf" in run("record", "list").stdout
    text = run("record", "show", "dlperf:deepspeed-fp32-b32").stdout
    assert "Oneflow-Inc/DLPerf@c202878" in text
    assert "known error: Speedups above the number of GPUs do not show scaling" in text
    words = ("record", "--model", "bert-large", "--gpus", "8")
    rows = run(*words, "--json").data["rows"]
    assert len(rows) > 150
    assert {(row["model"], row["devices"]) for row in rows} == {("bert-large", 8)}
    values = [row["value"] for row in rows if row["value"] and not row["task"]]
    assert values == sorted(values, reverse=True)
    assert (rows[0]["year"], rows[0]["precision"]) == (2025, "fp8")
    text = run(*words).stdout
    assert len(text.splitlines()) < 60
    assert "203.648" in text, "a row with minutes alone"
    assert "--all" in text
    assert len(run(*words, "--all").stdout.splitlines()) > 150
    for option, value, message in (
        ("--model", "bert-larg", "bert-large"), ("--gpus", "7", "no such row"),
        ("--accelerator", "abacus", "no such row"),
    ):  # fmt: skip
        assert message in run("record", option, value, status=2).stderr


def test_logs_of_a_model_that_a_source_lacks_or_without_a_framework_are_not_checked(shared):
    folder = shared / "logs" / "Oneflow-Inc+DLPerf/e36df2e/Tensorflow/resnet50v1.5/logs"
    check = ("record", "check", folder)
    result = run(*check, "--fw", "tf2", "--against", "nvidia", "--json", status=2)
    assert "rn50" in result.error["message"]
    assert run(*check, "--against", "dlperf", "--rule", "rate").returncode == 2


def test_a_published_number_stands_beside_ones_own_and_is_compared(tmp_path, empty_directory):
    rates = [1001.0, 1002.0, 1003.0, 1004.0, 1005.0]
    log_folder = write_logs(tmp_path / "own", {"1n8g": rates}, batch=32)
    collect = ("collect", log_folder, "--model", "bert-base", "--beside")
    result = run(*collect, "dlperf", "--json", status=0)
    (oneflow,) = [
        row for row in result.data["beside"] if row["published"]["framework"] == "oneflow"
    ]
    row, ratio = oneflow["published"], pytest.approx(1105.55 / 1003, rel=1e-4)
    assert (row["median"], row["per_gpu"]) == (1105.55, pytest.approx(1105.55 / 8))
    assert (oneflow["ratio"], row["origin"]["name"]) == (ratio, "dlperf:oneflow-fp32-b32")
    assert "GPU" in [difference["what"] for difference in oneflow["differences"]]
    for form, value in (("text", "1,105.55"), ("markdown", "1105.55")):
        text = run(*collect, "dlperf:oneflow", "--format", form).stdout
        parts = ("dlperf:oneflow-fp32-b32", value, "GPU: Tesla V100-SXM2-16GB there, unknown here")
        assert [part for part in parts if part not in text] == [], form
    text = run(*collect, "nvidia").stdout
    assert "The record has no number for these devices, models" in text
    for line in ("nobody", "dlperf:nothing", "dlperf --format csv", "dlperf --output x.json"):
        assert run(*collect, *line.split(), "--json", status=2).error["message"]
    options = ("--model", "bert-base", "--by", "framework")
    words = ("compare", "dlperf:oneflow-fp32", log_folder, *options)
    (comparison,) = run(*words, "--json").data["comparisons"]
    # What is collected comes first, and what was published after it.
    (point,) = comparison["points"]
    assert (point["ratio"], point["verdict"]) == (ratio, "unknown")
    text = run(*words).stdout
    assert "one number was published, without its runs" in text
    assert "per GPU" in text
    pair = ("dlperf:oneflow-fp16", "dlperf:oneflow-fp16-b64-v0.4.0")
    (comparison,) = run("compare", *pair, "--json").data["comparisons"]
    assert len(comparison["points"]) == 4
    differing = {part["what"] for part in comparison["points"][0]["differences"]}
    assert differing == {"GPU driver", "package oneflow"}
    results = load_result_set(["dlperf:deepspeed-fp32-b32", "dlperf:oneflow-fp32"], find_places())
    assert parse_results(render_results(results), file="x.json") == results


@cases
def test_the_line_next_to_yours_is_of_the_same_work(group, length, published: list[str] | None):
    facts = (("sequence_length", (length,)),) if length else ()
    own = replace(GROUP, **group)
    twins = record.find_twins(tabulate([make_point("1n1g", [100.0], group=own, facts=facts)]))
    frameworks = {table.group.framework for table in twins}
    assert frameworks == set(published) if published is not None else frameworks
