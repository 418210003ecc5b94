"""Compare results with other results.

Results are campaigns, logs and saved results, in any combination.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hpcbert.campaign.user_settings import UserSettings
from hpcbert.commands.collect import (
    CollectRequest,
    Places,
    is_saved,
    load_result_set,
    resolve_words,
)
from hpcbert.errors import PendingError, RegressionError, UsageError
from hpcbert.model import MANIFEST, SpeedupTable, Unit
from hpcbert.results.compare import (
    DIMENSIONS,
    Comparison,
    Side,
    case_name,
    compare,
    format_share,
    shorten_names,
)
from hpcbert.results.document import ResultSet
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

    Args:
        request: What to compare, and how.
        user_places: Where campaigns and recipes are.

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
    return CompareResult(
        comparisons,
        tuple(find_failures(comparisons, request.least)) if request.least else (),
        (*(text for result in results for text in result.refused), *_list_empty(comparisons)),
        tuple(dict.fromkeys(text for result in results for text in result.warnings)),
    )


def _convert(results: ResultSet, unit: Unit) -> ResultSet:
    """Return results with their rates in a unit.

    Raises:
        UsageError: No rate can be converted.
    """
    warnings = (*results.warnings, *explain_missing(results.tables, unit))
    return replace(results, tables=convert_tables(results.tables, unit), warnings=warnings)


def _load_sides(request: CompareRequest, user_places: Places) -> list[ResultSet]:
    """Read every word with the options that apply to it.

    Raises:
        UsageError: Options apply to none of them; or as `load_result_set`.
    """
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
    """Return the sides that the values of a dimension make, in order of appearance.

    Raises:
        UsageError: There is only one value.
    """
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
        text = "; ".join(f"{reason} ({shorten_names(names)})" for reason, names in reasons.items())
        raise UsageError(f"These results are not comparable: {text}.", hint=hint)


def _list_empty(comparisons: Sequence[Comparison]) -> list[str]:
    return [
        f"No point of {comparison.base} and {comparison.new} has a number in both."
        for comparison in comparisons
        if not comparison.pairs
    ]


def find_failures(comparisons: Sequence[Comparison], least: float) -> list[RegressionError]:
    """Return the points that fail a gate: too slow, or missing.

    Args:
        comparisons: The comparisons made.
        least: The smallest ratio that passes.
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
