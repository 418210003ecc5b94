"""The sequence length is part of a point: in tables, comparisons, figures and the record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hpcbert.model import Group, Measured, Run, Shape
from hpcbert.results import record
from hpcbert.results.record import find_neighbours
from hpcbert.results.reduce import tabulate
from tests.kit import cli
from tests.kit.logs import log, write_file

WriteLog = Callable[..., None]


@pytest.fixture
def write_log(tmp_path: Path) -> WriteLog:
    """Writes a log of one run into `logs`, with a sequence length if it has one."""
    starts = iter(range(1763717655, 1763717655 + 10**6, 10_000))

    def write(name: str, length: int | None, *, rate: float = 10.0, last: int = 120) -> None:
        text = log("1n1g", rate, iters=120, last=last, start=next(starts) + 0.5)
        facts = f'"sequence_length": {length}, ' if length else ""
        text = text.replace('hpcbert-config {"', f'hpcbert-config {{{facts}"')
        write_file(tmp_path / "logs", name, text)

    return write


def name_log(folder: str, repeat: int) -> str:
    return f"{folder}/pytorch/1n1g/bert_b4_fp32_{repeat}.log"


def collect(tmp_path: Path) -> dict[str, list[tuple[float | None, int, int]]]:
    """Return for each variant its medians, valid and requested runs."""
    tables = cli.run("collect", str(tmp_path / "logs"), "--json").data["tables"]
    return {
        table["variant"]: [
            (row["median"] and round(row["median"]), row["repeats"]["ok"], row["repeats"]["asked"])
            for row in table["rows"]
        ]
        for table in tables
    }


def test_logs_of_two_lengths_are_two_points(write_log: WriteLog, tmp_path: Path) -> None:
    for repeat in (1, 2, 3):
        write_log(name_log("short", repeat), 128)
        write_log(name_log("long", repeat), 512, rate=3.0)
    assert collect(tmp_path) == {"": [(10, 3, 3)], "sequence_length=512": [(3, 3, 3)]}
    text = cli.run("collect", str(tmp_path / "logs")).stdout
    assert text.count("sequence_length=512") == 1


def test_an_invalid_log_belongs_to_the_length_that_it_states(
    write_log: WriteLog, tmp_path: Path
) -> None:
    for repeat in (1, 2):
        write_log(name_log("short", repeat), 128)
        write_log(name_log("long", repeat), 512, rate=3.0)
    write_log(name_log("long", 3), 512, rate=3.0, last=50)
    assert collect(tmp_path) == {"": [(10, 2, 2)], "sequence_length=512": [(3, 2, 3)]}


def test_repeats_by_their_names_of_two_lengths_have_no_number(
    write_log: WriteLog, tmp_path: Path
) -> None:
    for repeat, length in ((1, 128), (2, 128), (3, 512)):
        write_log(name_log("one", repeat), length)
    assert [row for rows in collect(tmp_path).values() for row in rows] == [(None, 0, 3)]


def test_points_of_two_lengths_are_compared_each_with_its_own(
    write_log: WriteLog, tmp_path: Path
) -> None:
    for repeat in (1, 2, 3, 4):
        write_log(name_log("short", repeat), 128)
        write_log(name_log("long", repeat), 512, rate=3.0)
    logs, saved = str(tmp_path / "logs"), str(tmp_path / "saved.json")
    cli.run("collect", logs, "--format", "json", "--output", saved)
    (comparison,) = cli.run("compare", saved, logs, "--json").data["comparisons"]
    points = {point["point"]: round(point["ratio"], 6) for point in comparison["points"]}
    assert len(points) == 2
    assert set(points.values()) == {1.0}
    words = ("--by", "sequence-length", "--unit", "tokens", "--json")
    (comparison,) = cli.run("compare", logs, *words).data["comparisons"]
    assert {comparison["base"], comparison["new"]} == {"128", "512"}
    ratio = comparison["points"][0]["ratio"]
    expected = 3 * 512 / (10 * 128)
    assert ratio == pytest.approx(expected if comparison["base"] == "128" else 1 / expected)


@pytest.mark.parametrize(("length", "is_shown"), [("128", True), ("", True), ("512", False)])
def test_only_published_points_of_the_same_length_are_beside(
    length: str, *, is_shown: bool
) -> None:
    run = Run(1, 0, 1000.0, True, (), "-", "none", "1.log")
    facts = (("sequence_length", (length,)),) if length else ()
    group = Group("oneflow", "bert-base", "fp32", 32, "rate")
    tables = tabulate([Measured(group, Shape(1, 8), 1, (run,), facts=facts)])
    assert bool(find_neighbours(tables, "dlperf:oneflow-fp32-b32")) == is_shown


def test_published_tables_of_two_lengths_have_their_own_names() -> None:
    name = "nvidia:tensorflow-dgx-1-32gb"
    tables = record.published_results([name]).tables
    places = [(table.group, row.shape) for table in tables for row in table.rows]
    assert len(places) == len(set(places))
    assert any("sequence_length=512" in table.group.variant for table in tables)
    assert cli.run("compare", name, name, "--json").returncode == 0


@pytest.mark.parametrize(("length", "exit_code"), [(128, 0), (512, 2)])
def test_a_published_number_is_checked_with_logs_of_its_length(
    write_log: WriteLog, tmp_path: Path, length: int, exit_code: int
) -> None:
    source = tmp_path / "data" / "own.toml"
    write_file(
        tmp_path,
        "data/own.toml",
        'schema = 1\ntitle = "x"\nrepository = "x/y"\nabout = "x"\n[[tables]]\nname = "a"\n'
        'framework = "pytorch"\nmodel = "bert-tiny"\nprecision = "fp32"\nbatch_size_per_device = 4\n'
        'sequence_length = 128\ncommit = "1234567"\npath = "README.md"\n'
        'points = [{ shape = "1n1g", value = 10.0 }]\n',
    )
    write_log(name_log("logs", 1), length)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "DATA", source.parent)
        for cached in (record.source_names, record.load_source):
            cached.cache_clear()
        words = (str(tmp_path / "logs"), "--against", "own", "--model", "bert-tiny")
        assert cli.run("record", "check", *words).returncode == exit_code
    for cached in (record.source_names, record.load_source):
        cached.cache_clear()
