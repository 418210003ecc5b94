"""Compare results with other results; accept a machine, and each of its nodes against its like.

Results are campaigns, logs and saved results, in any combination.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from hpcbert.campaign import store
from hpcbert.campaign.fingerprint import Fingerprint, NodeSample, find_differences_within
from hpcbert.campaign.user_settings import UserSettings
from hpcbert.commands.collect import (
    CollectRequest,
    Places,
    is_saved,
    load_result_set,
    resolve_words,
)
from hpcbert.errors import PendingError, RegressionError, UsageError, join_names
from hpcbert.model import MANIFEST, SpeedupTable, Unit
from hpcbert.results.compare import (
    DIMENSIONS,
    MAX_NAMES,
    Comparison,
    Side,
    case_name,
    compare,
    format_share,
)
from hpcbert.results.document import ResultSet, Source
from hpcbert.results.nodes import NodeComparison, compare_nodes, gather_rates
from hpcbert.results.published import record
from hpcbert.results.units import convert_tables, explain_missing


@dataclass(frozen=True)
class CompareRequest:
    """The results to compare, and the settings.

    Attributes:
        words: The sides: the first is compared with each of the others. With `by`, all together.
        by: A name in `DIMENSIONS`; empty if the words themselves are the sides.
        within: Two numbers that differ by at most this share count as equal.
        least: The ratio below which a point fails; None: no point can fail.
        anyway: Whether to compare what is not comparable.
        reading: How campaigns and logs are collected.
        unit: What the compared rates count.
    """

    words: tuple[str, ...]
    by: str = ""
    within: float = 0.02
    least: float | None = None
    anyway: bool = False
    reading: CollectRequest = field(default_factory=CollectRequest)
    unit: Unit = "samples"


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


class _Side(NamedTuple):
    name: str
    tables: tuple[SpeedupTable, ...]


def compare_results(request: CompareRequest, user_places: Places) -> CompareResult:
    """Compare results.

    Raises:
        UsageError: Nothing can be compared, or the sides are not comparable.
    """
    results = [_convert(result, request.unit) for result in _load_sides(request, user_places)]
    if request.by:
        base, *sides = _split_by(results, request.by)
    else:
        pairs = zip(request.words, results, strict=True)
        base, *sides = [_Side(word, result_set.tables) for word, result_set in pairs]
    comparisons = tuple(
        compare(
            base.tables,
            side.tables,
            names=(base.name, side.name),
            within=request.within,
            by=DIMENSIONS.get(request.by, ""),
        )
        for side in sides
    )
    if not request.anyway:
        refuse_incomparable(comparisons, "--anyway compares them nevertheless, and marks them.")
    failures = tuple(find_failures(comparisons, request.least)) if request.least else ()
    empty = [
        f"No point of {comparison.base} and {comparison.new} has a number in both."
        for comparison in comparisons
        if not comparison.pairs and not (failures and comparison.lacking)
    ]
    return CompareResult(
        comparisons,
        failures,
        (*(text for result in results for text in result.refused), *empty),
        tuple(dict.fromkeys(text for result in results for text in result.warnings)),
    )


def _convert(results: ResultSet, unit: Unit) -> ResultSet:
    """Return results with their rates in a unit."""
    warnings = (*results.warnings, *explain_missing(results.tables, unit))
    return replace(results, tables=convert_tables(results.tables, unit), warnings=warnings)


def _load_sides(request: CompareRequest, user_places: Places) -> list[ResultSet]:
    """Read every word with the options that apply to it."""
    if request.by:
        return [load_result_set(request.words, user_places, request.reading)]
    if len(request.words) < 2:  # noqa: PLR2004 - two are compared
        raise UsageError(
            "There is only one result, and nothing to compare it with.",
            hint="Name BASE and NEW, or compare points of one: --by framework.",
        )
    requests = [_request_for_word(word, user_places, request.reading) for word in request.words]
    if request.reading not in requests:
        # None of them is logs: the refusal names the options.
        requests[0] = request.reading
    pairs = zip(request.words, requests, strict=True)
    return [load_result_set([word], user_places, word_request) for word, word_request in pairs]


def _request_for_word(
    word: str, user_places: Places, request: CollectRequest
) -> CollectRequest | None:
    if record.is_record_name(word):
        return None
    path, *_ = resolve_words([word], user_places)
    if is_saved(path):
        return None
    if (path / MANIFEST).is_file():
        return request._replace(known=UserSettings(), pattern="")
    return request


def _split_by(results: Sequence[ResultSet], by: str) -> list[_Side]:
    """Return the sides that the values of a dimension make, in order of appearance."""
    parts: dict[str, list[SpeedupTable]] = {}
    for table in (table for result in results for table in result.tables):
        for value, part in _split_table(table, by):
            parts.setdefault(value, []).append(part)
    if len(parts) < 2:  # noqa: PLR2004 - two are compared
        only_value = f": {next(iter(parts))}" if parts else ""
        raise UsageError(f"Comparing by {by} needs at least two values{only_value}.")
    return [_Side(value, tuple(tables)) for value, tables in parts.items()]


def _split_table(table: SpeedupTable, by: str) -> list[tuple[str, SpeedupTable]]:
    name = DIMENSIONS[by]
    if name in {"shape", "sequence_length"}:
        values = [
            row.shape if name == "shape" else Side(table.group, row).length for row in table.rows
        ]
        return [
            (str(value) or "unknown", replace(table, rows=(row,)))
            for value, row in zip(values, table.rows, strict=True)
        ]
    return [(str(getattr(table.group, name)) or "none", table)]


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
    """Return the points that fail a gate: too slow, or missing.

    Args:
        comparisons: The comparisons made.
    """
    regression_errors: list[RegressionError] = []
    floor = format_share(least)
    for comparison in comparisons:
        slow_points = [
            (
                pair.new.name,
                f"{comparison.new} has {pair.ratio.value:.2%} of {comparison.base}, below {floor}",
            )
            for pair in comparison.pairs
            if pair.ratio.value < least
        ]
        missing_points = [
            (name, f"{comparison.new} can't be compared with {comparison.base}: {reason}")
            for name, reason in comparison.lacking
        ]
        for name, reason in slow_points + missing_points:
            error_class = PendingError if name in comparison.unfinished else RegressionError
            point = case_name(comparison, name)
            regression_errors.append(error_class(f"{name}: {reason}.", point=point))
    return regression_errors


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
