"""Published numbers next to your own: the same model, precision, batch size and shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from hpcbert.published.tables import results
from hpcbert.results import markdown
from hpcbert.results.compare import Contrast, Side, contrasts
from hpcbert.results.text import fold, number
from hpcbert.results.verdicts import aligned, piped, side_data
from hpcbert.results.words import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hpcbert.model import SpeedupTable

_COLUMNS = ("point", "framework", "samples/s", "per GPU", "of yours", "published in")
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


def neighbours(tables: Iterable[SpeedupTable], word: str) -> tuple[Neighbour, ...]:
    """Return published results for the points of tables, in any framework.

    Args:
        tables: Your own tables.
        word: The name of a source in the record, or of tables in it.

    Raises:
        UsageError: The record has nothing of that name.
    """
    published = results([word]).tables
    known = [Side(table.group, row) for table in published for row in table.rows]
    own = [Side(table.group, row) for table in tables for row in table.rows if row.median]
    return tuple(
        Neighbour(one, other) for one in own for other in known if _what(one) == _what(other)
    )


def _what(side: Side) -> tuple[object, ...]:
    group, shape = side.group, side.row.shape
    return group.device, group.model, group.precision, group.batch_size_per_device, shape


def data(found: Sequence[Neighbour]) -> list[dict[str, Any]]:
    """Return neighbours as docs/reference/json.md describes them."""
    return [
        {
            "point": one.own.name,
            "own": side_data(one.own),
            "published": side_data(one.theirs),
            "ratio": one.ratio,
            "differences": [contrast._asdict() for contrast in one.contrasts],
        }
        for one in found
    ]


def render(found: Sequence[Neighbour], word: str, width: int = 0) -> str:
    """Return neighbours for a terminal."""
    if not found:
        return _nothing(word)
    rows = [dict(zip(_COLUMNS, cells, strict=True)) for cells in _rows(found)]
    widths = {one: max(len(one), *(len(row[one]) for row in rows)) for one in _COLUMNS}
    head = aligned(dict(zip(_COLUMNS, _COLUMNS, strict=True)), widths)
    lines = [click.style(f"beside {word}", bold=True), "", click.style(head, dim=True)]
    lines += [aligned(row, widths) for row in rows]
    notes = [line for one in _notes(found) for line in fold(f"  · {one}", width, "    ")]
    return "\n".join([*lines, *notes])


def render_markdown(found: Sequence[Neighbour], word: str) -> str:
    """Return neighbours as Markdown."""
    if not found:
        return markdown.escape(_nothing(word))
    lines = [f"### Beside {markdown.escape(word)}", "", piped(_COLUMNS)]
    lines.append(piped([":---", ":---", "---:", "---:", "---:", ":---"]))
    lines += [piped(map(markdown.escape, cells)) for cells in _rows(found)]
    return "\n".join([*lines, "", *(f"* {markdown.escape(one)}" for one in _notes(found))])


def _nothing(word: str) -> str:
    return f"{word} has no number for these devices, models, precisions, batch sizes and shapes."


def _rows(found: Sequence[Neighbour]) -> list[tuple[str, ...]]:
    """Return the cells: your own line first, then published results for the same point."""
    lines: dict[str, list[tuple[str, ...]]] = {}
    for one in found:
        own = lines.setdefault(one.own.name, [_cells(one.own, one.own.name, "", "yours")])
        origin = one.theirs.row.origin
        own.append(_cells(one.theirs, "", f"{one.ratio:.1%}", origin.name if origin else ""))
    return [cells for own in lines.values() for cells in own]


def _cells(side: Side, name: str, ratio: str, where: str) -> tuple[str, ...]:
    median, gpus = side.row.median or 0, side.row.shape.gpus
    variant = f" {side.group.variant}" if side.group.variant else ""
    framework = plain(f"{side.group.framework}{variant}")
    return plain(name), framework, number(median), number(median / gpus), ratio, where


def _notes(found: Sequence[Neighbour]) -> list[str]:
    """Return the differences between the machines, each once."""
    told = (
        f"{one.what}: {' and '.join(one.base) or 'unknown'} there, "
        f"{' and '.join(one.new) or 'unknown'} here"
        for neighbour in found
        for one in neighbour.contrasts
        if one.what.startswith(_HARDWARE)
    )
    return [plain(one) for one in dict.fromkeys(told)]
