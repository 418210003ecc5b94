"""Published numbers next to your own: the same model, precision, batch size and shape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import click

from hpcbert.model import SpeedupTable
from hpcbert.results.compare import Contrast, Side, find_contrasts, side_data
from hpcbert.results.grid import Cell, Column, Grid, TableView
from hpcbert.results.published.record import published_results, source_names
from hpcbert.results.wording import sanitize

_COLUMNS = (
    Column("point"),
    Column("framework"),
    Column("samples/s", ".2f"),
    Column("per GPU", ".2f"),
    Column("of yours", ".1%"),
    Column("published in"),
)
# The text names only differences between machines; --json has all.
_HARDWARE = ("GPU", "CPU", "InfiniBand", "network")


class Neighbour(NamedTuple):
    """Your own point and a published one."""

    own_side: Side
    published_side: Side

    @property
    def ratio(self) -> float:
        """The published median divided by your own."""
        return (self.published_side.row.median or 0) / (self.own_side.row.median or 1)

    @property
    def contrasts(self) -> tuple[Contrast, ...]:
        """Their differences, hardware first."""
        return find_contrasts(self.published_side, self.own_side)


def find_neighbours(tables: Iterable[SpeedupTable], word: str) -> tuple[Neighbour, ...]:
    """Return published results for the points of tables, in any framework.

    Args:
        tables: Your own tables.
        word: The name of a source in the record, or of tables in it.

    Raises:
        UsageError: The record has nothing of that name.
    """
    published = published_results([word]).tables
    published_sides = [Side(table.group, row) for table in published for row in table.rows]
    own_sides = [Side(table.group, row) for table in tables for row in table.rows if row.median]
    return tuple(
        Neighbour(side, published_side)
        for side in own_sides
        for published_side in published_sides
        if _point_key(side) == _point_key(published_side)
        and (side.length == published_side.length or "" in (side.length, published_side.length))
    )


def find_twins(tables: Iterable[SpeedupTable]) -> tuple[SpeedupTable, ...]:
    """Return for each of your own tables the published one that a figure shows next to it.

    Model, precision, batch size per device, accumulation and sequence length are the same. A table
    of the same framework goes before others, then one with more shapes.
    """
    own_tables = [table for table in tables if not any(row.published for row in table.rows)]
    published: dict[tuple[object, ...], list[SpeedupTable]] = {}
    for table in published_results(source_names()).tables if own_tables else ():
        published.setdefault(_table_key(table), []).append(table)
    twins = {}
    for table in own_tables:
        candidates = published.get(_table_key(table), [])
        if candidates and "sequence_length" in _stated_facts(table):
            framework = table.group.framework
            twin = max(
                candidates, key=lambda twin: (twin.group.framework == framework, len(twin.rows))
            )
            twins[id(twin)] = twin
    return tuple(twins.values())


def _table_key(table: SpeedupTable) -> tuple[object, ...]:
    group, facts = table.group, _stated_facts(table)
    size = group.batch_size_per_device
    accumulation = tuple(word for word in group.variant.split(",") if word.startswith("acc"))
    length = facts.get("sequence_length")
    return group.device, group.model, group.precision, size, accumulation, length


def _stated_facts(table: SpeedupTable) -> dict[str, tuple[str, ...]]:
    return {name: values for row in table.rows for name, values in row.facts}


def _point_key(side: Side) -> tuple[object, ...]:
    group, shape = side.group, side.row.shape
    return group.device, group.model, group.precision, group.batch_size_per_device, shape


def neighbour_data(neighbours: Iterable[Neighbour]) -> list[dict[str, Any]]:
    """Return neighbours as docs/reference/json.md describes them."""
    return [
        {
            "point": neighbour.own_side.name,
            "own": side_data(neighbour.own_side),
            "published": side_data(neighbour.published_side),
            "ratio": neighbour.ratio,
            "differences": [contrast._asdict() for contrast in neighbour.contrasts],
        }
        for neighbour in neighbours
    ]


def neighbour_view(neighbours: Sequence[Neighbour], word: str) -> TableView:
    """Return neighbours as a table: your own line, then published results for the same point."""
    rows_by_point: dict[str, list[tuple[Cell, ...]]] = {}
    for neighbour in neighbours:
        side, published_side = neighbour.own_side, neighbour.published_side
        rows = rows_by_point.setdefault(side.name, [_side_cells(side, side.name, "", "yours")])
        origin = published_side.row.origin
        rows.append(_side_cells(published_side, "", neighbour.ratio, origin.name if origin else ""))
    title = sanitize(f"Compared with {word}")
    cells = tuple(row for rows in rows_by_point.values() for row in rows)
    heading = (click.style(title, bold=True),)
    return TableView(
        heading, Grid("neighbours", title, _COLUMNS, cells), _hardware_notes(neighbours)
    )


def describe_absence(word: str) -> str:
    """Return the sentence for tables without neighbours in the record."""
    return f"{word} has no number for these devices, models, precisions, batch sizes and shapes."


def _side_cells(side: Side, name: str, ratio: Cell, origin: str) -> tuple[Cell, ...]:
    variant = f" {side.group.variant}" if side.group.variant else ""
    framework = sanitize(f"{side.group.framework}{variant}")
    return sanitize(name), framework, side.row.median, side.per_gpu, ratio, origin


def _hardware_notes(neighbours: Iterable[Neighbour]) -> tuple[str, ...]:
    """Return the differences between the machines, each once."""
    notes: dict[str, None] = {}
    for neighbour in neighbours:
        for contrast in neighbour.contrasts:
            if contrast.what.startswith(_HARDWARE):
                published_value = " and ".join(contrast.base) or "unknown"
                own_value = " and ".join(contrast.new) or "unknown"
                notes[f"{contrast.what}: {published_value} there, {own_value} here"] = None
    return tuple(notes)
