"""Check whether published tables follow from their logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hpcbert.commands.collect import CollectRequest
from hpcbert.commands.results import Places, load_result_set
from hpcbert.errors import UsageError
from hpcbert.logs.setting import END, Window
from hpcbert.model import Shape
from hpcbert.results.published import record
from hpcbert.results.published.record import PublishedPoint, PublishedTable, PublishedWindow

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


class _Reading(NamedTuple):
    """How to read logs for a number."""

    rule: str
    window: PublishedWindow | None


# Framework, model, precision, batch size per device and shape, which identify a point of logs.
_PointKey = tuple[str, str, str, int, "Shape"]


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
    tables = [
        (published_table, source.called(published_table))
        for source, published_table in record.find_all_tables(against)
    ]
    logged_keys = {point[:4] for point in _compute_medians(words, user_places, request)}
    matching_tables = [
        (published_table, name)
        for published_table, name in tables
        if _table_key(published_table) in logged_keys
        and (not edition or edition in published_table.edition.split("-"))
    ]
    if not matching_tables:
        text = "; ".join(" ".join(map(str, key)) for key in sorted(logged_keys))
        edition_text = f" of edition {edition}" if edition else ""
        raise UsageError(
            f"{against} has no table{edition_text} for these logs: {text}.",
            hint="hpcbert record list has the names of all tables.",
        )
    readings = dict.fromkeys(
        _find_reading(published_table, point)
        for published_table, _ in matching_tables
        for point in published_table.points
    )
    medians = {
        reading: _compute_medians(words, user_places, _request_for_reading(request, reading))
        for reading in readings
    }
    cells = [
        cell
        for published_table, name in matching_tables
        for cell in _check_table(published_table, name, medians)
    ]
    # A log behind a number of one table belongs to no other table of the same point.
    matched_numbers = {
        (checked_cell.point, checked_cell.found) for checked_cell in cells if checked_cell.follows
    }
    return tuple(
        checked_cell
        for checked_cell in cells
        if checked_cell.follows
        or checked_cell.error
        or (checked_cell.point, checked_cell.found) not in matched_numbers
    )


def _table_key(table: PublishedTable) -> tuple[str, str, str, int]:
    return table.framework, table.model, table.precision, table.batch_size_per_device


def _find_reading(table: PublishedTable, point: PublishedPoint) -> _Reading:
    if point.rule:
        return _Reading(point.rule, point.window)
    return _Reading(table.rule, table.window)


def _request_for_reading(request: CollectRequest, reading: _Reading) -> CollectRequest:
    if reading.window is None:
        return request._replace(rule=reading.rule)
    iters = END if reading.window.iters == "end" else reading.window.iters
    return request._replace(rule=reading.rule, window=Window(reading.window.skip, iters))


def _compute_medians(
    words: Sequence[str], user_places: Places, request: CollectRequest
) -> dict[_PointKey, list[float | None]]:
    """Return the medians of each point; several if logs differ in their options."""
    medians: dict[_PointKey, list[float | None]] = {}
    for table in load_result_set(words, user_places, request).tables:
        group = table.group
        for row in table.rows:
            model, batch = group.model, group.batch_size_per_device
            key = (group.framework, model, group.precision, batch, row.shape)
            medians.setdefault(key, []).append(row.median)
    return medians


def _check_table(
    table: PublishedTable, name: str, medians: dict[_Reading, dict[_PointKey, list[float | None]]]
) -> list[RecordCell]:
    """Return the cells of a table that there are logs of."""
    cells = []
    for point in table.points:
        reading = _find_reading(table, point)
        log_medians = medians[reading].get((*_table_key(table), point.shape))
        if log_medians is not None:
            numbers = [number for number in log_medians if number is not None]
            nearest = min(numbers, key=lambda number: abs(number - point.value), default=None)
            errors = [error.what for error in table.errors if error.shape in ("", str(point.shape))]
            label = f"{table.framework} {table.model} {point.shape} {table.precision}"
            label += f" b{table.batch_size_per_device}"
            cells.append(
                RecordCell(name, label, point.value, nearest, reading.rule, " ".join(errors))
            )
    return cells
