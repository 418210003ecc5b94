"""The figures of a report, as data; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

from hpcbert.model import Group, Row, SpeedupTable
from hpcbert.results.grid import Cell, Column, Grid
from hpcbert.results.report.model import (
    Panel,
    Picture,
    PlotSeries,
    Point,
    ReportInput,
    StepTrace,
    Words,
)
from hpcbert.results.wording import cpu_suffix, sanitize, table_title

# The number of distinguishable colours and markers; further lines go into another figure.
MAX_LINES = 6
# The most figures of each kind on a page; the tables have the numbers of all.
_MAX_PICTURES = 4
# The most places on an axis of names that remain readable.
_MAX_PLACES = 24
_MAX_DEVICES = 2


def make_pictures(inputs: ReportInput, words: Words) -> tuple[list[Picture], int]:
    """Return the figures of a report, the main one first, and how many more there would be."""
    tables = [table for table in inputs.tables if any(row.median for row in table.rows)]
    candidates = (
        _scaling_pictures(tables, inputs, words),
        _bar_pictures(tables, words),
        _spread_pictures(tables, words),
    )
    pictures = [picture for kind in candidates for picture in kind[:_MAX_PICTURES]]
    more = sum(max(0, len(kind) - _MAX_PICTURES) for kind in candidates)
    for number, trace in enumerate(inputs.step_traces, 1):
        pictures.append(_step_picture(number, trace, words))
    return pictures, more


def list_devices(tables: Iterable[SpeedupTable]) -> list[str]:
    """Return the names of the devices that tables were measured on, as nodes or logs state them."""
    names: dict[str, None] = {}
    for table in tables:
        for row in table.rows:
            facts = dict(row.facts)
            names |= dict.fromkeys(facts.get("GPU") or facts.get("device") or ())
    return [sanitize(name) for name in names]


def _split_tables(tables: Iterable[SpeedupTable]) -> list[tuple[str, list[SpeedupTable]]]:
    """Return the tables that belong together in figures, with their common name.

    A figure has one model, precision and kind of device, and at most MAX_LINES lines.
    """
    tables_by_name: dict[tuple[str, str], list[SpeedupTable]] = {}
    for table in tables:
        key = _picture_name(table.group), table.group.device
        tables_by_name.setdefault(key, []).append(table)
    return [
        (name, group_tables[start : start + MAX_LINES])
        for (name, _), group_tables in tables_by_name.items()
        for start in range(0, len(group_tables), MAX_LINES)
    ]


def _picture_name(group: Group) -> str:
    return sanitize(f"{group.model} {group.precision}{cpu_suffix(group, ' ')}")


def label_tables(tables: Sequence[SpeedupTable], words: Words) -> list[str]:
    """Return each table's framework, and of its batch size, variant and rule what differs."""
    common = _common_options(tables)
    parts = [
        (
            table.group.framework,
            words("batch-short", size=table.group.batch),
            ",".join(word for word in table.group.variant.split(",") if word not in common),
            words("rule", name=table.group.rule),
        )
        for table in tables
    ]
    differing = [0, *(place for place in (1, 2, 3) if len({part[place] for part in parts}) > 1)]
    # Two of the same label can differ in their rule alone.
    if len({tuple(part[place] for place in differing[:3]) for part in parts}) == len(parts):
        differing = [place for place in differing if place != 3]  # noqa: PLR2004 - the rule's
    return [
        sanitize(" ".join(filter(None, (part[place] for place in differing)))) for part in parts
    ]


def _common_options(tables: Sequence[SpeedupTable]) -> list[str]:
    """Return the words of the variant that all tables have."""
    variants = [table.group.variant.split(",") for table in tables]
    return [word for word in variants[0] if all(word in variant for variant in variants)]


def _describe_subject(tables: Sequence[SpeedupTable], words: Words) -> str:
    """Return what all lines have in common: batch size, options, device."""
    batches = {table.group.batch for table in tables}
    parts = [words("batch", size=min(batches))] if len(batches) == 1 else []
    parts.append(sanitize(",".join(_common_options(tables))))
    devices = list_devices(tables)
    parts += devices if len(devices) <= _MAX_DEVICES else []
    return " · ".join(filter(None, parts))


def _scaling_pictures(
    tables: Sequence[SpeedupTable], inputs: ReportInput, words: Words
) -> list[Picture]:
    """Return throughput and efficiency against GPUs, one figure per model and precision."""
    parts = [
        (name, part)
        for name, part in _split_tables(tables)
        if len({row.shape.gpus for table in part for row in table.rows if row.median}) > 1
    ]
    return [
        _scaling_picture(number, name, part, inputs, words)
        for number, (name, part) in enumerate(parts, 1)
    ]


