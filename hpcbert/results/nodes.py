"""Nodes that are slower than their like by more than chance, and the history of nodes; pure.

A node's score is the share of pairs, one of its runs and one of the reference's, in which its own
is slower. The reference are the runs of the fastest three quarters of the nodes, by median, so that
a quarter of the nodes can be slow. If all runs have one distribution, every order of them is
equally likely, whatever that distribution is: random orders give the chance that the largest score
of all nodes is as high as a node's (H. B. Mann, D. R. Whitney, Ann. Math. Statist. 18 (1947) 50;
M. Dwass, 28 (1957) 181). docs/how-to/accept.md has the figures.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from math import ceil, inf
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple

from hpcbert.model import SpeedupTable
from hpcbert.results.compare import list_sides
from hpcbert.results.document import ResultSet
from hpcbert.results.interval import measure_scatter, min_repeats

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

# The accepted chance of naming any node if none is slower; of few runs, whose best score is not as
# rare, up to the second.
FALSE_ALARM, MAX_FALSE_ALARM = 0.005, 0.01
# The share of cases in which a node as slow as the stated one is named.
POWER = 0.95
# Two nodes with five runs each can be told apart, with a chance of 1 in 126.
_ORDERS = 9999
_REFERENCE_SHARE = 0.75
# Instead of a score: lower than any.
_REFERENCE = -1.0
_TRIALS = 200
_MAX_PERCENT = 50
NodeState = Literal["slower", "like", "unknown"]


class NodeVerdict(NamedTuple):
    """One node at one point.

    Attributes:
        ratio: The median over that of the reference; None if there is no reference.
        chance: The chance of such a score of any node if none is slower; None for nodes of the
            reference, and if there are too few runs.
    """

    node: str
    runs: int
    median: float | None
    ratio: float | None
    chance: float | None
    state: NodeState


class NodeComparison(NamedTuple):
    """All nodes at one point, in the order of their names.

    Attributes:
        spread: Standard deviation of the runs' logarithms within nodes; None for single runs.
        false_alarm: The chance of naming any node if none is slower; None if no node can be named.
    """

    verdicts: tuple[NodeVerdict, ...]
    spread: float | None
    false_alarm: float | None
    within: float

    @property
    def detectable(self) -> float | None:
        """The smallest loss, as a share, that is named with POWER at this spread.

        None if no node can be named, or none that has more than half of the rate.
        """
        if not (self.false_alarm and self.spread):
            return None
        counts = sorted(entry.runs for entry in self.verdicts if entry.runs >= min_repeats())
        return find_detectable(tuple(counts), self.spread, self.within)


def compare_nodes(rates: Mapping[str, Sequence[float]], within: float) -> NodeComparison:
    """Return which nodes are slower than their like.

    Args:
        within: Medians that differ by at most this share count as equal.
    """
    enough = {node: runs for node, runs in rates.items() if len(runs) >= min_repeats()}
    orders = _score_orders(tuple(sorted(map(len, enough.values())))) if len(enough) > 1 else ()
    level = _find_level(orders)
    scores, like = _score_nodes(_fill_rows(enough.values())) if orders else ((), None)
    scores_by_node = dict(zip(enough, scores, strict=False))
    verdicts = []
    for node, runs in sorted(rates.items()):
        rate = median(runs) if runs else None
        ratio = rate / like if like and rate else None
        score = scores_by_node.get(node, _REFERENCE)
        chance = _find_chance(orders, score) if level and score != _REFERENCE else None
        state: NodeState = "like" if level and node in enough else "unknown"
        if level and chance is not None and chance <= level and ratio and ratio < 1 - within:
            state = "slower"
        verdicts.append(NodeVerdict(node, len(runs), rate, ratio, chance, state))
    return NodeComparison(
        tuple(verdicts), measure_scatter(*filter(None, rates.values())), level, within
    )


def _find_level(orders: Sequence[float]) -> float | None:
    """Return the chance at which a node is named; None if the best score is not rare enough."""
    rarest = _find_chance(orders, 1.0)
    return max(FALSE_ALARM, rarest) if rarest <= MAX_FALSE_ALARM else None


def _fill_rows(sets: Iterable[Sequence[float]]) -> Array:
    """Return a row of each set, with infinities after its values."""
    import numpy as np

    lists = list(sets)
    rows = np.full((len(lists), max(map(len, lists))), inf)
    for row, values in zip(rows, lists, strict=True):
        row[: len(values)] = values
    return rows


def _score_nodes(rates: Array) -> tuple[Array, float]:
    """Return each node's score, ties count half, and the median of the reference's runs.

    The reference are the fastest three quarters of the nodes, by median; of two nodes the faster.
    """
    import numpy as np

    counts, rows = np.isfinite(rates).sum(axis=1), np.arange(len(rates))
    ordered = np.sort(rates, axis=1)
    medians = ordered[rows, (counts - 1) // 2] + ordered[rows, counts // 2]
    fastest = np.argsort(-medians, kind="stable")[: ceil(_REFERENCE_SHARE * (len(rates) - 1))]
    like_runs = np.sort(rates[fastest], axis=None)[: counts[fastest].sum()]
    slower = like_runs.searchsorted(rates) + like_runs.searchsorted(rates, "right")
    scores = (2 * len(like_runs) - slower).sum(axis=1) / (2 * len(like_runs) * counts)
    scores[fastest] = _REFERENCE
    return scores, float(np.median(like_runs))


@cache
def _score_orders(counts: tuple[int, ...]) -> tuple[float, ...]:
    """Return the largest score of all nodes in each of many random orders, sorted."""
    import numpy as np

    random = np.random.default_rng(0)  # the same orders each time
    sets = _draw_sets(counts, _ORDERS, random.permutation)
    return tuple(sorted(float(_score_nodes(ranks)[0].max()) for ranks in sets))


def _draw_sets(
    counts: tuple[int, ...], number: int, draw: Callable[[int], Array]
) -> Iterator[Array]:
    """Yield random runs of nodes, in the form of `_fill_rows`, all in the same array."""
    import numpy as np

    rows = _fill_rows([0.0] * count for count in counts)
    is_run = np.isfinite(rows)
    for _ in range(number):
        rows[is_run] = draw(sum(counts))
        yield rows


def _find_chance(orders: Sequence[float], score: float) -> float:
    return (1 + len(orders) - bisect_left(orders, score)) / (1 + len(orders))


@cache
def find_detectable(counts: tuple[int, ...], spread: float, within: float) -> float | None:
    """Return the smallest loss of one node, a share in whole percent, that is named with POWER.

    An expectation, for runs whose logarithms scatter normally.
    """
    percents = range(1, _MAX_PERCENT + 1)
    place = bisect_left(
        percents, POWER, key=lambda percent: _find_power(counts, spread, within, percent / 100)
    )
    return percents[place] / 100 if place < len(percents) else None


def _find_power(counts: tuple[int, ...], spread: float, within: float, loss: float) -> float:
    import numpy as np

    random, orders = np.random.default_rng(0), _score_orders(counts)
    level, hits = _find_level(orders) or 0.0, 0
    for rates in _draw_sets(counts, _TRIALS, lambda n: np.exp(random.normal(0, spread, n))):
        rates[0] *= 1 - loss
        scores, like = _score_nodes(rates)
        ratio = np.median(rates[0, : counts[0]]) / like
        hits += bool(_find_chance(orders, scores[0]) <= level and ratio < 1 - within)
    return hits / _TRIALS


def gather_rates(tables: Iterable[SpeedupTable]) -> dict[str, dict[str, list[float]]]:
    """Return the throughputs of valid runs on one node, by point and node; of some nodes none."""
    rates: dict[str, dict[str, list[float]]] = {}
    for side in list_sides(tables):
        for run in side.row.runs:
            if side.row.shape.nodes == len(run.nodes) == 1:
                valid = rates.setdefault(side.name, {}).setdefault(run.nodes[0], [])
                valid += [run.throughput] if run.valid and run.throughput else []
    return rates


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
        ratio: The median over that of the same node and point in the campaign before; None if there
            is none.
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
    """Return the records of all nodes, by node and point, the oldest first."""
    records: list[NodeRecord] = []
    newest: dict[tuple[str, str], tuple[float | None, Mapping[str, str]]] = {}
    for result in sorted(results, key=lambda result: result.sources[0].created):
        source = result.sources[0]
        facts = {node: entry.facts for entry in source.environments for node in entry.nodes}
        for point, rates in gather_rates(result.tables).items():
            for node, runs in rates.items():
                if not runs:
                    continue
                before, facts_before = newest.get((node, point), (None, {}))
                rate, node_facts = median(runs), facts.get(node, {})
                ratio = rate / before if before else None
                # The facts that both have and that differ.
                changes = tuple(
                    FactChange(name, facts_before[name], node_facts[name])
                    for name in sorted(facts_before.keys() & node_facts.keys())
                    if facts_before[name] != node_facts[name]
                )
                place = (node, point, source.created, source.name)
                records.append(NodeRecord(*place, len(runs), rate, ratio, changes))
                newest[node, point] = rate, node_facts or facts_before
    return tuple(sorted(records, key=lambda record: record[:3]))
