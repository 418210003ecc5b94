"""The figures of a report and the contents of each; pure."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from hpcbert.results.grid import Column, Grid
from hpcbert.results.report.model import Panel, Picture, Series
from hpcbert.results.words import on_cpu, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hpcbert.model import Group, Row, SpeedupTable
    from hpcbert.results.grid import Cell
    from hpcbert.results.report.model import ReportInput, Stretch
    from hpcbert.results.report.words import Words

# The number of distinguishable colours and markers; further lines go into another figure.
LINES = 6
# The most figures of each kind on a page; the tables have the numbers of all.
_MOST = 4
# The most places on an axis of names that remain readable.
_PLACES = 24


def pictures(inputs: ReportInput, words: Words) -> tuple[list[Picture], int]:
    """Return the figures of a report, and how many more there would be."""
    drawn = [table for table in inputs.tables if any(row.median for row in table.rows)]
    found: list[Picture] = []
    more = 0
    for kind in (_scalings, _beside, _spreads):
        own = list(kind(drawn, words))
        found += own[:_MOST]
        more += len(own) - len(own[:_MOST])
    found += [_steps(number, stretch, words) for number, stretch in enumerate(inputs.stretches, 1)]
    return found, more


def _alike(tables: Iterable[SpeedupTable]) -> dict[tuple[str, str], list[SpeedupTable]]:
    """Return tables by figure, its name and the device."""
    found: dict[tuple[str, str], list[SpeedupTable]] = {}
    for table in tables:
        group = table.group
        found.setdefault((_name(group), group.device), []).append(table)
    return found


def _name(group: Group) -> str:
    return plain(f"{group.model} {group.precision}{on_cpu(group, ' ')}")


def _parts(tables: Sequence[SpeedupTable]) -> Iterator[tuple[SpeedupTable, ...]]:
    speedup_tables = iter(tables)
    while part := tuple(islice(speedup_tables, LINES)):
        yield part


def _label(table: SpeedupTable, words: Words) -> str:
    group = table.group
    parts = [plain(group.framework), words("batch-short", size=group.batch)]
    return " ".join([*parts, *([plain(group.variant)] if group.variant else [])])


def _scalings(tables: Sequence[SpeedupTable], words: Words) -> Iterator[Picture]:
    """Yield throughput and speedup against GPUs, one figure per model and precision."""
    number = 0
    for (name, _), speedup_tables in _alike(tables).items():
        for part in _parts(speedup_tables):
            number += 1
            yield _scaling(number, name, part, words)


def _scaling(number: int, name: str, tables: Sequence[SpeedupTable], words: Words) -> Picture:
    device = tables[0].group.device
    rows = [(table, row) for table in tables for row in table.rows if row.median]
    gpus = sorted({row.shape.gpus for _, row in rows})
    throughput = Panel(
        "scaling",
        words(f"axis.devices.{device}"),
        words("axis.throughput"),
        tuple(
            Series(_label(speedup_table, words), tuple(_ranges(speedup_table)))
            for speedup_table in tables
        ),
        ideal=_ideal(tables[0], gpus),
        legend=words("figure.ideal", name=_label(tables[0], words)),
    )
    ratios = tuple(
        Series(_label(speedup_table, words), tuple(_ratios(speedup_table)))
        for speedup_table in tables
        if speedup_table.baseline
    )
    speedup = Panel(
        "scaling",
        words(f"axis.devices.{device}"),
        words("axis.speedup"),
        ratios,
        ideal=tuple((gpu, gpu) for gpu in gpus),
        legend=words("figure.linear"),
    )
    columns = words.columns(
        "line", "shape", f"devices.{device}:d", "samples:.2f", "min:.2f", "max:.2f", "speedup:.2f"
    )
    cells: list[tuple[Cell, ...]] = [
        (
            _label(table, words),
            str(row.shape),
            row.shape.gpus,
            row.median,
            row.min,
            row.max,
            row.speedup,
        )
        for table, row in rows
    ]
    text = words("comma").join(_said(speedup_table, words) for speedup_table in tables)
    title = words("figure.scaling", name=name)
    grid = Grid(f"figure-scaling-{number}", title, columns, tuple(cells), folded=True)
    panels = (throughput, speedup) if ratios else (throughput,)
    alt = words("figure.scaling.alt", name=name, lines=text)
    return Picture(f"scaling-{number}", title, alt, panels, grid)


def _said(table: SpeedupTable, words: Words) -> str:
    """Return one line of a figure in words: its ends."""
    rows = [row for row in table.rows if row.median]
    first, last = rows[0], rows[-1]
    return words(
        "figure.line",
        name=_label(table, words),
        first=format(first.median, ".2f"),
        start=first.shape.gpus,
        last=format(last.median, ".2f"),
        end=last.shape.gpus,
    )


def _ranges(table: SpeedupTable) -> Iterator[tuple[float, float, float, float]]:
    for row in table.rows:
        if row.median:
            low, high = row.min or row.median, row.max or row.median
            yield float(row.shape.gpus), row.median, low, high


def _ratios(table: SpeedupTable) -> Iterator[tuple[float, float, float, float]]:
    for row in table.rows:
        if row.median and row.speedup:
            unit = row.median / row.speedup
            low, high = (row.min or row.median) / unit, (row.max or row.median) / unit
            yield float(row.shape.gpus), row.speedup, low, high


def _ideal(table: SpeedupTable, gpus: Sequence[int]) -> tuple[tuple[float, float], ...]:
    """Return the ideal line: each GPU is as fast as those of the first point."""
    first = next(row for row in table.rows if row.median)
    median = (first.median or 0.0) / first.shape.gpus
    return tuple((float(gpu), median * gpu) for gpu in gpus)


def _beside(tables: Sequence[SpeedupTable], words: Words) -> Iterator[Picture]:
    """Yield frameworks side by side, samples per second per GPU."""
    number = 0
    for (name, _), speedup_tables in _alike(tables).items():
        if len({speedup_table.group.framework for speedup_table in speedup_tables}) > 1:
            for part in _parts(speedup_tables):
                number += 1
                yield _bars(number, name, part, words)


def _bars(number: int, name: str, tables: Sequence[SpeedupTable], words: Words) -> Picture:
    device = tables[0].group.device
    shapes = sorted(
        {row.shape for speedup_table in tables for row in speedup_table.rows if row.median},
        key=lambda shape: (shape.gpus, shape.nodes),
    )[:_PLACES]
    place = {shape: number for number, shape in enumerate(shapes)}
    series: list[Series] = []
    cells: list[tuple[Cell, ...]] = []
    for table in tables:
        points = []
        for row in table.rows:
            if row.median and row.shape in place:
                rates = [value / row.shape.gpus for value in _spread(row)]
                points.append((float(place[row.shape]), rates[0], rates[1], rates[2]))
                cells.append((_label(table, words), str(row.shape), *rates))
        series.append(Series(_label(table, words), tuple(points)))
    columns = (
        *words.columns("line", "shape"),
        Column(words("axis.per-gpu"), ".2f"),
        *words.columns("min:.2f", "max:.2f"),
    )
    title = words("figure.beside", name=name)
    grid = Grid(f"figure-beside-{number}", title, columns, tuple(cells), folded=True)
    panel = Panel(
        "bars",
        words(f"axis.shape.{device}"),
        words("axis.per-gpu"),
        tuple(series),
        names=tuple(map(str, shapes)),
    )
    lines = words("comma").join(_label(speedup_table, words) for speedup_table in tables)
    alt = words("figure.beside.alt", name=name, lines=lines)
    return Picture(f"beside-{number}", title, alt, (panel,), grid)


def _spread(row: Row) -> tuple[float, float, float]:
    middle = row.median or 0.0
    return middle, row.min or middle, row.max or middle


def _spreads(tables: Sequence[SpeedupTable], words: Words) -> Iterator[Picture]:
    """Yield the runs of every point of a table, as distances from their median."""
    number = 0
    for table in tables:
        rows = [row for row in table.rows if row.median and _speeds(row)[1:]][:_PLACES]
        if rows:
            number += 1
            yield _runs(number, table, rows, words)


def _speeds(row: Row) -> list[tuple[int, float]]:
    """Return the valid runs; a published row may have none."""
    return [
        (run.repeat, run.throughput) for run in row.runs if run.valid and run.throughput is not None
    ]


def _runs(number: int, table: SpeedupTable, rows: Sequence[Row], words: Words) -> Picture:
    points, cells = [], []
    for place, row in enumerate(rows):
        for repeat, speed in _speeds(row):
            away = (speed / (row.median or speed) - 1) * 100
            points.append((float(place), away, away, away))
            cells.append((str(row.shape), repeat, speed, away / 100))
    label, group = _label(table, words), table.group
    device = group.device
    columns = words.columns("shape", "repeat:d", "throughput:.2f", "distance:+.2%")
    name = f"{label} {_name(group)}"
    title = words("figure.runs", name=name)
    grid = Grid(f"figure-runs-{number}", title, columns, tuple(cells), folded=True)
    panel = Panel(
        "runs",
        words(f"axis.shape.{device}"),
        words("axis.distance"),
        (Series(words("figure.run"), tuple(points)),),
        names=tuple(str(row.shape) for row in rows),
    )
    widest = max(abs(point[1]) for point in points)
    alt = words("figure.runs.alt", name=name, points=len(rows), widest=format(widest, ".2f"))
    return Picture(f"runs-{number}", title, alt, (panel,), grid)


def _steps(number: int, stretch: Stretch, words: Words) -> Picture:
    group = stretch.group
    name = f"{plain(group.framework)} {_name(group)} {stretch.shape}"
    name = words("figure.of-run", name=name, repeat=stretch.repeat)
    points = tuple((float(at), seconds, seconds, seconds) for at, seconds in stretch.steps)
    columns = (Column(words("axis.iteration"), "d"), Column(words("axis.seconds"), ".4f"))
    title = words("figure.steps", name=name)
    grid = Grid(f"figure-steps-{number}", title, columns, stretch.steps, folded=True)
    first, last = stretch.window
    panel = Panel(
        "steps",
        words("axis.iteration"),
        words("axis.seconds"),
        (Series(words("figure.step"), points),),
        window=(float(first), float(last)),
        legend=words("figure.window"),
    )
    alt = words("figure.steps.alt", name=name, first=first, last=last)
    return Picture(f"steps-{number}", title, alt, (panel,), grid)