def _scaling_picture(
    number: int, name: str, tables: Sequence[SpeedupTable], inputs: ReportInput, words: Words
) -> Picture:
    device = tables[0].group.device
    published = [table for table in inputs.published if _picture_name(table.group) == name]
    labels = label_tables(tables, words)
    labels += [sanitize(_origin_name(table)) for table in published]
    lines = [
        (label, table, place >= len(tables))
        for place, (label, table) in enumerate(zip(labels, [*tables, *published], strict=True))
    ]
    axis = words(f"axis.devices.{device}")
    throughput = tuple(
        PlotSeries(label, _throughput_points(table), published=grey) for label, table, grey in lines
    )
    efficiency = tuple(
        PlotSeries(label, points, format(points[-1][1], ".0%"), grey)
        for label, table, grey in lines
        if len(points := _efficiency_points(table)) > 1
    )
    gpus = sorted({row.shape.gpus for table in tables for row in table.rows if row.median})
    ideal = words("figure.ideal", name=_shorten(labels)) if labels[1:] else words("figure.linear")
    panels = [
        Panel(
            "scaling", axis, words("axis.throughput"), throughput,
            ideal=_ideal_line(tables[0], gpus), legend=ideal,
        )
    ]  # fmt: skip
    if efficiency:
        line = tuple((count, 1.0) for count in gpus)
        title = words("axis.efficiency")
        panels.append(
            Panel("efficiency", axis, title, efficiency, ideal=line, legend=words("figure.linear"))
        )
    columns = words.columns(
        *("line", "shape", f"devices.{device}:d", "samples:.2f", "min:.2f", "max:.2f"),
        *("speedup:.2f", "efficiency:.1%"),
    )
    cells: list[tuple[Cell, ...]] = [
        (label, str(row.shape), row.shape.gpus, *_row_range(row), row.speedup, row.efficiency)
        for label, table, _ in lines
        for row in table.rows
        if row.median
    ]
    title = words("figure.scaling", name=name)
    grid = Grid(f"figure-scaling-{number}", title, columns, tuple(cells), folded=True)
    ends = (_describe_line(label, table, words) for label, table, _ in lines)
    alt = words("figure.scaling.alt", name=name, lines=words("comma").join(ends))
    title = sanitize(inputs.title) if inputs.title and number == 1 else title
    subject = _describe_subject(tables, words)
    subject = f"{name} · {subject}" if inputs.title and number == 1 else subject
    return Picture(f"scaling-{number}", title, subject, alt, tuple(panels), grid)


def _shorten(labels: Sequence[str]) -> str:
    """Return the first label without the words that all begin with."""
    words = [label.split() for label in labels]
    common = takewhile(lambda column: len({*column}) == 1, zip(*words, strict=False))
    return " ".join(words[0][len([*common]) :]) or labels[0]


def _origin_name(table: SpeedupTable) -> str:
    return next((row.origin.name for row in table.rows if row.origin), "")


def _describe_line(label: str, table: SpeedupTable, words: Words) -> str:
    """Return one line of a figure in words: its ends."""
    rows = [row for row in table.rows if row.median]
    first, last = rows[0], rows[-1]
    return words(
        "figure.line",
        name=label,
        first=format(first.median, ".2f"),
        start=first.shape.gpus,
        last=format(last.median, ".2f"),
        end=last.shape.gpus,
    )


def _throughput_points(table: SpeedupTable) -> tuple[Point, ...]:
    return tuple((row.shape.gpus, *_row_range(row)) for row in table.rows if row.median)


def _efficiency_points(table: SpeedupTable) -> tuple[Point, ...]:
    points = []
    for row in table.rows:
        if row.median and row.efficiency:
            _, low, high = (value / row.median * row.efficiency for value in _row_range(row))
            points.append((row.shape.gpus, row.efficiency, low, high))
    return tuple(points)


def _ideal_line(table: SpeedupTable, gpus: Sequence[int]) -> tuple[tuple[float, float], ...]:
    """Return the ideal line: each GPU is as fast as those of the first point."""
    first = next(row for row in table.rows if row.median)
    rate = (first.median or 0.0) / first.shape.gpus
    return tuple((count, rate * count) for count in gpus)


def _bar_pictures(tables: Sequence[SpeedupTable], words: Words) -> list[Picture]:
    """Return frameworks side by side, samples per second per GPU."""
    parts = [
        (name, part)
        for name, part in _split_tables(tables)
        if len({table.group.framework for table in part}) > 1
    ]
    return [_bar_picture(number, name, part, words) for number, (name, part) in enumerate(parts, 1)]


