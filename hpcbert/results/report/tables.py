"""The sections with the results: published tables, pivots, metrics, figures and all runs; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from hpcbert.model import Group, Row, Run, SpeedupTable
from hpcbert.results.formats import PUBLISHED_COLUMNS, published_cells
from hpcbert.results.grid import Cell, Column, Grid
from hpcbert.results.report.model import (
    Block,
    Heading,
    Items,
    Panel,
    Paragraph,
    Picture,
    Point,
    ReportInput,
    Series,
    StepTrace,
    Words,
)
from hpcbert.results.wording import (
    cpu_suffix,
    describe_reasons,
    row_notes,
    sanitize,
    table_title,
)

# The number of distinguishable colours and markers; further lines go into another figure.
MAX_LINES = 6
# The most figures of each kind on a page; the tables have the numbers of all.
_MAX_PICTURES = 4
# The most places on an axis of names that remain readable.
_MAX_PLACES = 24
# As hpcbert.logs.window writes it.
_SPAN = re.compile(r"(?P<unit>iterations|records) (?P<first>\d+) to (?P<last>\d+|\D+)")
# Each metric with its number format, in the order of the table.
_METRIC_FORMATS = {
    "samples_per_second_per_gpu": ".2f",
    "tokens_per_second": ".0f",
    "real_tokens_per_second": ".0f",
    "step_seconds": ".4f",
    "step_seconds_p95": ".4f",
    "model_flops_per_sample": ".3e",
    "mfu": ".1%",
    "mfu_padded": ".1%",
    "gpu_memory_mib": ".0f",
    "watts": ".0f",
    "samples_per_joule": ".3f",
}
# These are omitted if nothing ran on GPUs.
_GPU_METRICS = ("mfu", "mfu_padded", "gpu_memory_mib", "watts", "samples_per_joule")


def make_pictures(inputs: ReportInput, words: Words) -> tuple[list[Picture], int]:
    """Return the figures of a report, and how many more there would be."""
    measured_tables = [table for table in inputs.tables if any(row.median for row in table.rows)]
    figures: list[Picture] = []
    more = 0
    for kind in (_scaling_pictures, _bar_pictures, _spread_pictures):
        candidates = kind(measured_tables, words)
        figures += candidates[:_MAX_PICTURES]
        more += max(0, len(candidates) - _MAX_PICTURES)
    for number, trace in enumerate(inputs.step_traces, 1):
        figures.append(_step_picture(number, trace, words))
    return figures, more


def _group_tables(tables: Iterable[SpeedupTable]) -> list[tuple[str, list[SpeedupTable]]]:
    """Return the tables that belong together in figures, with their common name."""
    tables_by_name: dict[tuple[str, str], list[SpeedupTable]] = {}
    for table in tables:
        group = table.group
        tables_by_name.setdefault((_picture_name(group), group.device), []).append(table)
    return [(name, group_tables) for (name, _), group_tables in tables_by_name.items()]


def _picture_name(group: Group) -> str:
    return sanitize(f"{group.model} {group.precision}{cpu_suffix(group, ' ')}")


def _split_tables(
    groups: Iterable[tuple[str, list[SpeedupTable]]],
) -> list[tuple[str, list[SpeedupTable]]]:
    """Return groups of tables in parts with as many lines as one figure can have."""
    return [
        (name, tables[start : start + MAX_LINES])
        for name, tables in groups
        for start in range(0, len(tables), MAX_LINES)
    ]


def _series_label(table: SpeedupTable, words: Words) -> str:
    group = table.group
    parts = [sanitize(group.framework), words("batch-short", size=group.batch)]
    parts += [sanitize(group.variant)] if group.variant else []
    return " ".join(parts)


def _scaling_pictures(tables: Sequence[SpeedupTable], words: Words) -> list[Picture]:
    """Return throughput and speedup against GPUs, one figure per model and precision."""
    return [
        _scaling_picture(number, name, part, words)
        for number, (name, part) in enumerate(_split_tables(_group_tables(tables)), 1)
    ]


def _scaling_picture(
    number: int, name: str, tables: Sequence[SpeedupTable], words: Words
) -> Picture:
    device = tables[0].group.device
    labels = [_series_label(table, words) for table in tables]
    gpus = sorted({row.shape.gpus for table in tables for row in table.rows if row.median})
    throughput, speedup = [], []
    cells: list[tuple[Cell, ...]] = []
    for label, table in zip(labels, tables, strict=True):
        throughput.append(Series(label, _throughput_points(table)))
        if table.baseline:
            speedup.append(Series(label, _speedup_points(table)))
        for row in table.rows:
            if row.median:
                numbers = row.shape.gpus, row.median, row.min, row.max, row.speedup
                cells.append((label, str(row.shape), *numbers))
    axis = words(f"axis.devices.{device}")
    panels = [
        Panel(
            "scaling",
            axis,
            words("axis.throughput"),
            tuple(throughput),
            ideal=_ideal_line(tables[0], gpus),
            legend=words("figure.ideal", name=labels[0]),
        )
    ]
    if speedup:
        ideal = tuple((gpu, gpu) for gpu in gpus)
        title = words("axis.speedup")
        legend = words("figure.linear")
        panels.append(Panel("scaling", axis, title, tuple(speedup), ideal=ideal, legend=legend))
    columns = words.columns(
        "line", "shape", f"devices.{device}:d", "samples:.2f", "min:.2f", "max:.2f", "speedup:.2f"
    )
    title = words("figure.scaling", name=name)
    grid = Grid(f"figure-scaling-{number}", title, columns, tuple(cells), folded=True)
    lines = words("comma").join(_describe_line(table, words) for table in tables)
    alt = words("figure.scaling.alt", name=name, lines=lines)
    return Picture(f"scaling-{number}", title, alt, tuple(panels), grid)


def _describe_line(table: SpeedupTable, words: Words) -> str:
    """Return one line of a figure in words: its ends."""
    rows = [row for row in table.rows if row.median]
    first, last = rows[0], rows[-1]
    return words(
        "figure.line",
        name=_series_label(table, words),
        first=format(first.median, ".2f"),
        start=first.shape.gpus,
        last=format(last.median, ".2f"),
        end=last.shape.gpus,
    )


def _throughput_points(table: SpeedupTable) -> tuple[Point, ...]:
    return tuple((row.shape.gpus, *_row_range(row)) for row in table.rows if row.median)


def _speedup_points(table: SpeedupTable) -> tuple[Point, ...]:
    points = []
    for row in table.rows:
        if row.median and row.speedup:
            _, low, high = _row_range(row)
            unit = row.median / row.speedup
            points.append((row.shape.gpus, row.speedup, low / unit, high / unit))
    return tuple(points)


def _ideal_line(table: SpeedupTable, gpus: Sequence[int]) -> tuple[tuple[float, float], ...]:
    """Return the ideal line: each GPU is as fast as those of the first point."""
    first = next(row for row in table.rows if row.median)
    rate = (first.median or 0.0) / first.shape.gpus
    return tuple((count, rate * count) for count in gpus)


def _bar_pictures(tables: Sequence[SpeedupTable], words: Words) -> list[Picture]:
    """Return frameworks side by side, samples per second per GPU."""
    groups = [
        (name, group_tables)
        for name, group_tables in _group_tables(tables)
        if len({table.group.framework for table in group_tables}) > 1
    ]
    return [
        _bar_picture(number, name, part, words)
        for number, (name, part) in enumerate(_split_tables(groups), 1)
    ]


def _bar_picture(number: int, name: str, tables: Sequence[SpeedupTable], words: Words) -> Picture:
    shapes = sorted(
        {row.shape for table in tables for row in table.rows if row.median},
        key=lambda shape: (shape.gpus, shape.nodes),
    )[:_MAX_PLACES]
    labels = [_series_label(table, words) for table in tables]
    series: list[Series] = []
    cells: list[tuple[Cell, ...]] = []
    for label, table in zip(labels, tables, strict=True):
        points = []
        for row in table.rows:
            if row.median and row.shape in shapes:
                middle, low, high = (value / row.shape.gpus for value in _row_range(row))
                points.append((shapes.index(row.shape), middle, low, high))
                cells.append((label, str(row.shape), middle, low, high))
        series.append(Series(label, tuple(points)))
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
    return Picture(f"beside-{number}", title, alt, (panel,), grid)


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
    name = f"{_series_label(table, words)} {_picture_name(table.group)}"
    title = words("figure.runs", name=name)
    grid = Grid(f"figure-runs-{number}", title, columns, tuple(cells), folded=True)
    axes = words(f"axis.shape.{table.group.device}"), words("axis.distance")
    series = Series(words("figure.run"), tuple(points))
    panel = Panel("runs", *axes, (series,), names=tuple(str(row.shape) for row in rows))
    widest = max(abs(point[1]) for point in points)
    alt = words("figure.runs.alt", name=name, points=len(rows), widest=format(widest, ".2f"))
    return Picture(f"runs-{number}", title, alt, (panel,), grid)


def _step_picture(number: int, trace: StepTrace, words: Words) -> Picture:
    name = f"{table_title(trace.group)} {trace.shape}"
    name = words("figure.of-run", name=name, repeat=trace.repeat)
    title = words("figure.steps", name=name)
    axes = words("axis.iteration"), words("axis.seconds")
    columns = Column(axes[0], "d"), Column(axes[1], ".4f")
    grid = Grid(f"figure-steps-{number}", title, columns, trace.steps, folded=True)
    points = tuple((iteration, seconds, seconds, seconds) for iteration, seconds in trace.steps)
    series = Series(words("figure.step"), points)
    legend = words("figure.window")
    panel = Panel("steps", *axes, (series,), window=trace.window, legend=legend)
    first, last = trace.window
    alt = words("figure.steps.alt", name=name, first=first, last=last)
    return Picture(f"steps-{number}", title, alt, (panel,), grid)


def describe_results(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return each table as it is published, and the pivots that reports use."""
    if not inputs.tables:
        return (Paragraph(words("results.none")),)
    blocks: list[Block] = [Paragraph(words("results.how"))]
    for number, table in enumerate(inputs.tables, 1):
        blocks += _published_blocks(number, table, words)
    return (
        *blocks,
        Heading(words("pivot.heading")),
        Paragraph(words("pivot.how")),
        *_make_pivots(inputs.tables, words),
    )


