"""The history of nodes: their rates and facts, campaign by campaign."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import NamedTuple

from hpcbert.commands.accept import gather_rates
from hpcbert.logs.arithmetic import median
from hpcbert.results.document import ResultSet


class FactChange(NamedTuple):
    """A fact of a node that differs from the campaign before."""

    fact: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.fact}: {self.before or 'empty'} → {self.after or 'empty'}"


class NodeRecord(NamedTuple):
    """A node at one point in one campaign.

    Attributes:
        created: When the campaign was submitted, ISO 8601 UTC.
        runs: Number of its valid runs on this node alone.
        median: Of these, samples per second.
        ratio: The median over that of the same node and point in the campaign before; None if there
            is none.
        changes: What else differs from then.
    """

    node: str
    point: str
    created: str
    campaign: str
    runs: int
    median: float
    ratio: float | None
    changes: tuple[FactChange, ...]


def list_history(results: Iterable[ResultSet]) -> tuple[NodeRecord, ...]:
    """Return the records of all nodes, by node and point, the oldest first.

    Args:
        results: Of one campaign each.
    """
    records: list[NodeRecord] = []
    newest: dict[tuple[str, str], tuple[NodeRecord, Mapping[str, str]]] = {}
    for result in sorted(results, key=lambda result: result.sources[0].created):
        source = result.sources[0]
        facts = {node: entry.facts for entry in source.environments for node in entry.nodes}
        for point, rates in gather_rates(result.tables).items():
            for node, runs in filter(itemgetter(1), rates.items()):
                before, facts_before = newest.get((node, point), (None, {}))
                rate, node_facts = median(runs), facts.get(node, {})
                record = NodeRecord(
                    node=node,
                    point=point,
                    created=source.created,
                    campaign=source.name,
                    runs=len(runs),
                    median=rate,
                    ratio=rate / before.median if before else None,
                    changes=_compare_facts(facts_before, node_facts),
                )
                newest[node, point] = record, node_facts or facts_before
                records.append(record)
    return tuple(sorted(records, key=lambda record: record[:3]))


def _compare_facts(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[FactChange, ...]:
    """Return the facts that both have and that differ."""
    return tuple(
        FactChange(name, before[name], after[name])
        for name in sorted(before.keys() & after.keys())
        if before[name] != after[name]
    )
