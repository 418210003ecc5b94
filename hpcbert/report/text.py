"""Speedup tables for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hpcbert.report.words import basis, differences, earlier, marks, plain, why

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hpcbert.model import Provenance, Row, Run, SpeedupTable

NOTHING = "-"
_GAP = "  "
_COLUMNS = (
    "nodes",
    "GPUs",
    "median samples/s",
    "min .. max",
    "cv",
    "speedup",
    "efficiency",
    "repeats",
    "flags",
)
_LEFT = ("flags",)
# The others say what was measured; these say that something may be wrong with it.
_QUIET = ("no-baseline", "accumulation")


def number(value: float | None, form: str = ",.2f") -> str:
    """Return a number as people read it, or a dash where there is none."""
    return NOTHING if value is None else format(value, form)


def render(tables: Iterable[SpeedupTable], made: Provenance | None = None) -> str:
    """Return the tables with their headings and, below each row, the repeats that don't count.

    Colours are in it; `click.echo` takes them out where they are not wanted.
    """
    parts = [_table(table) for table in tables]
    if made:
        words = f"hpcbert {made.hpcbert} · {made.date} · {made.command}"
        parts.append(click.style(plain(words), dim=True))
    return "\n\n".join(parts)


def _table(table: SpeedupTable) -> str:
    cells = [_cells(row) for row in table.rows]
    widths = [
        max(len(title), *(len(line[place]) for line in cells))
        for place, title in enumerate(_COLUMNS)
    ]
    lines = [*_heading(table), "", click.style(_line(_COLUMNS, widths), dim=True)]
    for row, line in zip(table.rows, cells, strict=True):
        lines.append(_coloured(row, _line(line, widths)))
        lines += [_refusal(run) for run in row.runs if not run.valid]
        lines += [f"{_GAP}· {one}" for run in row.runs for one in earlier(run)]
        notes = (*marks(row), *differences(row))
        lines += [f"{click.style(f'{_GAP}! ', fg='yellow')}{one}" for one in notes]
    return "\n".join(lines)


def _heading(table: SpeedupTable) -> tuple[str, str]:
    group = table.group
    title = plain(f"{group.framework} · {group.model} · {group.precision}")
    name = click.style(title, bold=True)
    batch = f" · {group.batch_size_per_device} samples per device"
    variant = f" · {plain(group.variant)}" if group.variant else ""
    base = f"speedup to the median of {table.baseline}"
    base = base if table.baseline else "no speedup: there is no valid run of 1n1g"
    counted = basis(table).replace("; ", " · ")
    return name + batch + variant, f"rule {plain(group.rule)} · {counted}{base}"


def _cells(row: Row) -> tuple[str, ...]:
    spread = NOTHING if row.cv is None else f"{number(row.min)} .. {number(row.max)}"
    return (
        str(row.shape.nodes),
        str(row.shape.gpus),
        number(row.median),
        spread,
        number(row.cv, ".2%"),
        number(row.speedup, ".2f"),
        number(row.efficiency, ".1%"),
        f"{row.ok}/{row.asked}",
        ", ".join(row.flags),
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (
        cell.ljust(width) if title in _LEFT else cell.rjust(width)
        for title, cell, width in zip(_COLUMNS, cells, widths, strict=True)
    )
    return _GAP.join(padded).rstrip()


def _coloured(row: Row, line: str) -> str:
    if row.ok < row.asked:
        return click.style(line, fg="red")
    return click.style(line, fg="yellow") if set(row.flags).difference(_QUIET) else line


def _refusal(run: Run) -> str:
    attempt = f" (attempt {run.attempt})" if run.attempt else ""
    return click.style(f"{_GAP}✗ repeat {run.repeat}{attempt}  ", fg="red") + why(run)
