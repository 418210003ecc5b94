"""Compare results with other results, and published tables with their logs.

Results are campaigns, logs and saved results, in any combination.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hpcbert.campaign.attempts import AskStates
from hpcbert.campaign.user_settings import UserSettings
from hpcbert.commands.collect import (
    CollectRequest,
    Places,
    is_saved,
    load_result_set,
    resolve_words,
)
from hpcbert.errors import RegressionError, UsageError
from hpcbert.logs.setting import END, Window
from hpcbert.model import MANIFEST, Shape, SpeedupTable, Unit
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
from hpcbert.results.published.record import PublishedPoint, PublishedTable
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


def compare_results(
    request: CompareRequest, user_places: Places, *, states: AskStates | None = None
) -> CompareResult:
    """Compare results.

    Args:
        request: What to compare, and how.
        user_places: Where campaigns and recipes are.
        states: As of `collect`.

    Raises:
        UsageError: Nothing can be compared, or the sides are not comparable.
    """
    results = [
        _convert(result, request.unit) for result in _load_sides(request, user_places, states)
    ]
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
        _refuse_incomparable(comparisons)
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


def _load_sides(
    request: CompareRequest, user_places: Places, states: AskStates | None
) -> list[ResultSet]:
    """Read every word with the options that apply to it.

    Raises:
        UsageError: Options apply to none of them; or as `load_result_set`.
    """
    if request.by:
        return [load_result_set(request.words, user_places, request.reading, states=states)]
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
    return [
        load_result_set([word], user_places, word_request, states=states)
        for word, word_request in pairs
    ]


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


def _refuse_incomparable(comparisons: Sequence[Comparison]) -> None:
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
        raise UsageError(
            f"These results are not comparable: {text}.",
            hint="--anyway compares them nevertheless, and marks them.",
        )


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
    regression_errors, floor = [], format_share(least)
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
        regression_errors += [
            RegressionError(f"{name}: {reason}.", point=case_name(comparison, name))
            for name, reason in slow_points + missing_points
        ]
    return regression_errors


# Published numbers are rounded: to five digits at least, or to two decimals.
_RELATIVE, _ABSOLUTE = 5e-5, 0.006


class RecordCell(NamedTuple):
    """One published number and the number from its logs.

    Attributes:
        table: Name in the record.
        found: The median of the logs; None if none of them is valid.
        rule: The rule.
        error: The known error of the number; may be empty.
    """

    table: str
    point: str
    published: float
    found: float | None
    rule: str
    error: str

    @property
    def follows(self) -> bool:
        """Whether the logs give this number, except for rounding."""
        if self.found is None:
            return False
        difference = abs(self.found - self.published)
        return difference <= max(_ABSOLUTE, _RELATIVE * self.published)


# Framework, model, precision, batch size per device and shape, which identify a point of logs; its
# sequence length, empty if unknown, is compared where both have one.
_PointKey = tuple[str, str, str, int, Shape]
_Medians = dict[_PointKey, list[tuple[str, float | None]]]


def check_record(
    words: Sequence[str],
    user_places: Places,
    request: CollectRequest,
    *,
    against: str,
    edition: str = "",
) -> tuple[RecordCell, ...]:
    """Compare published tables with the numbers that their logs give.

    Args:
        words: Paths of the logs.
        user_places: Where recipes are.
        request: How to read logs, except rule and window, which the record sets.
        against: Name of a source of the record, or of tables in it.
        edition: A part of the edition of the tables; empty for all.

    Raises:
        UsageError: The record has nothing about these logs; or as `load_result_set`.
    """
    logged_keys = {
        (*key[:4], length)
        for key, medians_of_point in _compute_medians(words, user_places, request).items()
        for length, _ in medians_of_point
    }
    tables = [
        (source.full_name(table), table)
        for source, table in record.find_all_tables(against)
        if any(key[:4] == _table_key(table) and _may_have(table, key[4]) for key in logged_keys)
        and (not edition or edition in table.edition.split("-"))
    ]
    if not tables:
        text = "; ".join(" ".join(map(str, key)).strip() for key in sorted(logged_keys))
        edition_text = f" of edition {edition}" if edition else ""
        raise UsageError(
            f"{against} has no table{edition_text} for these logs: {text}.",
            hint="hpcbert record list has the names of all tables.",
        )
    requests = dict.fromkeys(
        _request_for_point(request, table, point) for _, table in tables for point in table.points
    )
    medians = {
        point_request: _compute_medians(words, user_places, point_request)
        for point_request in requests
    }
    cells = [cell for name, table in tables for cell in _check_table(table, name, request, medians)]
    # A log behind a number of one table belongs to no other table of the same point.
    matched = {(cell.point, cell.found) for cell in cells if cell.follows}
    return tuple(
        cell
        for cell in cells
        if cell.follows or cell.error or (cell.point, cell.found) not in matched
    )


def _table_key(table: PublishedTable) -> tuple[str, str, str, int]:
    return table.framework, table.model, table.precision, table.batch_size_per_device


def _may_have(table: PublishedTable, length: str) -> bool:
    """Return whether samples of a table may have this many tokens; empty: unknown."""
    return length in ("", str(table.sequence_length or length))


def _request_for_point(
    request: CollectRequest, table: PublishedTable, point: PublishedPoint
) -> CollectRequest:
    """Return the request with the rule and the window of a published number."""
    source = point if point.rule else table
    if source.window is None:
        return request._replace(rule=source.rule)
    iters = END if source.window.iters == "end" else source.window.iters
    return request._replace(rule=source.rule, window=Window(source.window.skip, iters))


def _compute_medians(
    words: Sequence[str], user_places: Places, request: CollectRequest
) -> _Medians:
    """Return the lengths and medians of each point; several if logs differ in their options."""
    medians: _Medians = {}
    for table in load_result_set(words, user_places, request).tables:
        group = table.group
        for row in table.rows:
            model, batch = group.model, group.batch_size_per_device
            key = (group.framework, model, group.precision, batch, row.shape)
            medians.setdefault(key, []).append((Side(group, row).length, row.median))
    return medians


def _check_table(
    table: PublishedTable,
    name: str,
    request: CollectRequest,
    medians: Mapping[CollectRequest, _Medians],
) -> Iterator[RecordCell]:
    """Yield the cells of a table that have logs."""
    for point in table.points:
        point_request = _request_for_point(request, table, point)
        point_medians = medians[point_request].get((*_table_key(table), point.shape), ())
        log_medians = [median for length, median in point_medians if _may_have(table, length)]
        if not log_medians:
            continue
        numbers = [number for number in log_medians if number is not None]
        nearest = min(numbers, key=lambda number: abs(number - point.value), default=None)
        errors = [error.what for error in table.errors if error.shape in ("", str(point.shape))]
        label = f"{table.framework} {table.model} {point.shape} {table.precision}"
        label += f" b{table.batch_size_per_device}"
        yield RecordCell(name, label, point.value, nearest, point_request.rule, " ".join(errors))
