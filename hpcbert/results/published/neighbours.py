"""Rows of the record: those next to your own points, and lists by model, devices, accelerator."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import click

from hpcbert.errors import UsageError
from hpcbert.model import SpeedupTable
from hpcbert.results.compare import Contrast, Side, find_contrasts, side_data
from hpcbert.results.grid import Cell, Column, Grid, TableView
from hpcbert.results.published.record import (
    Publication,
    PublishedPoint,
    PublishedTable,
    load_source,
    published_results,
    source_names,
)
from hpcbert.results.wording import sanitize
from hpcbert.system.decode import did_you_mean

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


_ROW_COLUMNS = (
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
        variant = re.sub(r",?acc\d+", "", table.variant)
        options = table.precision, table.sequence_length, table.unit, table.task, variant
        return table.framework, family, *options


def select_rows(model: str, gpus: int | None, accelerator: str) -> tuple[PublishedRow, ...]:
    """Return the rows of all sources that fit, the highest rate first.

    Rows of tokens per second come after those of samples, and those with minutes alone come last.

    Args:
        model: Empty for all.
        gpus: Devices in all; None for any number.
        accelerator: A part of its name, in any case; empty for all.

    Raises:
        UsageError: There is none.
    """
    rows = [
        PublishedRow(source, table, point)
        for source in map(load_source, source_names())
        for table in source.tables
        for point in table.points
    ]
    models = sorted({row.table.model for row in rows})
    if model and model not in models:
        hint = did_you_mean(model, models) or f"It has {', '.join(models)}."
        raise UsageError(f"The record has no model {model!r}.", hint=hint)
    selected = [
        row
        for row in rows
        if model in ("", row.table.model)
        and gpus in (None, row.point.shape.gpus)
        and accelerator.lower() in row.source.accelerator_of(row.table).lower()
    ]
    if not selected:
        hint = "Give fewer of --model, --gpus and --accelerator."
        raise UsageError("The record has no such row.", hint=hint)
    return tuple(sorted(selected, key=_order))


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
    grid = Grid("rows", title, _ROW_COLUMNS, cells).without_empty()
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
