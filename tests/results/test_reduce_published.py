"""Every set of runs that DLPerf published reduces to the medians and speedups it published."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from hpcbert.model import Group, Measured, Row, Run, Shape, SpeedupTable
from hpcbert.results.reduce import tabulate


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def shape_of(row: dict[str, str]) -> Shape:
    return Shape(int(row["nodes"]), int(row["gpus"]) // int(row["nodes"]))


def make_table_key(row: dict[str, str]) -> tuple[str, ...]:
    """Return what a set of runs and its published table have in common."""
    framework = row["framework"].partition("(")[0]
    return (row["source"].partition("#")[0], framework, row["precision"], row["batch_per_gpu"])


def make_tables(path: Path) -> dict[tuple[str, ...], SpeedupTable]:
    sets: dict[tuple[str, ...], dict[Shape, list[Run]]] = {}
    for row in read_rows(path):
        runs = sets.setdefault(make_table_key(row), {}).setdefault(shape_of(row), [])
        speed = float(row["samples_per_s"])
        runs.append(Run(len(runs) + 1, 0, speed, True, (), "-", "none", ""))
    speedup_tables = {}
    for key, shapes in sets.items():
        group = Group(key[1], "bert", key[2], int(key[3]), "printed")
        points = [Measured(group, shape, len(runs), tuple(runs)) for shape, runs in shapes.items()]
        (speedup_tables[key],) = tabulate(points)
    return speedup_tables


@pytest.mark.needs("published")
def test_every_published_median_and_speedup_recomputes_from_its_runs(shared: Path) -> None:
    # OneFlow's report of 2020-08-22 lists more values than the seven runs of a set here, 14 or 8 for a
    # cell: which seven its medians are of can't be told.
    ambiguous = {("oneflow", "24"), ("oneflow", "48")}
    published: dict[tuple[str, ...], dict[str, list[dict[str, str]]]] = {}
    for row in read_rows(shared / "logs" / "published.tsv"):
        published.setdefault(make_table_key(row), {}).setdefault(row["source"], []).append(row)
    speedup_tables = make_tables(shared / "logs" / "published-runs.tsv")
    assert len(speedup_tables) >= 13
    for key, table in speedup_tables.items():
        if (key[1], key[3]) in ambiguous:
            continue
        ours = {row.shape: row for row in table.rows}
        agreeing = [source for source, cells in published[key].items() if agree(cells, ours)]
        assert agreeing, key


def agree(cells: list[dict[str, str]], ours: dict[Shape, Row]) -> bool:
    """Say whether a published table has our medians, and our speedups to its rounding."""
    for cell in cells:
        row = ours.get(shape_of(cell))
        if row is None:
            return False
        if row.median != pytest.approx(float(cell["samples_per_s"]), abs=0.011):
            return False
        if cell["speedup"]:
            published = pytest.approx(float(cell["speedup"]), rel=5e-4, abs=0.011)
            if row.speedup != published:
                return False
    return True
