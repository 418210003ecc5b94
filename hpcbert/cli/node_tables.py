"""Nodes and their rates as a table, and as JSON."""

from __future__ import annotations

from typing import Any

from hpcbert.commands.accept import Acceptance
from hpcbert.results.grid import Column, Grid, TableView
from hpcbert.results.interval import min_repeats
from hpcbert.results.nodes import POWER, NodeVerdict

_COLUMNS = (
    Column("point"),
    Column("node"),
    Column("runs", "d"),
    Column("samples/s", ".2f"),
    Column("of BASE", ".2%"),
    Column("of its like", ".2%"),
    Column("verdict"),
)
_WORDS = {
    "slower": "slower than its like",
    "like": "like the others",
    "unknown": "can't be told",
}
_COLOURS = {"slower": "red", "unknown": "yellow"}


def node_data(acceptance: Acceptance) -> dict[str, Any]:
    """Return the nodes of an acceptance as docs/reference/json.md describes them."""
    return {
        "nodes": [
            {
                "point": point,
                **verdict._asdict(),
                "of_base": _find_share(acceptance, point, verdict),
            }
            for point, comparison in acceptance.nodes
            for verdict in comparison.verdicts
        ],
        "power": [
            {
                "point": point,
                "false_alarm": comparison.false_alarm,
                "power": POWER,
                "spread": comparison.spread,
                "detectable": comparison.detectable,
            }
            for point, comparison in acceptance.nodes
        ],
        "differences": [difference._asdict() for difference in acceptance.differences],
    }


def _find_share(acceptance: Acceptance, point: str, verdict: NodeVerdict) -> float | None:
    """Return a node's median over the baseline's; None if that has no number."""
    medians = [
        pair.base.row.median
        for comparison in acceptance.comparisons
        for pair in comparison.pairs
        if pair.new.name == point
    ]
    base = medians[0] if medians else None
    return verdict.median / base if verdict.median and base else None


def make_node_view(acceptance: Acceptance) -> TableView:
    """Return a table of all nodes of an acceptance."""
    verdicts = [
        (point, verdict)
        for point, comparison in acceptance.nodes
        for verdict in comparison.verdicts
    ]
    rows = tuple(
        (
            point,
            verdict.node,
            verdict.runs,
            verdict.median,
            _find_share(acceptance, point, verdict),
            verdict.ratio,
            _WORDS[verdict.state],
        )
        for point, verdict in verdicts
    )
    return TableView(
        heading=("Nodes",),
        grid=Grid("nodes", "Nodes", _COLUMNS, rows),
        notes=tuple(map(str, acceptance.differences)),
        legend=_describe_power(acceptance),
        colours=tuple(_COLOURS.get(verdict.state) for _, verdict in verdicts),
    )


def _describe_power(acceptance: Acceptance) -> str:
    losses = [comparison.detectable for _, comparison in acceptance.nodes]
    levels = [comparison.false_alarm for _, comparison in acceptance.nodes]
    if not any(levels):
        return f"A verdict needs {min_repeats()} valid runs on three nodes, or five on two."
    text = "Where no node is slower, a point has a node that is named all the same in at most "
    text += f"{max(level for level in levels if level):.2%} of the cases"
    if not any(losses):
        return f"{text}."
    loss = max(share for share in losses if share)
    return f"{text}; a node that loses {loss:.0%} is named in {POWER:.0%}, at these runs' spread."
