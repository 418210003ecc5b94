"""Predictions: the formulas, what is refused, and every published scaling table less its largest shape."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from hpcbert.model import Group, Origin, RepeatCount, Row, Shape, SpeedupTable
from hpcbert.results import document
from hpcbert.results.document import ResultSet
from hpcbert.results.scaling import MARGIN, MAX_EXTRAPOLATION, Curve, fit_curve
from tests.kit.cli import run
from tests.kit.needs import require

GROUP = Group("oneflow", "bert-base", "fp16", 32, "rate")


def make_row(shape: str, speed: float | None, spread: float = 0.0) -> Row:
    low, high = speed and speed * (1 - spread), speed and speed * (1 + spread)
    return Row(Shape.parse(shape), speed, RepeatCount(0, 0), min=low, max=high)


def make_table(speeds: dict[str, float | None], **changes: Any) -> SpeedupTable:
    rows = [make_row(shape, speed) for shape, speed in speeds.items()]
    rows.sort(key=lambda row: row.shape.gpus)
    return SpeedupTable(Group(**{**vars(GROUP), **changes}), None, tuple(rows))


def compute_throughput(
    nodes: int, *, ring: float = 0.0, latency: float = 0.0, tree: float = 0.0
) -> float:
    """Return samples/s of nodes of 8 GPUs whose step takes 100 ms and what the network costs."""
    seconds = 0.1 + ring * (nodes - 1) / nodes + latency * (nodes - 1) + tree * math.log2(nodes)
    return nodes * 8 * 32 / seconds


@pytest.mark.parametrize(
    "costs",
    [{}, {"ring": 0.03}, {"tree": 0.004}, {"latency": 0.002}, {"ring": 0.02, "latency": 0.001}],
    ids=["nothing", "ring", "tree", "latency", "ring and latency"],
)
def test_what_follows_the_law_is_found(costs: dict[str, float]) -> None:
    curve = fit_curve(make_table({f"{n}n8g": compute_throughput(n, **costs) for n in (1, 2, 4, 8)}))
    for nodes in (1, 2, 4, 8, 16, 32):
        prediction = curve.predict(nodes)
        assert prediction.low
        assert prediction.high
        assert prediction.low <= compute_throughput(nodes, **costs) <= prediction.high
    assert all(abs(share) < 0.01 for _, share in curve.residuals)
    best = curve.fits[0]
    assert best.seconds == pytest.approx(0.1, rel=1e-3)


def test_what_is_said_of_a_prediction() -> None:
    curve = fit_curve(
        make_table(
            {"1n1g": 300.0, "1n8g": compute_throughput(1), "2n8g": compute_throughput(2, ring=0.02)}
        )
    )
    prediction = curve.predict(4)
    assert curve.single_gpu_seconds == pytest.approx(32 / 300)
    assert prediction.throughput == pytest.approx(compute_throughput(4, ring=0.02))
    assert prediction.step_seconds == pytest.approx(0.115)
    assert prediction.exposed_seconds == pytest.approx(0.015)
    assert prediction.efficiency == pytest.approx(0.1 / 0.115)
    assert prediction.low
    assert prediction.high
    assert prediction.throughput
    assert prediction.low < prediction.throughput * (1 - MARGIN / 2)
    assert prediction.high > prediction.throughput * (1 + MARGIN / 2)


def test_scatter_widens_the_interval() -> None:
    rows = tuple(
        make_row(shape, compute_throughput(n), spread)
        for shape, n, spread in (("1n8g", 1, 0.1), ("2n8g", 2, 0.2))
    )
    prediction = fit_curve(SpeedupTable(GROUP, None, rows)).predict(2)
    assert prediction.low == pytest.approx(compute_throughput(2) / 1.2)


@pytest.mark.parametrize(
    ("speeds", "nodes", "reason"),
    [
        ({"1n8g": 100.0, "1n4g": 50.0}, 2, "A run of 2n8g would"),
        ({"4n8g": 100.0}, 8, "A run of 1n8g would"),
        ({"1n8g": None, "2n8g": None}, 2, "No point has a number"),
        ({"1n8g": 100.0, "2n8g": 190.0}, 9, "A run on 3 nodes would be enough"),
        ({"1n8g": 100.0, "2n8g": 190.0, "4n8g": 300.0}, 64, "64 nodes are 16 times the 4"),
    ],
    ids=["one node", "no single node", "no numbers", "9 of 2", "64 of 4"],
)
def test_it_goes_no_further_than_the_points_carry(
    speeds: dict[str, float | None], nodes: int, reason: str
) -> None:
    prediction = fit_curve(make_table(speeds)).predict(nodes)
    assert reason in prediction.why
    assert prediction.throughput is prediction.low is prediction.high is None


def test_faster_on_more_nodes_predicts_no_growth() -> None:
    """No coefficient is negative: what was measured by luck does not grow."""
    prediction = fit_curve(make_table({"1n8g": 1000.0, "2n8g": 2100.0})).predict(8)
    assert prediction.efficiency == 1.0
    assert prediction.throughput is not None
    assert prediction.throughput <= 8 * 1050.0


def test_of_several_widths_the_one_with_most_nodes_counts() -> None:
    curve = fit_curve(
        make_table({"1n1g": 1.0, "2n1g": 2.0, "1n8g": 8.0, "2n8g": 15.0, "4n8g": 28.0})
    )
    assert (curve.gpus_per_node, [nodes for nodes, _ in curve.points]) == (8, [1, 2, 4])


# --- the published tables -------------------------------------------------------------------


def read_published(shared: Path) -> dict[tuple[str, ...], dict[Shape, float]]:
    """Return every published table: the speeds of its shapes."""
    require("published")
    tables: dict[tuple[str, ...], dict[Shape, float]] = defaultdict(dict)
    keys = ("source", "framework", "model", "precision", "batch_per_gpu")
    with (shared / "logs/published.tsv").open(encoding="utf-8") as file:
        for line in csv.DictReader(file, delimiter="\t"):
            if line["nodes"].isdigit() and line["batch_per_gpu"].isdigit():
                nodes = int(line["nodes"])
                shape = Shape(nodes, int(line["gpus"]) // nodes)
                speeds = tables[tuple(line[key] for key in keys)]
                speeds.setdefault(shape, float(line["samples_per_s"]))
    return tables


def drop_largest(key: tuple[str, ...], speeds: dict[Shape, float]) -> tuple[Curve, Shape, float]:
    """Return a curve of a table less its largest shape, that shape, and its speed."""
    largest = max(speeds, key=lambda shape: (shape.gpus, shape.nodes))
    smaller: dict[str, float | None] = {
        str(shape): speed for shape, speed in speeds.items() if shape != largest
    }
    table = make_table(smaller, batch_size_per_device=int(key[4]))
    return fit_curve(table), largest, speeds[largest]


def test_every_published_table_less_its_largest_shape(shared: Path) -> None:
    """docs/explanation/prediction.md states these figures."""
    errors, inside_, refused = [], 0, 0
    for key, speeds in read_published(shared).items():
        if len(speeds) < 3:
            continue
        curve, largest, speed = drop_largest(key, speeds)
        prediction = curve.predict(largest.nodes)
        if prediction.throughput is None or curve.gpus_per_node != largest.gpus_per_node:
            assert prediction.why or curve.gpus_per_node != largest.gpus_per_node
            refused += 1
            continue
        assert prediction.low
        assert prediction.high
        errors.append(abs(prediction.throughput / speed - 1))
        inside_ += prediction.low <= speed <= prediction.high
    errors.sort()
    assert (len(errors), refused, inside_) == (87, 49, 79)
    assert round(median(errors), 3) == 0.029
    assert round(errors[int(0.9 * len(errors))], 3) == 0.102
    assert round(errors[-1], 3) == 0.235


def test_tables_of_many_nodes_four_times_beyond(shared: Path) -> None:
    """As far as is allowed: of 1 and 4 nodes, what 16 would give."""
    errors = []
    for key, speeds in read_published(shared).items():
        nodes = {shape.nodes for shape in speeds}
        if {1, 4, 16} <= nodes:
            shorter = {shape: speed for shape, speed in speeds.items() if shape.nodes <= 16}
            curve, largest, speed = drop_largest(key, shorter)
            prediction = curve.predict(largest.nodes)
            assert prediction.throughput is not None
            errors.append(abs(prediction.throughput / speed - 1))
    assert MAX_EXTRAPOLATION == 4
    assert len(errors) == 8
    assert round(median(errors), 3) == 0.031
    assert round(max(errors), 3) == 0.077


# --- the command ----------------------------------------------------------------------------


def test_the_command(tmp_path: Path, empty_directory: None) -> None:
    runs = {f"{n}n8g": compute_throughput(n, ring=0.02) for n in (1, 2, 4)}
    table, origin = make_table(dict(runs)), Origin("record", "x")
    rows = (replace(row, origin=origin, repeats=RepeatCount(1, 1)) for row in table.rows)
    path = tmp_path / "r.json"
    path.write_text(document.render_results(ResultSet((replace(table, rows=tuple(rows)),))))
    result = run("predict", path, "--nodes", "8,64", "--json")
    assert result.returncode == 4
    (curve,) = result.data["tables"]
    assert [point["nodes"] for point in curve["points"]] == [1, 2, 4]
    assert curve["reach"] == 16
    eight, far = curve["predictions"]
    assert eight["low"] < compute_throughput(8, ring=0.02) < eight["high"]
    assert far["throughput"] is None
    assert "64 nodes are 16 times" in result.error["message"]
    text = run("predict", path, "--nodes", "8")
    assert text.returncode == 0
    assert "8n8g" in text.stdout
    (table,) = run("predict", path, "--nodes", "16, 8,16", "--json").data["tables"]
    assert [entry["nodes"] for entry in table["predictions"]] == [16, 8]
    for counts in ("", "0", "-1", "a", "1.5", "1,,2", "1e3", "1000001", "²"):
        assert run("predict", path, f"--nodes={counts}").returncode == 2
