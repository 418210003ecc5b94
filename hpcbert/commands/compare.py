"""Compare results with other results; accept a machine, and each of its nodes against its like.

Results are campaigns, logs and saved results, in any combination.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from hpcbert.campaign import store
from hpcbert.campaign.fingerprint import Fingerprint, NodeSample, find_differences_within
from hpcbert.campaign.foreign import CollectRequest, UserSettings
from hpcbert.commands.collect import (
    Places,
    is_saved,
    load_result_set,
    resolve_words,
)
from hpcbert.errors import PendingError, RegressionError, UsageError, join_names
from hpcbert.model import MANIFEST, SpeedupTable, Unit
from hpcbert.results import record
from hpcbert.results.compare import (
    DIMENSIONS,
    MAX_NAMES,
    Comparison,
    Side,
    compare,
)
from hpcbert.results.document import ResultSet, Source
from hpcbert.results.metrics import convert_tables, explain_missing
from hpcbert.results.nodes import NodeComparison, compare_nodes, gather_rates


class CompareResult(NamedTuple):
    """The result of a comparison.

    Attributes:
        failures: Why the gate failed, one point each.
        refused: What has no number at all, one sentence each.
    """

    comparisons: tuple[Comparison, ...]
    failures: tuple[RegressionError, ...]
    refused: tuple[str, ...]
    warnings: tuple[str, ...]


def compare_results(
    words: Sequence[str],
    places: Places,
    reading: CollectRequest,
    *,
    by: str,
    within: float,
    least: float | None,
    anyway: bool,
    unit: Unit,
) -> CompareResult:
    """Compare results.

    Args:
        words: The sides: the first is compared with each of the others. With `by`, all together.
        reading: How campaigns and logs are collected.
        by: A name in `DIMENSIONS`; empty if the words themselves are the sides.
        within: Two numbers that differ by at most this share count as equal.
        least: The ratio below which a point fails; None: no point can fail.
        anyway: Whether to compare what is not comparable.
        unit: What the compared rates count.

    Raises:
        UsageError: Nothing can be compared, or the sides are not comparable.
    """
    sets = [load_result_set(words, places, reading)] if by else _load_sides(words, places, reading)
    warnings = [text for result in sets for text in result.warnings]
    warnings += [text for result in sets for text in explain_missing(result.tables, unit)]
    converted = [convert_tables(result.tables, unit) for result in sets]
    sides = _split_by(converted[0], by) if by else list(zip(words, converted, strict=True))
    (base_name, base_tables), *new_sides = sides
    dimension = DIMENSIONS.get(by, "")
    comparisons = tuple(
        compare(base_tables, tables, names=(base_name, name), within=within, by=dimension)
        for name, tables in new_sides
    )
    if not anyway:
        refuse_incomparable(comparisons, "--anyway compares them nevertheless, and marks them.")
    failures = tuple(find_failures(comparisons, least)) if least else ()
    empty = [
        f"No point of {comparison.base} and {comparison.new} has a number in both."
        for comparison in comparisons
        if not comparison.pairs and not (failures and comparison.lacking)
    ]
    refused = (*(text for result in sets for text in result.refused), *empty)
    return CompareResult(comparisons, failures, refused, tuple(dict.fromkeys(warnings)))


def _load_sides(words: Sequence[str], places: Places, reading: CollectRequest) -> list[ResultSet]:
    """Read every word with the options that apply to it."""
    if len(words) < 2:  # noqa: PLR2004 - two are compared
        raise UsageError(
            "There is only one result, and nothing to compare it with.",
            hint="Name BASE and NEW, or compare points of one: --by framework.",
        )
    requests: list[CollectRequest | None] = []
    for word in words:
        path = None if record.is_record_name(word) else resolve_words([word], places)[0]
        if path is None or is_saved(path):
            requests.append(None)
        elif (path / MANIFEST).is_file():
            requests.append(reading._replace(known=UserSettings(), pattern=""))
        else:
            requests.append(reading)
    if reading not in requests:
        # None of them is logs: the refusal names the options.
        requests[0] = reading
    pairs = zip(words, requests, strict=True)
    return [load_result_set([word], places, request) for word, request in pairs]


def _split_by(tables: Iterable[SpeedupTable], by: str) -> list[tuple[str, Sequence[SpeedupTable]]]:
    """Return the sides that the values of a dimension make, in order of appearance."""
    name = DIMENSIONS[by]
    sides: dict[str, list[SpeedupTable]] = {}
    for table in tables:
        if name not in {"shape", "sequence_length"}:
            value = str(getattr(table.group, name)) or "none"
            sides.setdefault(value, []).append(table)
            continue
        for row in table.rows:
            value = str(row.shape) if name == "shape" else Side(table.group, row).length
            sides.setdefault(value or "unknown", []).append(replace(table, rows=(row,)))
    if len(sides) < 2:  # noqa: PLR2004 - two are compared
        only_value = f": {next(iter(sides))}" if sides else ""
        raise UsageError(f"Comparing by {by} needs at least two values{only_value}.")
    return list(sides.items())


def refuse_incomparable(comparisons: Sequence[Comparison], hint: str) -> None:
    """Refuse points that don't measure the same thing.

    Raises:
        UsageError: There are such points; the message gives each reason with its points.
    """
    reasons: dict[str, list[str]] = {}
    for comparison in comparisons:
        for pair in comparison.pairs:
            for obstacle in pair.obstacles:
                reasons.setdefault(str(obstacle), []).append(pair.new.name)
    if reasons:
        text = "; ".join(
            f"{reason} ({join_names(names, most=MAX_NAMES)})" for reason, names in reasons.items()
        )
        raise UsageError(f"These results are not comparable: {text}.", hint=hint)


def find_failures(comparisons: Sequence[Comparison], least: float) -> list[RegressionError]:
    """Return the points that fail a gate: too slow, or missing."""
    errors: list[RegressionError] = []
    for comparison in comparisons:
        base, new, limit = comparison.base, comparison.new, f"{least * 100:g} %"
        failures = [
            (pair.new.name, f"{new} has {pair.ratio.value:.2%} of {base}, below {limit}")
            for pair in comparison.pairs
            if pair.ratio.value < least
        ]
        failures += [
            (name, f"{new} can't be compared with {base}: {reason}")
            for name, reason in comparison.lacking
        ]
        for name, reason in failures:
            error_class = PendingError if name in comparison.unfinished else RegressionError
            errors.append(error_class(f"{name}: {reason}.", case=(new, name)))
    return errors


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
    base: ResultSet, base_name: str, results: Mapping[Path, ResultSet], *, each_node: bool
) -> Acceptance:
    """Compare results with a baseline, and the nodes with each other.

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
    """Return the points of one node; their variants are as if they were measured alone."""
    selected = []
    for table in tables:
        rows = tuple(row for row in table.rows if row.shape.nodes == 1)
        words = table.group.variant.split(",")
        word = next((word for word in words if re.fullmatch(r"gbs[1-9]\d*", word)), "")
        samples = table.group.batch_size_per_device
        if len(rows) == 1 and word and samples:
            # One point has an accumulation, a curve a fixed global batch size.
            accumulation = int(word[3:]) // (rows[0].shape.gpus * samples)
            words[words.index(word)] = f"acc{accumulation}" if accumulation > 1 else ""
        group = replace(table.group, variant=",".join(filter(None, words)))
        selected += [replace(table, group=group, rows=rows)] if rows else []
    if not selected:
        raise UsageError(
            "The baseline has no point of one node, which --each-node measures.",
            hint="Leave --each-node out, or name another baseline.",
        )
    return tuple(selected)


def _find_node(path: Path, results: ResultSet) -> str:
    """Return the node of results; of a campaign that never ran, the node that it requested."""
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
    names = [comparison.new for comparison in acceptance.comparisons]
    errors = []
    for point, comparison in acceptance.nodes:
        for verdict in comparison.verdicts:
            if verdict.state != "slower" or verdict.ratio is None:
                continue
            facts = [str(odd) for odd in acceptance.differences if odd.node == verdict.node]
            case = verdict.node if verdict.node in names else names[0], point
            text = f"{verdict.node} is slower than its like: {point} has {verdict.ratio:.2%} of "
            hint = f"It differs: {'; '.join(facts)}." if facts else ""
            errors.append(RegressionError(f"{text}their rate.", hint=hint, case=case))
    return tuple(errors)
