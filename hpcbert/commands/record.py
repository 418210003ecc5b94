"""Check whether published tables follow from their logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hpcbert.commands.results import load
from hpcbert.errors import UsageError
from hpcbert.logs.setting import END, Window
from hpcbert.results.published import record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcbert.commands.collect import CollectRequest
    from hpcbert.commands.results import Places
    from hpcbert.model import Shape
    from hpcbert.results.published.record import PublishedPoint, PublishedTable, PublishedWindow

# Published numbers are rounded: to five digits at least, or to two decimals.
_RELATIVE, _ABSOLUTE = 5e-5, 0.006


class Cell(NamedTuple):
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
        off = abs(self.found - self.published)
        return off <= max(_ABSOLUTE, _RELATIVE * self.published)


class _How(NamedTuple):
    """How to read logs for a number."""

    rule: str
    window: PublishedWindow | None


# Framework, model, precision, batch size per device and shape, which identify a point of logs.
_Point = tuple[str, str, str, int, "Shape"]


def check(
    words: Sequence[str], at: Places, request: CollectRequest, *, against: str, edition: str = ""
) -> tuple[Cell, ...]:
    """Compare published tables with the numbers that their logs give.

    Args:
        words: Paths of the logs.
        at: Where recipes are.
        request: How to read logs, except rule and window, which the record sets.
        against: Name of a source of the record, or of tables in it.
        edition: A part of the edition of the tables; empty for all.

    Raises:
        UsageError: The record has nothing about these logs; or as `load`.
    """
    tables = [
        (published_table, source.called(published_table))
        for source, published_table in record.every(against)
    ]
    logged = {point[:4] for point in _medians(words, at, request)}
    known = [
        (published_table, name)
        for published_table, name in tables
        if _table_key(published_table) in logged
        and (not edition or edition in published_table.edition.split("-"))
    ]
    if not known:
        text = "; ".join(" ".join(map(str, one)) for one in sorted(logged))
        of = f" of edition {edition}" if edition else ""
        raise UsageError(
            f"{against} has no table{of} for these logs: {text}.",
            hint="hpcbert record list has the names of all tables.",
        )
    ways = dict.fromkeys(
        _how(published_table, point)
        for published_table, _ in known
        for point in published_table.points
    )
    medians = {way: _medians(words, at, _asking(request, way)) for way in ways}
    cells = [
        cell for published_table, name in known for cell in _cells(published_table, name, medians)
    ]
    # A log behind a number of one table belongs to no other table of the same point.
    taken = {(one.point, one.found) for one in cells if one.follows}
    return tuple(
        one for one in cells if one.follows or one.error or (one.point, one.found) not in taken
    )


def _table_key(table: PublishedTable) -> tuple[str, str, str, int]:
    return table.framework, table.model, table.precision, table.batch_size_per_device


def _how(table: PublishedTable, point: PublishedPoint) -> _How:
    if point.rule:
        return _How(point.rule, point.window)
    return _How(table.rule, table.window)


def _asking(request: CollectRequest, way: _How) -> CollectRequest:
    if way.window is None:
        return request._replace(rule=way.rule)
    iters = END if way.window.iters == "end" else way.window.iters
    return request._replace(rule=way.rule, window=Window(way.window.skip, iters))


def _medians(
    words: Sequence[str], at: Places, request: CollectRequest
) -> dict[_Point, list[float | None]]:
    """Return the medians of each point; several if logs differ in their options."""
    found: dict[_Point, list[float | None]] = {}
    for table in load(words, at, request).tables:
        group = table.group
        for row in table.rows:
            model, batch = group.model, group.batch_size_per_device
            key = (group.framework, model, group.precision, batch, row.shape)
            found.setdefault(key, []).append(row.median)
    return found


def _cells(
    table: PublishedTable, name: str, medians: dict[_How, dict[_Point, list[float | None]]]
) -> list[Cell]:
    """Return the cells of a table that there are logs of."""
    cells = []
    for point in table.points:
        way = _how(table, point)
        given = medians[way].get((*_table_key(table), point.shape))
        if given is not None:
            numbers = [one for one in given if one is not None]
            nearest = min(numbers, key=lambda one: abs(one - point.value), default=None)
            errors = [error.what for error in table.errors if error.shape in ("", str(point.shape))]
            label = f"{table.framework} {table.model} {point.shape} {table.precision}"
            label += f" b{table.batch_size_per_device}"
            cells.append(Cell(name, label, point.value, nearest, way.rule, " ".join(errors)))
    return cells
