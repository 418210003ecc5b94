"""hpcbert accept on results that exist: verdicts for points and nodes, JUnit, refusals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from hpcbert.commands.compare import select_one_node
from hpcbert.model import Counted, Group, Measured, Reason, Run, Shape
from hpcbert.results.document import NodeFacts, ResultSet, Source, render_results
from hpcbert.results.reduce import tabulate
from tests.kit import cli

GROUP = Group("oneflow", "bert-base", "fp32", 32, "rate")
WINDOW = Counted(20, 120, "iterations 21 to 120")
STEADY = (1.0, 1.001, 0.999, 1.002, 0.998)
POINT = "oneflow bert-base 1n1g fp32 b32"


def measured(speeds: Sequence[float], node: str = "", shape: str = "1n1g") -> Measured:
    runs = tuple(
        Run(number, 0, speed, True, (), "COMPLETED", "sacct", f"{number}.log", (node,) * bool(node))
        for number, speed in enumerate(speeds, 1)
    )
    return Measured(GROUP, Shape.parse(shape), len(runs), runs, counted=WINDOW)


def save(path: Path, *points: Measured, **facts: str) -> Path:
    nodes = {node for point in points for run in point.runs for node in run.nodes}
    environments = (NodeFacts("d", tuple(nodes), facts),) if facts else ()
    source = Source("campaign", path.stem, environments=environments)
    path.write_text(render_results(ResultSet(tabulate(points), sources=(source,))))
    return path


@pytest.fixture
def folder(empty_directory: None, tmp_path: Path) -> Path:
    save(tmp_path / "base.json", measured([100 * speed for speed in STEADY]))
    return tmp_path


def save_nodes(folder: Path, **rates: float) -> list[Path]:
    return [
        save(
            folder / f"{node}.json",
            measured([rate * speed for speed in STEADY], node),
            **{"GPU driver": "550" if node == "n3" else "560", "GPU ECC": "Enabled"},
        )
        for node, rate in rates.items()
    ]


def test_a_slow_node_and_another_driver_are_named(folder: Path) -> None:
    files = save_nodes(folder, n1=100, n2=97, n3=90, n4=100.1)
    junit = folder / "accept.xml"
    result = cli.run(
        "accept", folder / "base.json", "--each-node", *files, "--json", "--junit", junit
    )
    assert result.returncode == 7
    states = {entry["node"]: entry["state"] for entry in result.data["nodes"]}
    assert states == {"n1": "like", "n2": "like", "n3": "slower", "n4": "like"}
    (odd,) = result.data["differences"]
    assert odd == {"node": "n3", "fact": "GPU driver", "value": "550", "like": "560"}
    errors = result.document["errors"]
    # Below the tolerance, and slower than its like.
    assert [error["code"] for error in errors] == ["regression", "regression"]
    assert all("n3" in error["message"] for error in errors)
    assert "GPU driver is 550, not 560" in errors[1]["hint"]
    root = ET.parse(junit).getroot()
    assert root.get("name") == "hpcbert accept"
    assert [suite.get("failures") for suite in root] == ["0", "0", "1", "0"]
    text = cli.run("accept", folder / "base.json", "--each-node", *files)
    assert "slower than its like" in text.stdout
    report = cli.run("accept", folder / "base.json", "--each-node", *files, "--format", "markdown")
    assert "| ---: |" in report.stdout


def test_equal_nodes_are_accepted_and_one_without_a_valid_run_has_no_verdict(folder: Path) -> None:
    files = save_nodes(folder, n1=100, n2=100.2, n4=99.9)
    result = cli.run("accept", folder / "base.json", "--each-node", *files, "--json")
    assert result.returncode == 0, result
    assert result.data["power"][0]["detectable"] == 0.03
    point = measured(STEADY, "n3")
    reasons = (Reason("exit", "status 1"),)
    runs = tuple(replace(run, valid=False, throughput=None, reasons=reasons) for run in point.runs)
    files.append(save(folder / "n3.json", replace(point, runs=runs)))
    result = cli.run("accept", folder / "base.json", "--each-node", *files, "--json")
    assert result.returncode == 7
    states = {entry["node"]: (entry["state"], entry["runs"]) for entry in result.data["nodes"]}
    assert states == {"n1": ("like", 5), "n2": ("like", 5), "n3": ("unknown", 0), "n4": ("like", 5)}
    assert "n3" in result.error["message"]


@pytest.mark.parametrize(("tolerance", "status"), [("5%", 0), ("0.02", 7)])
def test_a_point_may_lose_the_tolerance(folder: Path, tolerance: str, status: int) -> None:
    new = save(folder / "new.json", measured([96 * speed for speed in STEADY], "n1"))
    result = cli.run("accept", folder / "base.json", new, "--tolerance", tolerance)
    assert result.returncode == status, result
    assert POINT in result.stdout


def test_repeats_that_landed_on_several_nodes_are_compared_by_node(folder: Path) -> None:
    points = [measured([rate * speed for speed in STEADY], f"n{rate}") for rate in (80, 100, 101)]
    runs = tuple(run for point in points for run in point.runs)
    runs = tuple(replace(run, repeat=number) for number, run in enumerate(runs, 1))
    new = save(folder / "new.json", replace(points[0], runs=runs, asked=15))
    result = cli.run("accept", folder / "base.json", new, "--json")
    assert result.returncode == 7
    slow = [entry["node"] for entry in result.data["nodes"] if entry["state"] == "slower"]
    assert slow == ["n80"]


@pytest.mark.parametrize(
    ("words", "keyword"),
    [
        (["base.json", "base.json", "--each-node"], "unknown node"),
        (["campaign.toml"], "--against"),
        (["base.json", "--against", "base.json"], "--against"),
        (["base.json", "base.json", "--partition", "gpu"], "--partition"),
        (["wide.json", "base.json", "--each-node"], "no point of one node"),
        (["base.json", "--tolerance", "95%"], "--tolerance"),
        (["absent.json"], "no such file"),
        (["edited.json", "base.json"], "median"),
        (["base.json", "--each-node", "--scheduler", "local"], "--each-node"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_accepted_is_refused(
    words: list[str], keyword: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    save(folder / "wide.json", measured(STEADY, shape="2n1g"))
    document = json.loads((folder / "base.json").read_text())
    document["tables"][0]["rows"][0]["median"] = 1.0
    (folder / "edited.json").write_text(json.dumps(document))
    result = cli.run("accept", *words)
    assert result.returncode == 2, result
    assert keyword in result.stderr


def test_one_shape_of_a_curve_has_the_variant_of_a_point_measured_alone() -> None:
    group = replace(GROUP, variant="long,gbs256")
    points = [replace(measured(STEADY, shape=shape), group=group) for shape in ("1n2g", "2n2g")]
    (table,) = select_one_node(tabulate(points))
    assert (table.group.variant, [str(row.shape) for row in table.rows]) == ("long,acc4", ["1n2g"])