def _bar_picture(number: int, name: str, tables: Sequence[SpeedupTable], words: Words) -> Picture:
    shapes = sorted(
        {row.shape for table in tables for row in table.rows if row.median},
        key=lambda shape: (shape.gpus, shape.nodes),
    )[:_MAX_PLACES]
    labels = label_tables(tables, words)
    series: list[PlotSeries] = []
    cells: list[tuple[Cell, ...]] = []
    for label, table in zip(labels, tables, strict=True):
        points = []
        for row in table.rows:
            if row.median and row.shape in shapes:
                middle, low, high = (value / row.shape.gpus for value in _row_range(row))
                points.append((shapes.index(row.shape), middle, low, high))
                cells.append((label, str(row.shape), middle, low, high))
        series.append(PlotSeries(label, tuple(points)))
    title = words("figure.beside", name=name)
    per_gpu = words("axis.per-gpu")
    columns = (
        *words.columns("line", "shape"),
        Column(per_gpu, ".2f"),
        *words.columns("min:.2f", "max:.2f"),
    )
    grid = Grid(f"figure-beside-{number}", title, columns, tuple(cells), folded=True)
    axis = words(f"axis.shape.{tables[0].group.device}")
    panel = Panel("bars", axis, per_gpu, tuple(series), names=tuple(map(str, shapes)))
    alt = words("figure.beside.alt", name=name, lines=words("comma").join(labels))
    subject = _describe_subject(tables, words)
    return Picture(f"beside-{number}", title, subject, alt, (panel,), grid)


def _row_range(row: Row) -> tuple[float, float, float]:
    middle = row.median or 0.0
    return middle, row.min or middle, row.max or middle


def _spread_pictures(tables: Sequence[SpeedupTable], words: Words) -> list[Picture]:
    """Return the runs of every point of a table, as distances from their median."""
    pictures: list[Picture] = []
    for table in tables:
        rows = [row for row in table.rows if row.median and len(_valid_speeds(row)) > 1]
        if rows:
            number = len(pictures) + 1
            pictures.append(_spread_picture(number, table, rows[:_MAX_PLACES], words))
    return pictures


def _valid_speeds(row: Row) -> list[tuple[int, float]]:
    """Return the valid runs; a published row may have none."""
    return [
        (run.repeat, run.throughput) for run in row.runs if run.valid and run.throughput is not None
    ]


def _spread_picture(number: int, table: SpeedupTable, rows: Sequence[Row], words: Words) -> Picture:
    points, cells = [], []
    for place, row in enumerate(rows):
        for repeat, speed in _valid_speeds(row):
            deviation = (speed / (row.median or speed) - 1) * 100
            points.append((place, deviation, deviation, deviation))
            cells.append((str(row.shape), repeat, speed, deviation / 100))
    columns = words.columns("shape", "repeat:d", "throughput:.2f", "distance:+.2%")
    name = table_title(table.group)
    title = words("figure.runs", name=name)
    grid = Grid(f"figure-runs-{number}", title, columns, tuple(cells), folded=True)
    axes = words(f"axis.shape.{table.group.device}"), words("axis.distance")
    series = PlotSeries(words("figure.run"), tuple(points))
    panel = Panel("runs", *axes, (series,), names=tuple(str(row.shape) for row in rows))
    widest = max(abs(point[1]) for point in points)
    alt = words("figure.runs.alt", name=name, points=len(rows), widest=format(widest, ".2f"))
    subject = _describe_subject([table], words)
    return Picture(f"runs-{number}", title, subject, alt, (panel,), grid)


def _step_picture(number: int, trace: StepTrace, words: Words) -> Picture:
    name = f"{table_title(trace.group)} {trace.shape}"
    name = words("figure.of-run", name=name, repeat=trace.repeat)
    title = words("figure.steps", name=name)
    axes = words("axis.iteration"), words("axis.seconds")
    columns = Column(axes[0], "d"), Column(axes[1], ".4f")
    grid = Grid(f"figure-steps-{number}", title, columns, trace.steps, folded=True)
    points = tuple((iteration, seconds, seconds, seconds) for iteration, seconds in trace.steps)
    series = PlotSeries(words("figure.step"), points)
    legend = words("figure.window")
    panel = Panel("steps", *axes, (series,), window=trace.window, legend=legend)
    first, last = trace.window
    alt = words("figure.steps.alt", name=name, first=first, last=last)
    parts = words("batch", size=trace.group.batch), sanitize(trace.group.variant)
    subject = " · ".join(filter(None, parts))
    return Picture(f"steps-{number}", title, subject, alt, (panel,), grid)
