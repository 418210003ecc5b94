"""The published record: every number has a source, and is the one that the source has."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from hpcbert.errors import UsageError
from hpcbert.logs.arithmetic import median
from hpcbert.results import record
from hpcbert.results.record import (
    published_results,
    published_runs,
)
from tests.kit.cases import cases
from tests.kit.cli import CliResult, run
from tests.kit.needs import require
from tests.kit.recipes import NAMES, grammar

SOURCES = [record.load_source(name) for name in record.source_names()]
TABLES = [(source, table) for source in SOURCES for table in source.tables]
# Shared rows that are no table: what a script printed, beside the table of the same page.
PRINTED = "printed-aggregate"


def test_the_sources_are_there() -> None:
    assert record.source_names() == (
        "aws-neuron", "deepspeed", "dlperf", "milabench", "mlperf", "modernbert", "mosaicbert", "nemo",
        "nvidia", "oneflow", "paddle-perf", "superbench",
    )  # fmt: skip
    assert sum(len(table.points) for _, table in TABLES) > 800
    rounds = {table.name.partition("-")[0] for table in record.load_source("mlperf").tables}
    assert rounds == {
        f"v{name}"
        for name in ["0.7", "1.0", "1.1", "2.0", "2.1", "3.0", "3.1", "4.0", "4.1", "5.0"]
    }


def test_every_table_can_be_found_again() -> None:
    names = [source.full_name(table) for source, table in TABLES]
    assert len(set(names)) == len(names)
    for source, table in TABLES:
        assert re.fullmatch(r"[0-9a-f]{40}|", table.commit), table.name
        assert table.path
        assert source.accelerator_of(table), table.name
        assert (source.year_of(table) or 0) >= 2018, table.name
        assert all(point.value or point.minutes for point in table.points), table.name
        is_measured = any(point.value for point in table.points)
        if table.framework in NAMES and table.commit and is_measured:
            assert (table.sequence_length is None) == (table.model == "rn50"), table.name
        shapes = [point.shape for point in table.points]
        assert len(set(shapes)) == len(shapes), table.name
        assert all(error.what and error.proof for error in table.errors)
        assert record.find_tables(source.full_name(table))


def test_names_that_begin_tables_mean_them() -> None:
    def names(word: str) -> list[str]:
        return [table.name for _, table in record.find_tables(word)]

    assert sorted(names("dlperf:oneflow-fp32")) == [
        "oneflow-fp32-b32", "oneflow-fp32-b64", "oneflow-fp32-b96",
    ]  # fmt: skip
    assert names("dlperf:oneflow-fp16-b64-v0.4.0") == ["oneflow-fp16-b64-v0.4.0"]
    assert len(names("dlperf")) == len(names("dlperf:")) > 30
    assert [name for name in names("dlperf:tf2") if "fp32-b32" in name] == [
        "tf2-fp32-b32", "tf2-fp32-b32-xla",
    ]  # fmt: skip


@pytest.mark.parametrize("word", ["nobody", "dlperf:nothing", "dlperf:oneflow-fp3"])
def test_what_the_record_has_not_is_said(word: str) -> None:
    with pytest.raises(UsageError, match="The record has no"):
        record.find_tables(word)


def test_the_record_knows_the_recipes_and_their_rules() -> None:
    for _, table in TABLES:
        if table.framework not in NAMES:
            continue
        rules = {rule.name for rule in grammar(table.framework).rules}
        stated = {table.rule, *(point.rule for point in table.points)} - {""}
        assert stated <= rules, table.name


def test_medians_are_those_of_their_runs() -> None:
    for source, table in TABLES:
        for point in table.points:
            assert not point.runs or published_runs(point) == point.runs, (source.name, table.name)
            if point.value:
                assert median(published_runs(point)) == pytest.approx(point.value, abs=0.006)


def test_a_published_table_has_the_published_speedups() -> None:
    (table,) = published_results(["dlperf:deepspeed-fp32-b32"]).tables
    assert [round(row.speedup or 0, 2) for row in table.rows] == [1, 3.89, 7.77, 15.34, 33.15]
    assert [len(row.runs) for row in table.rows] == [5] * 5
    assert {row.origin.name for row in table.rows if row.origin} == {"dlperf:deepspeed-fp32-b32"}


def test_every_number_that_was_read_is_in_it(shared: Path) -> None:
    """Each by its repository, commit, path, precision, batch size, shape and value."""
    expected = {
        (source.repository, table.commit[:7], table.path, table.precision,
         table.batch_size_per_device, str(point.shape), point.value)
        for source, table in TABLES
        for point in table.points
    }  # fmt: skip
    require("published")
    with (shared / "logs" / "published.tsv").open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    read = set()
    for row in (row for row in rows if PRINTED not in row["source"]):
        repository, _, location = row["source"].partition("@")
        commit, _, place = location.partition(":")
        nodes, gpus = int(row["nodes"]), int(row["gpus"])
        key = (repository, commit, place.partition("#")[0], row["precision"])
        read.add((*key, int(row["batch_per_gpu"]), f"{nodes}n{gpus // nodes}g",
                  float(row["samples_per_s"])))  # fmt: skip
    assert len(read) > 580
    assert read <= expected


@cases
def test_rows_that_give_no_ratio_are_left_out(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        published_results([name])
    results = published_results([name, "dlperf:oneflow-fp32"])
    assert any(words in warning for warning in results.warnings)
    assert {table.group.framework for table in results.tables} == {"oneflow"}


def run_record(*words: object) -> CliResult:
    result = run("record", *words)
    result.check(as_json="--json" in words)
    return result


def test_the_list_names_every_table() -> None:
    data = run_record("--json").data
    assert [entry["name"] for entry in data] == list(record.source_names())
    assert sum(len(entry["tables"]) for entry in data) == len(TABLES)
    assert "dlperf" in run_record("list").stdout


def test_a_table_is_shown_with_its_place_and_its_errors() -> None:
    result = run_record("show", "dlperf:deepspeed-fp32-b32")
    assert "Oneflow-Inc/DLPerf@c202878" in result.stdout
    assert "known error: Speedups above the number of GPUs do not show scaling" in result.stdout
    data = run_record("show", "dlperf:deepspeed", "--json").data
    assert len(data["tables"]) == 5
    assert data["tables"][0]["points"][0]["per_gpu"] == 147.81
    assert run_record("show", "dlperf:x", "--json").returncode == 2


RN50 = "Oneflow-Inc+DLPerf/e36df2e/Tensorflow/resnet50v1.5/logs"
TF1 = "PaddlePaddle+Perf/v2.0-ee2e639/Bert/OtherReports/TensorFlow/logs"


@pytest.mark.slow
def test_the_public_set_follows_from_its_logs(shared: Path) -> None:
    logs = shared / "logs" / RN50
    data = run_record("check", logs, "--fw", "tf2", "--against", "dlperf", "--json").data
    assert len(data["cells"]) == 12
    assert all(cell["follows"] for cell in data["cells"])
    result = run_record("check", logs, "--fw", "tf2", "--against", "nvidia", "--json")
    assert (result.returncode, "rn50" in result.error["message"]) == (2, True)
    result = run_record("check", logs, "--against", "dlperf", "--rule", "rate", "--json")
    assert result.returncode == 2


@pytest.mark.slow
def test_published_errors_are_named(shared: Path) -> None:
    logs = shared / "logs" / TF1
    words = ("--fw", "ngc-tf1", "--against", "paddle-perf", "--edition", "v2.0", "--json")
    result = run_record("check", logs, *words)
    assert result.returncode == 0
    wrong = {cell["table"]: cell for cell in result.data["cells"] if not cell["follows"]}
    assert set(wrong) == {
        "paddle-perf:ngc-tf1-fp32-b32-v2.0", "paddle-perf:ngc-tf1-fp16-b96-v2.0",
    }  # fmt: skip
    assert all(cell["error"] for cell in wrong.values())
    # Against the release after, half of them don't, and the record knows no reason.
    other = ("--fw", "ngc-tf1", "--against", "paddle-perf", "--edition", "v2.2", "--json")
    result = run_record("check", logs, *other)
    assert result.returncode == 5
    assert result.error["code"] == "check"
    messages = [error["message"] for error in result.document["errors"]]
    assert any("paddle-perf:ngc-tf1-fp32-b48-v2.2" in message for message in messages)