def describe_metrics(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return the metrics of each number: per device, in tokens, steps, operations and joules."""
    blocks: list[Block] = []
    for number, table in enumerate(inputs.tables, 1):
        rows = [(str(row.shape), row.metrics) for row in table.rows if row.metrics]
        names = [
            name
            for name in _METRIC_FORMATS
            if any(getattr(metrics, name) is not None for _, metrics in rows)
        ]
        if names:
            columns = words.columns("shape")
            columns += tuple(
                Column(words(f"metric.{name}"), _METRIC_FORMATS[name]) for name in names
            )
            cells = tuple(
                (shape, *(getattr(metrics, name) for name in names)) for shape, metrics in rows
            )
            title = words("metrics.table", name=table_name(table.group, words))
            blocks.append(Grid(f"metrics-{number}", title, columns, cells))
        notes = _unknown_metrics(table, words)
        blocks += [Items(notes)] if notes else []
    return tuple(blocks) or (Paragraph(words("results.none")),)


def _unknown_metrics(table: SpeedupTable, words: Words) -> tuple[str, ...]:
    """Return the reasons for unknown metrics, a sentence each."""
    hidden = _GPU_METRICS if table.group.device == "cpu" else ()
    unknown = dict.fromkeys(
        reason for row in table.rows if row.metrics for reason in row.metrics.unknown
    )
    return tuple(
        words("metrics.unknown", metric=words(f"metric.{name}"), why=sanitize(reason))
        for name, reason in unknown
        if name in _METRIC_FORMATS and name not in hidden
    )


def show_pictures(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return the figures, each with a table of its numbers."""
    pictures, more = make_pictures(inputs, words)
    blocks: list[Block] = [*pictures]
    if not pictures:
        blocks.append(Paragraph(words("figures.none")))
    if more:
        blocks.append(Paragraph(words("figures.more", count=more)))
    return tuple(blocks)


def list_runs(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return every run, including invalid ones."""
    columns = words.columns(
        *("shape", "repeat:d", "attempt:d", "throughput:.2f"),
        *("counts", "state", "nodes-names", "flags", "log"),
    )
    return tuple(
        Grid(
            f"runs-{number}",
            words("runs.table", name=table_name(table.group, words)),
            columns,
            tuple(_run_cells(row, run, words) for row in table.rows for run in row.runs),
        )
        for number, table in enumerate(inputs.tables, 1)
    )


def table_name(group: Group, words: Words) -> str:
    """Return a table's title with batch size and variant, in the report's language."""
    parts = [
        table_title(group),
        words("batch", size=group.batch),
    ]
    parts += [sanitize(group.variant)] if group.variant else []
    return words("comma").join(parts)


def _published_blocks(number: int, table: SpeedupTable, words: Words) -> list[Block]:
    group = table.group
    keys = [f"{key}:{form}" for key, form in PUBLISHED_COLUMNS.items()]
    columns = words.columns(*(key.replace("devices", f"devices.{group.device}") for key in keys))
    rows = tuple(map(published_cells, table.rows))
    name = table_name(group, words)
    base = "results.base" if table.baseline else "results.no-base"
    counted = _describe_window(table, words)
    rule_text = words("results.rule", rule=sanitize(group.rule), basis=counted, base=words(base))
    notes = [
        Paragraph(words("results.note", shape=row.shape, note=sanitize(note)))
        for row in table.rows
        for note in row_notes(row)
    ]
    return [
        Heading(name),
        Paragraph(rule_text),
        Grid(f"results-{number}", words("results.table", name=name), columns, rows),
        *notes,
    ]


def _describe_window(table: SpeedupTable, words: Words) -> str:
    """Return the measured part of the runs, each part with its separator."""
    clauses = dict.fromkeys(row.window.counted for row in table.rows if row.window)
    return "".join(
        words("results.counted", what=_translate_window(sanitize(clause), words))
        for clause in clauses
    )


def _translate_window(span: str, words: Words) -> str:
    """Return `iterations 21 to 120` in the report's language; other texts stay as they are."""
    match = _SPAN.fullmatch(span)
    if match is None:
        return span
    last = match["last"] if match["last"].isdigit() else words("window.end")
    return words(f"window.{match['unit']}", first=match["first"], last=last)


def _make_pivots(tables: tuple[SpeedupTable, ...], words: Words) -> tuple[Grid, ...]:
    """Return medians by cards and precision(batch), one table per framework, model and rule."""
    tables_by_key: dict[tuple[str, ...], list[SpeedupTable]] = {}
    for table in tables:
        group = table.group
        key = (group.framework, group.model, group.rule, group.variant, group.device)
        tables_by_key.setdefault(key, []).append(table)
    return tuple(
        _make_pivot(number, pivot_tables, words)
        for number, pivot_tables in enumerate(tables_by_key.values(), 1)
    )


def _make_pivot(number: int, tables: list[SpeedupTable], words: Words) -> Grid:
    shapes = sorted(
        {row.shape for table in tables for row in table.rows},
        key=lambda shape: (shape.gpus, shape.nodes),
    )
    medians = [{row.shape: row.median for row in table.rows} for table in tables]
    group = tables[0].group
    columns = words.columns(f"cards.{group.device}:d", "shape")
    for table in tables:
        title = f"{sanitize(table.group.precision)}(bs{table.group.batch})"
        columns += (Column(title, ".2f"),)
    rows: list[tuple[Cell, ...]] = [
        (shape.gpus, str(shape), *(median.get(shape) for median in medians)) for shape in shapes
    ]
    parts = [
        sanitize(f"{group.framework} {group.model}{cpu_suffix(group, ' ')}"),
        words("rule", name=sanitize(group.rule)),
    ]
    parts += [sanitize(group.variant)] if group.variant else []
    name = words("comma").join(parts)
    return Grid(f"pivot-{number}", words("pivot.table", name=name), columns, tuple(rows))


def _run_cells(row: Row, run: Run, words: Words) -> tuple[Cell, ...]:
    counts = words("yes") if run.valid else words("no-because", why=describe_reasons(run))
    return (
        str(row.shape),
        run.repeat,
        run.attempt,
        run.throughput,
        counts,
        sanitize(run.state),
        sanitize(", ".join(run.nodes)),
        sanitize(", ".join(run.flags)),
        sanitize(run.log),
    )
