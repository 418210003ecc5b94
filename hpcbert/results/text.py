"""Speedup tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import click

from hpcbert.model import Provenance, Row, SpeedupTable
from hpcbert.results.grid import GAP, NOTHING, Cell, Column, Grid, fold_text, format_lines
from hpcbert.results.words import (
    cpu_suffix,
    describe_adaptive,
    describe_differences,
    describe_flags,
    describe_window,
    earlier_attempts,
    invalid_repeats,
    sanitize,
)

_INDENT = " " * 4
_TEXT_COLUMNS = (
    Column("nodes", "d"),
    Column("GPUs", "d"),
    Column("median samples/s", ".2f"),
    Column("min .. max", ">"),
    Column("cv", ".2%"),
    Column("speedup", ".2f"),
    Column("efficiency", ".1%"),
    Column("repeats", ">"),
    Column("flags"),
)
# The columns to keep if not all fit, by place: as many as fit. The others go below their row.
_COLUMN_CHOICES = (tuple(range(len(_TEXT_COLUMNS))), (0, 1, 2, 4, 5, 7), (0, 1, 2, 7), (0, 1, 2))
# Other flags describe the measurement; these say that something may be wrong with it.
_NEUTRAL_FLAGS = ("no-baseline", "accumulation")
# Each metric with its column, and the unit of the column.
METRIC_COLUMNS: dict[str, tuple[Column, float]] = {
    "samples_per_second_per_gpu": (Column("samples/s each", ".2f"), 1),
    "tokens_per_second": (Column("tokens/s", ".0f"), 1),
    "real_tokens_per_second": (Column("real tokens/s", ".0f"), 1),
    "step_seconds": (Column("step, ms", ".1f"), 1e-3),
    "step_seconds_p95": (Column("p95, ms", ".1f"), 1e-3),
    "model_flops_per_sample": (Column("GFLOP/sample", ".1f"), 1e9),
    "mfu": (Column("MFU", ".1%"), 1),
    "mfu_padded": (Column("padded MFU", ".1%"), 1),
    "gpu_memory_mib": (Column("memory, MiB", ".0f"), 1),
    "watts": (Column("W", ".0f"), 1),
    "samples_per_joule": (Column("samples/J", ".3f"), 1),
}


def render_text(tables: Iterable[SpeedupTable], provenance: Provenance, width: int = 0) -> str:
    """Return the tables with their headings and, below each row, its invalid repeats.

    Colours are in it; `click.echo` takes them out where they are not wanted.

    Args:
        tables: The tables to show.
        provenance: By what, when and by which command.
        width: The maximum length of a line; longer ones are folded. 0: no maximum.
    """
    parts = [_table_text(table, width) for table in tables]
    words = f"hpcbert {provenance.hpcbert} · {provenance.date} · {provenance.command}"
    text = "\n".join(click.style(line, dim=True) for line in fold_text(sanitize(words), width))
    return "\n\n".join([*parts, text])


def render_wide(tables: Iterable[SpeedupTable], provenance: Provenance, _width: int = 0) -> str:
    """Return the text of `render_text`, with the metrics below each table; no line is folded."""
    parts = [f"{_table_text(table, 0)}\n\n{_metrics_text(table)}" for table in tables]
    return "\n\n".join([*parts, render_text((), provenance)])


def _metrics_text(table: SpeedupTable) -> str:
    """Return a table of metrics and, below it, why some are unknown."""
    rows = [(row, row.metrics) for row in table.rows if row.metrics]
    cells: list[tuple[Cell, ...]] = []
    for row, metrics in rows:
        values = [(getattr(metrics, name), unit) for name, (_, unit) in METRIC_COLUMNS.items()]
        scaled = [None if value is None else value / unit for value, unit in values]
        cells.append((str(row.shape), *scaled))
    columns = (Column("shape", ">"), *(column for column, _ in METRIC_COLUMNS.values()))
    grid = Grid("metrics", "metrics", columns, tuple(cells))
    reasons = dict.fromkeys(reason for _, metrics in rows for reason in metrics.unknown)
    notes = []
    for name, explanation in reasons:
        if name in METRIC_COLUMNS:
            title = METRIC_COLUMNS[name][0].title.partition(",")[0]
            notes.append(f"{GAP}· no {title}: {sanitize(explanation)}")
    return "\n".join([*format_lines(grid), *notes])


def _table_text(table: SpeedupTable, width: int) -> str:
    head, *rows = _row_lines(table, width)
    lines = [*_heading_lines(table, width), "", *head]
    for row, row_lines in zip(table.rows, rows, strict=True):
        lines += [_colour_line(row, line) for line in row_lines]
        lines += _note_lines(f"{GAP}· ", describe_adaptive(row), width)
        lines += [
            line for refusal in invalid_repeats(row) for line in _refusal_lines(*refusal, width)
        ]
        lines += _note_lines(
            f"{GAP}· ", [note for run in row.runs for note in earlier_attempts(run)], width
        )
        lines += _note_lines(
            f"{GAP}! ", [*describe_flags(row), *describe_differences(row)], width, colour="yellow"
        )
    return "\n".join([*lines, *_note_lines(f"{GAP}· ", _likely_cause(table), width)])


def _row_lines(table: SpeedupTable, width: int) -> list[list[str]]:
    """Return the lines of the titles and of each row; values without a column go below theirs."""
    columns = _TEXT_COLUMNS
    if table.group.device == "cpu":
        columns = (columns[0], replace(columns[1], title="ranks (CPU)"), *columns[2:])
    grid = Grid("results", "", columns, tuple(_text_cells(row) for row in table.rows))
    layouts = [(places, format_lines(grid.select(places))) for places in _COLUMN_CHOICES]
    fitting_layouts = [layout for layout in layouts if not width or _text_width(layout[1]) <= width]
    places, (head, *lines) = (fitting_layouts or layouts[-1:])[0]
    row_lines = [[head]]
    for row, line in zip(grid.rows, lines, strict=True):
        cells_below = [
            f"{column.title} {column.shown(cell, separator=',')}"
            for place, (column, cell) in enumerate(zip(columns, row, strict=True))
            if place not in places and cell not in (None, "", NOTHING)
        ]
        row_lines.append(
            [
                line,
                *(
                    fold_text(_INDENT + ", ".join(cells_below), width, _INDENT)
                    if cells_below
                    else []
                ),
            ]
        )
    return row_lines


def _text_width(lines: Iterable[str]) -> int:
    return max(len(click.unstyle(line)) for line in lines)


def _text_cells(row: Row) -> tuple[Cell, ...]:
    # One run does not have a range.
    spread = NOTHING if row.cv is None else f"{row.min:,.2f} .. {row.max:,.2f}"
    return (
        row.shape.nodes,
        row.shape.gpus,
        row.median,
        spread,
        row.cv,
        row.speedup,
        row.efficiency,
        f"{row.ok}/{row.asked}",
        ", ".join(row.flags),
    )


def _likely_cause(table: SpeedupTable) -> Iterator[str]:
    """Yield why ranks on CPUs scatter, if they do: a GPU is rarely shared, a CPU often is."""
    if table.group.device == "cpu" and any("noisy" in row.flags for row in table.rows):
        yield "noisy: on CPUs, the likely cause is other programs that ran on the machine"


def _note_lines(sign: str, notes: Iterable[str], width: int, *, colour: str = "") -> list[str]:
    lines = [line for note in notes for line in fold_text(sign + note, width, " " * len(sign))]
    return [click.style(line[: len(sign)], fg=colour or None) + line[len(sign) :] for line in lines]


def _heading_lines(table: SpeedupTable, width: int) -> list[str]:
    group = table.group
    title = sanitize(
        f"{group.framework} · {group.model} · {group.precision}{cpu_suffix(group, ' · ')}"
    )
    batch = f" · {group.batch} samples per device"
    variant = f" · {sanitize(group.variant)}" if group.variant else ""
    base = f"speedup to the median of {table.baseline}"
    base = base if table.baseline else "no speedup: there is no valid run of 1n1g"
    counted = describe_window(table).replace("; ", " · ")
    first, *more = fold_text(title + batch + variant, width, GAP)
    name = click.style(first[: len(title)], bold=True) + first[len(title) :]
    return [name, *more, *fold_text(f"rule {sanitize(group.rule)} · {counted}{base}", width, GAP)]


def _colour_line(row: Row, line: str) -> str:
    if row.ok < row.asked:
        return click.style(line, fg="red")
    return click.style(line, fg="yellow") if set(row.flags).difference(_NEUTRAL_FLAGS) else line


def _refusal_lines(repeats: str, reason: str, width: int) -> list[str]:
    sign = f"{GAP}✗ {repeats}{':' if ' repeats' in repeats else ' '} "
    first, *more = fold_text(sign + reason, width, _INDENT)
    return [click.style(first[: len(sign)], fg="red") + first[len(sign) :], *more]
