"""Accept a machine: its results against a baseline, and each node against its like."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from hpcbert.campaign import store
from hpcbert.campaign.fingerprint import Fingerprint, NodeSample, find_differences_within
from hpcbert.errors import RegressionError, UsageError, join_names
from hpcbert.model import MANIFEST, SpeedupTable
from hpcbert.results.compare import Comparison, case_name, compare
from hpcbert.results.document import ResultSet, Source
from hpcbert.results.nodes import NodeComparison, compare_nodes, gather_rates

# Medians of nodes that differ by at most this share count as equal, as those of compare do.
WITHIN = 0.02


class NodeDifference(NamedTuple):
    """A fact in which a node differs from most others: `like` is their value."""

    node: str
    fact: str
    value: str
    like: str

    def __str__(self) -> str:
        return f"{self.node}: {self.fact} is {self.value or 'empty'}, not {self.like or 'empty'}"


class Acceptance(NamedTuple):
    """The result of an acceptance.

    Attributes:
        comparisons: With the baseline: of all results, or of each node.
        nodes: For each point of one node, its nodes.
    """

    comparisons: tuple[Comparison, ...]
    nodes: tuple[tuple[str, NodeComparison], ...]
    differences: tuple[NodeDifference, ...]


def accept_results(
    base: ResultSet,
    base_name: str,
    results: Mapping[Path, ResultSet],
    *,
    each_node: bool,
) -> Acceptance:
    """Compare results with a baseline, and the nodes with each other.

    Args:
        base: The baseline.
        base_name: Its name.
        results: The new results, by campaign or file.
        each_node: Whether each of the results is of one node.

    Raises:
        UsageError: The results have no point of the baseline, or one of them has several nodes.
    """
    base_tables = select_one_node(base.tables) if each_node else base.tables
    sides: dict[str, list[SpeedupTable]] = {}
    pooled = join_names((path.name for path in results), most=3)
    for path, result in results.items():
        name = _find_node(path, result) if each_node else pooled
        sides.setdefault(name, []).extend(result.tables)
    comparisons = tuple(
        compare(base_tables, tables, names=(base_name, name), within=WITHIN)
        for name, tables in sorted(sides.items())
    )
    rates = gather_rates(table for result in results.values() for table in result.tables)
    return Acceptance(
        comparisons,
        tuple((point, compare_nodes(nodes, WITHIN)) for point, nodes in rates.items()),
        find_odd_facts(source for result in results.values() for source in result.sources),
    )


def select_one_node(tables: Iterable[SpeedupTable]) -> tuple[SpeedupTable, ...]:
    """Return the points of one node; their variants are as if they were measured alone.

    Raises:
        UsageError: There is none.
    """
    selected = []
    for table in tables:
        rows = tuple(row for row in table.rows if row.shape.nodes == 1)
        words = table.group.variant.split(",")
        if len(rows) == 1:
            samples = rows[0].shape.gpus * table.group.batch_size_per_device
            words = [_fix_accumulation(word, samples) for word in words]
        group = replace(table.group, variant=",".join(filter(None, words)))
        selected += [replace(table, group=group, rows=rows)] if rows else []
    if not selected:
        raise UsageError(
            "The baseline has no point of one node, which --each-node measures.",
            hint="Leave --each-node out, or name another baseline.",
        )
    return tuple(selected)


def _fix_accumulation(word: str, samples: int) -> str:
    """Return the accumulation of one point, whose curve has a fixed global batch size."""
    if not (word.startswith("gbs") and word[3:].isdigit() and samples):
        return word
    accumulation = int(word[3:]) // samples
    return f"acc{accumulation}" if accumulation > 1 else ""


def _find_node(path: Path, results: ResultSet) -> str:
    """Return the node of results; of a campaign that never ran, the node that it requested.

    Raises:
        UsageError: There are several, or the node is unknown.
    """
    runs = [run for table in results.tables for row in table.rows for run in row.runs]
    nodes = sorted({node for run in runs for node in run.nodes})
    if not nodes and (path / MANIFEST).is_file():
        nodes = [array.request.nodelist for array in store.read_manifest(path).arrays[:1]]
    if len(nodes) != 1:
        raise UsageError(
            f"They are of {join_names(nodes) or 'an unknown node'}, not of one node.",
            where=str(path),
            hint="Leave --each-node out.",
        )
    return nodes[0]


def find_odd_facts(sources: Iterable[Source]) -> tuple[NodeDifference, ...]:
    """Return the facts in which nodes differ from most others; of a tie, each value's nodes."""
    samples = [
        NodeSample("", 1, Fingerprint(facts.nodes, facts.facts, frozenset({"image"})))
        for source in sources
        for facts in source.environments
    ]
    differences = []
    for difference in find_differences_within(samples):
        by_count = sorted(difference.values, key=lambda entry: -len(entry[1]))
        (like, like_nodes), (second, second_nodes) = by_count[:2]
        odd = by_count if len(like_nodes) == len(second_nodes) else by_count[1:]
        differences += [
            NodeDifference(node, difference.fact, value, second if value == like else like)
            for value, nodes in odd
            for node in nodes
        ]
    return tuple(sorted(differences))


def find_slow_nodes(acceptance: Acceptance) -> tuple[RegressionError, ...]:
    """Return an error for each node that is slower than its like, with its odd facts."""
    cases = {comparison.new: comparison for comparison in acceptance.comparisons}
    errors = []
    for point, comparison in acceptance.nodes:
        for verdict in comparison.verdicts:
            if verdict.state != "slower" or verdict.ratio is None:
                continue
            facts = [str(odd) for odd in acceptance.differences if odd.node == verdict.node]
            case = cases.get(verdict.node, acceptance.comparisons[0])
            errors.append(
                RegressionError(
                    f"{verdict.node} is slower than its like: {point} has {verdict.ratio:.2%} of "
                    "their rate.",
                    hint=f"It differs: {'; '.join(facts)}." if facts else "",
                    point=case_name(case, point),
                )
            )
    return tuple(errors)
