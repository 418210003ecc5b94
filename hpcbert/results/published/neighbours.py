"""Published numbers next to your own: the same model, precision, batch size and shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from hpcbert.results.compare import Contrast, Side, contrasts
from hpcbert.results.grid import Column, Grid, TableView
from hpcbert.results.published.tables import results
from hpcbert.results.verdicts import side_data
from hpcbert.results.words import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hpcbert.model import SpeedupTable
    from hpcbert.results.grid import Cell

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

    own: Side
    theirs: Side

    @property
    def ratio(self) -> float:
        """The published median divided by your own."""
        return (self.theirs.row.median or 0) / (self.own.row.median or 1)

    @property
    def contrasts(self) -> tuple[Contrast, ...]:
        """Their differences, hardware first."""
        return contrasts(self.theirs, self.own)


def find_neighbours(tables: Iterable[SpeedupTable], word: str) -> tuple[Neighbour, ...]:
    """Return published results for the points of tables, in any framework.

    Args:
        tables: Your own tables.
        word: The name of a source in the record, or of tables in it.

    Raises:
        UsageError: The record has nothing of that name.
    """
    published = results([word]).tables
    theirs = [Side(table.group, row) for table in published for row in table.rows]
    sides = [Side(table.group, row) for table in tables for row in table.rows if row.median]
    return tuple(
        Neighbour(side, other)
        for side in sides
        for other in theirs
        if _point(side) == _point(other)
    )


def _point(side: Side) -> tuple[object, ...]:
    group, shape = side.group, side.row.shape
    return group.device, group.model, group.precision, group.batch_size_per_device, shape


def data(neighbours: Iterable[Neighbour]) -> list[dict[str, Any]]:
    """Return neighbours as docs/reference/json.md describes them."""
    return [
        {
            "point": neighbour.own.name,
            "own": side_data(neighbour.own),
            "published": side_data(neighbour.theirs),
            "ratio": neighbour.ratio,
            "differences": [contrast._asdict() for contrast in neighbour.contrasts],
        }
        for neighbour in neighbours
    ]


def view(neighbours: Sequence[Neighbour], word: str) -> TableView:
    """Return neighbours as a table: your own line, then published results for the same point."""
    lines: dict[str, list[tuple[Cell, ...]]] = {}
    for neighbour in neighbours:
        side, theirs = neighbour.own, neighbour.theirs
        rows = lines.setdefault(side.name, [_cells(side, side.name, "", "yours")])
        origin = theirs.row.origin
        rows.append(_cells(theirs, "", neighbour.ratio, origin.name if origin else ""))
    title = plain(f"Compared with {word}")
    cells = tuple(row for rows in lines.values() for row in rows)
    heading = (click.style(title, bold=True),)
    return TableView(heading, Grid("neighbours", title, _COLUMNS, cells), _notes(neighbours))


def nothing_of(word: str) -> str:
    """Return that the record has no neighbours, as a sentence."""
    return f"{word} has no number for these devices, models, precisions, batch sizes and shapes."


def _cells(side: Side, name: str, ratio: Cell, where: str) -> tuple[Cell, ...]:
    variant = f" {side.group.variant}" if side.group.variant else ""
    framework = plain(f"{side.group.framework}{variant}")
    return plain(name), framework, side.row.median, side.per_gpu, ratio, where


def _notes(neighbours: Iterable[Neighbour]) -> tuple[str, ...]:
    """Return the differences between the machines, each once."""
    notes: dict[str, None] = {}
    for neighbour in neighbours:
        for contrast in neighbour.contrasts:
            if contrast.what.startswith(_HARDWARE):
                text = " and ".join(contrast.base) or "unknown"
                here = " and ".join(contrast.new) or "unknown"
                notes[f"{contrast.what}: {text} there, {here} here"] = None
    return tuple(notes)
