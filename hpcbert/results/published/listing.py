"""What others got: rows of the whole record by model, devices and accelerator, best first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from hpcbert.errors import UsageError
from hpcbert.results.grid import Column, Grid, TableView
from hpcbert.results.published.record import (
    Publication,
    PublishedPoint,
    PublishedTable,
    load_source,
    source_names,
)
from hpcbert.system.decode import did_you_mean

_COLUMNS = (
    Column("year"),
    Column("program"),
    Column("accelerator"),
    Column("shape", ">"),
    Column("precision"),
    Column("tokens", "d"),
    Column("samples/s", ".1f"),
    Column("tokens/s", ".0f"),
    Column("per device", ".1f"),
    Column("min to train", "g"),
    Column("published in"),
)
# What makes names of one accelerator differ: makers, makers' words for a GPU, form and power.
_MAKERS = re.compile(
    r"\b(?:NVIDIA|AMD|Intel|Habana|Graphcore|Tesla|GPU|Blackwell|Instinct)\b", re.IGNORECASE
)
_NO_BRACKETS = str.maketrans("()", "  ")
# Rows that fit a screen.
_SCREEN = 30


class PublishedRow(NamedTuple):
    """One number of the record, with its table and source."""

    source: Publication
    table: PublishedTable
    point: PublishedPoint

    @property
    def accelerator(self) -> str:
        """The name of the accelerator without its maker's."""
        name = self.source.accelerator_of(self.table)
        return _MAKERS.sub(" ", name).translate(_NO_BRACKETS).strip()

    @property
    def rate(self) -> float:
        """The row's samples or tokens per second; 0 if only its minutes are known."""
        return self.point.value or 0.0

    @property
    def kind(self) -> tuple[object, ...]:
        """What rows that show the same have in common."""
        table = self.table
        family = re.split(r"[ -]", self.accelerator)[0]
        options = table.precision, table.sequence_length, table.unit, table.task, table.variant
        return table.framework, family, *options


class RowSelection(NamedTuple):
    """The rows to list.

    Attributes:
        model: Empty for all.
        gpus: Devices in all; None for any number.
        accelerator: A part of its name, in any case; empty for all.
    """

    model: str = ""
    gpus: int | None = None
    accelerator: str = ""


def select_rows(selection: RowSelection) -> tuple[PublishedRow, ...]:
    """Return the rows of all sources that a selection names, the highest rate first.

    Rows of tokens per second come after those of samples, and those with minutes alone come last.

    Raises:
        UsageError: There is none.
    """
    sources = [load_source(name) for name in source_names()]
    rows = [
        PublishedRow(source, table, point)
        for source in sources
        for table in source.tables
        for point in table.points
    ]
    models = sorted({row.table.model for row in rows})
    if selection.model and selection.model not in models:
        hint = did_you_mean(selection.model, models) or f"It has {', '.join(models)}."
        raise UsageError(f"The record has no model {selection.model!r}.", hint=hint)
    selected = [row for row in rows if _is_selected(row, selection)]
    if not selected:
        raise UsageError(
            "The record has no such row.",
            hint="Give fewer of --model, --gpus and --accelerator.",
        )
    return tuple(sorted(selected, key=_order))


def _is_selected(row: PublishedRow, selection: RowSelection) -> bool:
    return (
        selection.model in ("", row.table.model)
        and selection.gpus in (None, row.point.shape.gpus)
        and selection.accelerator.lower() in row.source.accelerator_of(row.table).lower()
    )


def _order(row: PublishedRow) -> tuple[bool, bool, bool, float, float]:
    table = row.table
    is_other, minutes = bool(table.task), row.point.minutes or 0.0
    return is_other, not row.rate, table.unit != "samples", -row.rate, minutes


def choose_best(rows: Sequence[PublishedRow]) -> list[PublishedRow]:
    """Return as many of the first rows of each kind as fit a screen, at least one, in order.

    A kind is a program on a family of accelerators, at a precision and a sequence length.
    """
    most = max(1, _SCREEN // len({row.kind for row in rows}))
    counts: dict[tuple[object, ...], int] = {}
    chosen = []
    for row in rows:
        counts[row.kind] = counts.get(row.kind, 0) + 1
        if counts[row.kind] <= most:
            chosen.append(row)
    return chosen


def make_row_view(rows: Sequence[PublishedRow], *, show_all: bool) -> TableView:
    """Return rows as a table, with a note for each that is another task."""
    chosen = rows if show_all else choose_best(rows)
    cells = tuple(_row_cells(row) for row in chosen)
    tasks = {row.table.task: row.table.model for row in chosen if row.table.task}
    notes = tuple(f"* another task: {model}: {task}" for task, model in tasks.items())
    if len(chosen) < len(rows):
        notes += (f"{len(rows) - len(chosen)} more rows of the same kinds: --all",)
    title = f"{len(rows)} published rows"
    grid = Grid("rows", title, _COLUMNS, cells).without_empty()
    return TableView((click.style(title, bold=True),), grid, notes)


def _row_cells(row: PublishedRow) -> tuple[Any, ...]:
    source, table, point = row
    is_sample_rate = table.unit == "samples"
    variant = f" {table.variant}" if table.variant else ""
    task = " *" if table.task else ""
    return (
        str(source.year_of(table) or ""),
        f"{table.framework}{variant}{task}",
        row.accelerator,
        str(point.shape),
        table.precision or "?",
        table.sequence_length,
        point.value if is_sample_rate else None,
        None if is_sample_rate else point.value,
        point.value / point.shape.gpus if point.value else None,
        point.minutes,
        source.full_name(table),
    )


def row_data(row: PublishedRow) -> dict[str, Any]:
    """Return a row as docs/reference/json.md describes it."""
    source, table, point = row
    return {
        "name": source.full_name(table),
        "year": source.year_of(table),
        "program": table.framework,
        "model": table.model,
        "accelerator": source.accelerator_of(table),
        "shape": str(point.shape),
        "devices": point.shape.gpus,
        "precision": table.precision or None,
        "sequence_length": table.sequence_length,
        "batch_size_per_device": table.batch_size_per_device,
        "unit": table.unit,
        "value": point.value,
        "per_device": point.value / point.shape.gpus if point.value else None,
        "minutes": point.minutes,
        "task": table.task,
        "source": source.location(table),
    }
