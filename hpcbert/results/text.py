"""Speedup tables for a terminal."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import click

from hpcbert.results.words import (
    basis,
    differences,
    earlier,
    marks,
    on_cpu,
    plain,
    protocol,
    refusals,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from hpcbert.model import Provenance, Row, SpeedupTable

NOTHING = "-"
_GAP = "  "
_BELOW = " " * 4
# The column's title, and its name in the code, for any device.
_DEVICES = "GPUs"
_COLUMNS = (
    "nodes",
    _DEVICES,
    "median samples/s",
    "min .. max",
    "cv",
    "speedup",
    "efficiency",
    "repeats",
    "flags",
)
_LEFT = ("flags",)
# The columns to keep if not all fit: as many as fit. The others go below their row.
_NARROWER = (
    ("nodes", _DEVICES, "median samples/s", "cv", "speedup", "repeats"),
    ("nodes", _DEVICES, "median samples/s", "repeats"),
    ("nodes", _DEVICES, "median samples/s"),
)
# Lines are never folded to less than this.
_LEAST = 20
# Other flags describe the measurement; these say that something may be wrong with it.
_QUIET = ("no-baseline", "accumulation")


def number(value: float | None, form: str = ",.2f") -> str:
    """Return a number as text, or a dash if there is none."""
    return NOTHING if value is None else format(value, form)


def render_wide(tables: Iterable[SpeedupTable], made: Provenance, _width: int = 0) -> str:
    """Return the text of `render`, with the metrics below each table; no line is folded."""
    known = tuple(tables)
    parts = [f"{_table(one, 0)}\n\n{_measures(one)}" for one in known]
    return "\n\n".join([*parts, render((), made)])


def _measures(table: SpeedupTable) -> str:
    """Return a table of metrics and, below it, why some are unknown."""
    rows = [(row, row.metrics) for row in table.rows if row.metrics]
    lines = [
        (str(row.shape), *(write(getattr(own, name)) for _, name, write in _MEASURES))
        for row, own in rows
    ]
    titles = ("shape", *(title for title, _, _ in _MEASURES))
    widths = [max(map(len, column)) for column in zip(titles, *lines, strict=True)]
    head, *rest = (
        _GAP.join(cell.rjust(size) for cell, size in zip(line, widths, strict=True))
        for line in (titles, *lines)
    )
    why = {(name, told): None for _, own in rows for name, told in own.unknown}
    called = {name: title.partition(",")[0] for title, name, _ in _MEASURES}
    notes = [f"{_GAP}· no {called[name]}: {plain(told)}" for name, told in why if name in called]
    return "\n".join([click.style(head, dim=True), *rest, *notes])


def _scaled(form: str, unit: float = 1.0) -> Callable[[float | None], str]:
    return lambda value: number(None if value is None else value / unit, form)


_MEASURES: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("samples/s each", "samples_per_second_per_gpu", _scaled(",.2f")),
    ("tokens/s", "tokens_per_second", _scaled(",.0f")),
    ("real tokens/s", "real_tokens_per_second", _scaled(",.0f")),
    ("step, ms", "step_seconds", _scaled(",.1f", 1e-3)),
    ("p95, ms", "step_seconds_p95", _scaled(",.1f", 1e-3)),
    ("GFLOP/sample", "model_flops_per_sample", _scaled(",.1f", 1e9)),
    ("MFU", "mfu", _scaled(".1%")),
    ("padded MFU", "mfu_padded", _scaled(".1%")),
    ("memory, MiB", "gpu_memory_mib", _scaled(",.0f")),
    ("W", "watts", _scaled(",.0f")),
    ("samples/J", "samples_per_joule", _scaled(",.3f")),
)


def render(tables: Iterable[SpeedupTable], made: Provenance, width: int = 0) -> str:
    """Return the tables with their headings and, below each row, its invalid repeats.

    Colours are in it; `click.echo` takes them out where they are not wanted.

    Args:
        tables: The tables to show.
        made: By what, when and by which command.
        width: The maximum length of a line; longer ones are folded. 0: no maximum.
    """
    parts = [_table(table, width) for table in tables]
    words = f"hpcbert {made.hpcbert} · {made.date} · {made.command}"
    how = "\n".join(click.style(one, dim=True) for one in fold(plain(words), width))
    return "\n\n".join([*parts, how])


def fold(text: str, width: int, indent: str = "") -> list[str]:
    """Return a text as lines of limited length, the later ones indented."""
    if not width or len(text) <= width:
        return [text]
    # A long path is not folded, so that it can be copied.
    return textwrap.wrap(
        text,
        max(width, _LEAST),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _table(table: SpeedupTable, width: int) -> str:
    cells = [dict(zip(_COLUMNS, _cells(row), strict=True)) for row in table.rows]
    named = {_DEVICES: "ranks (CPU)"} if table.group.device == "cpu" else {}
    widths = {
        title: max(len(named.get(title, title)), *(len(one[title]) for one in cells))
        for title in _COLUMNS
    }
    titles = _fitting(widths, width)
    head = _line({one: named.get(one, one) for one in _COLUMNS}, titles, widths)
    lines = [*_heading(table, width), "", click.style(head, dim=True)]
    for row, own in zip(table.rows, cells, strict=True):
        lines += [_coloured(row, one) for one in _row(own, titles, widths, width)]
        lines += _notes(f"{_GAP}· ", protocol(row), width)
        lines += [line for one in refusals(row) for line in _refusal(*one, width)]
        lines += _notes(f"{_GAP}· ", [one for run in row.runs for one in earlier(run)], width)
        lines += _notes(f"{_GAP}! ", [*marks(row), *differences(row)], width, colour="yellow")
    return "\n".join([*lines, *_notes(f"{_GAP}· ", _likely_cause(table), width)])


def _likely_cause(table: SpeedupTable) -> Iterator[str]:
    """Yield why ranks on CPUs scatter, if they do: a GPU is rarely shared, a CPU often is."""
    if table.group.device == "cpu" and any("noisy" in row.flags for row in table.rows):
        yield "noisy: on CPUs, the likely cause is other programs that ran on the machine"


def _row(
    cells: Mapping[str, str], titles: Sequence[str], widths: Mapping[str, int], width: int
) -> list[str]:
    """Return a row: its columns, and below them the values without a column."""
    rest = [f"{one} {text}" for one, text in cells.items() if one not in titles]
    said = [one for one in rest if not one.endswith((" ", f" {NOTHING}"))]
    below = fold(_BELOW + ", ".join(said), width, _BELOW) if said else []
    return [_line(cells, titles, widths), *below]


def _fitting(widths: Mapping[str, int], width: int) -> Sequence[str]:
    """Return the columns that fit into a line with this many characters."""
    for titles in (_COLUMNS, *_NARROWER):
        if not width or sum(widths[one] + len(_GAP) for one in titles) - len(_GAP) <= width:
            return titles
    return _NARROWER[-1]


def _notes(sign: str, notes: Iterable[str], width: int, *, colour: str = "") -> list[str]:
    folded = [fold(sign + one, width, " " * len(sign)) for one in notes]
    return [
        click.style(line[: len(sign)], fg=colour or None) + line[len(sign) :]
        for lines in folded
        for line in lines
    ]


def _heading(table: SpeedupTable, width: int) -> list[str]:
    group = table.group
    title = plain(f"{group.framework} · {group.model} · {group.precision}{on_cpu(group, ' · ')}")
    batch = f" · {group.batch} samples per device"
    variant = f" · {plain(group.variant)}" if group.variant else ""
    base = f"speedup to the median of {table.baseline}"
    base = base if table.baseline else "no speedup: there is no valid run of 1n1g"
    counted = basis(table).replace("; ", " · ")
    first, *more = fold(title + batch + variant, width, _GAP)
    name = click.style(first[: len(title)], bold=True) + first[len(title) :]
    return [name, *more, *fold(f"rule {plain(group.rule)} · {counted}{base}", width, _GAP)]


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


def _line(cells: Mapping[str, str], titles: Iterable[str], widths: Mapping[str, int]) -> str:
    padded = (
        cells[one].ljust(widths[one]) if one in _LEFT else cells[one].rjust(widths[one])
        for one in titles
    )
    return _GAP.join(padded).rstrip()


def _coloured(row: Row, line: str) -> str:
    if row.ok < row.asked:
        return click.style(line, fg="red")
    return click.style(line, fg="yellow") if set(row.flags).difference(_QUIET) else line


def _refusal(who: str, why: str, width: int) -> list[str]:
    sign = f"{_GAP}✗ {who}{':' if ' repeats' in who else ' '} "
    first, *more = fold(sign + why, width, _BELOW)
    return [click.style(first[: len(sign)], fg="red") + first[len(sign) :], *more]
