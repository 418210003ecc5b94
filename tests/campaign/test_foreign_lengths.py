"""The sequence length is part of a point: in tables, comparisons, figures and the record."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbert.model import Group, Measured, Run, Shape
from hpcbert.results import record
from hpcbert.results.reduce import tabulate
from tests.kit import cli
from tests.kit.cases import read_constant
from tests.kit.logs import log, write_file


def write_log(root: Path, name: str, length: int, rate: float = 10.0, last: int = 120) -> None:
    """Write the log of a run of a sequence length; its name's number says when it began."""
    start = 1763717655.5 + 10_000 * int(name[-1])
    text = log("1n1g", rate, iters=120, last=last, start=start)
    text = text.replace('hpcbert-config {"', f'hpcbert-config {{"sequence_length": {length}, "')
    folder, _, repeat = name.partition("-")
    write_file(root / "logs", f"{folder}/pytorch/1n1g/bert_b4_fp32_{repeat}.log", text)


def collect(root: Path) -> dict[str, list[tuple[float | None, int, int]]]:
    """Return for each variant its medians, valid and requested runs."""
    return {
        table["variant"]: [
            (row["median"] and round(row["median"]), row["repeats"]["ok"], row["repeats"]["asked"])
            for row in table["rows"]
        ]
        for table in cli.run("collect", root / "logs", "--json").data["tables"]
    }


def test_logs_of_two_lengths_are_two_points_each_compared_with_its_own(tmp_path):
    for repeat in (1, 2, 3, 4):
        write_log(tmp_path, f"short-{repeat}", 128)
        write_log(tmp_path, f"long-{repeat}", 512, rate=3.0)
    # An invalid log belongs to the length that it states.
    write_log(tmp_path, "long-5", 512, rate=3.0, last=50)
    tables = collect(tmp_path)
    assert tables == {"": [(10, 4, 4)], "sequence_length=512": [(3, 4, 5)]}
    logs, saved = tmp_path / "logs", tmp_path / "saved.json"
    assert cli.run("collect", logs).stdout.count("sequence_length=512") == 1
    cli.run("collect", logs, "--format", "json", "--output", saved)
    (comparison,) = cli.run("compare", saved, logs, "--json").data["comparisons"]
    points = {point["point"]: round(point["ratio"], 6) for point in comparison["points"]}
    assert (len(points), set(points.values())) == (2, {1.0})
    words = ("--by", "sequence-length", "--unit", "tokens", "--json")
    (comparison,) = cli.run("compare", logs, *words).data["comparisons"]
    assert {comparison["base"], comparison["new"]} == {"128", "512"}
    ratio, expected = comparison["points"][0]["ratio"], 3 * 512 / (10 * 128)
    assert ratio == pytest.approx(expected if comparison["base"] == "128" else 1 / expected)


def test_repeats_by_their_names_of_two_lengths_have_no_number(tmp_path):
    for repeat, length in ((1, 128), (2, 128), (3, 512)):
        write_log(tmp_path, f"one-{repeat}", length)
    assert [row for rows in collect(tmp_path).values() for row in rows] == [(None, 0, 3)]


def test_only_published_points_of_the_same_length_are_shown_next_to_it():
    run = Run(1, 0, 1000.0, True, (), "-", "none", "1.log")
    group = Group("oneflow", "bert-base", "fp32", 32, "rate")
    for length, is_shown in (("128", True), ("", True), ("512", False)):
        facts = (("sequence_length", (length,)),) if length else ()
        tables = tabulate([Measured(group, Shape(1, 8), 1, (run,), facts=facts)])
        assert bool(record.find_neighbours(tables, "dlperf:oneflow-fp32-b32")) == is_shown
    tables = record.published_results(["nvidia:tensorflow-dgx-1-32gb"]).tables
    places = [(table.group, row.shape) for table in tables for row in table.rows]
    assert len(places) == len(set(places))
    assert any("sequence_length=512" in table.group.variant for table in tables)


@pytest.mark.parametrize(("length", "exit_code"), [(128, 0), (512, 2)])
def test_a_published_number_is_checked_with_logs_of_its_length(
    tmp_path, monkeypatch, length, exit_code
):
    source = write_file(tmp_path, "data/own.toml", read_constant(__file__, "RECORD"))
    write_log(tmp_path, "logs-1", length)
    monkeypatch.setattr(record, "DATA", source.parent)
    words = (tmp_path / "logs", "--against", "own", "--model", "bert-tiny")
    try:
        for cached in (record.source_names, record.load_source):
            cached.cache_clear()
        assert cli.run("record", "check", *words).returncode == exit_code
    finally:
        for cached in (record.source_names, record.load_source):
            cached.cache_clear()
