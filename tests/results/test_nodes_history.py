"""The history of nodes: medians by campaign, ratios to the one before, facts that changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbert.model import Counted, Group, Measured, Run, Shape
from hpcbert.results.document import NodeFacts, ResultSet, Source
from hpcbert.results.nodes import list_history
from hpcbert.results.reduce import tabulate
from tests.kit.campaigns import Build
from tests.kit.cli import run


def make_results(day: int, driver: str, shape: str = "1n1g", **rates: float) -> ResultSet:
    runs = tuple(
        Run(number, 0, rate, True, (), "COMPLETED", "sacct", f"{number}.log", (node,))
        for number, (node, rate) in enumerate(rates.items(), 1)
    )
    group = Group("oneflow", "bert-base", "fp32", 32, "rate")
    counted = Counted(20, 120, "iterations 21 to 120")
    point = Measured(group, Shape.parse(shape), len(runs), runs, counted=counted)
    facts = (NodeFacts("d", tuple(rates), {"GPU driver": driver, "GPU": "A100"}),) if driver else ()
    created = f"2026-11-{day:02}T10:00:00Z"
    source = Source("campaign", f"c{day}", created=created, environments=facts)
    return ResultSet(tabulate([point]), sources=(source,))


def test_a_node_is_compared_with_its_campaign_before() -> None:
    results = [
        make_results(23, "560", n1=99.0),
        make_results(21, "550", n1=100.0, n2=80.0),
        make_results(22, "", n1=90.0),
        make_results(24, "570", "2n1g", n1=200.0),
        make_results(25, "570", "1n8g", n1=800.0),
    ]
    records = list_history(results)
    assert [(record.node, record.campaign, record.median) for record in records] == [
        ("n1", "c21", 100.0),
        ("n1", "c22", 90.0),
        ("n1", "c23", 99.0),
        ("n1", "c25", 800.0),
        ("n2", "c21", 80.0),
    ]
    assert [record.ratio for record in records] == pytest.approx([None, 0.9, 1.1, None, None])
    # A campaign without facts in between says nothing.
    assert [list(map(str, record.changes)) for record in records] == [
        [],
        [],
        ["GPU driver: 550 → 560"],
        [],
        [],
    ]


def test_a_node_without_runs_is_refused_and_a_damaged_campaign_is_a_warning(
    build: Build, tmp_path: Path
) -> None:
    built = build("1n1g", name="20261121T100000Z-pytorch-3f9a1c", jobs=("7",))
    runs = built.directory.parent
    assert run("nodes", "--runs", runs).returncode == 0
    refused = run("nodes", "n9", "--runs", runs)
    assert refused.returncode == 2
    assert "n9" in refused.stderr
    (built.directory / "manifest.json").write_text("{")
    damaged = run("nodes", "--runs", runs, "--json")
    assert damaged.returncode == 0
    assert "left out" in damaged.document["warnings"][0]
