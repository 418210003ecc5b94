"""The sections with the results: published tables, pivots, figures and all runs; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

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
    ReportInput,
    Series,
    StepTrace,
    Words,
)
from hpcbert.results.wording import (
    cpu_suffix,
    describe_adaptive,
    describe_differences,
    describe_flags,
    describe_reasons,
    sanitize,
)

# The number of distinguishable colours and markers; further lines go into another figure.
MAX_LINES = 6
# The most figures of each kind on a page; the tables have the numbers of all.
_MAX_PICTURES = 4
# The most places on an axis of names that remain readable.
_MAX_PLACES = 24


def make_pictures(inputs: ReportInput, words: Words) -> tuple[list[Picture], int]:
    """Return the figures of a report, and how many more there would be."""
    measured_tables = [table for table in inputs.tables if any(row.median for row in table.rows)]
    figures: list[Picture] = []
    more = 0
    for kind in (_scaling_pictures, _bar_pictures, _spread_pictures):
        candidates = list(kind(measured_tables, words))
        figures += candidates[:_MAX_PICTURES]
        more += len(candidates) - len(candidates[:_MAX_PICTURES])
    figures += [
        _step_picture(number, stretch, words)
        for number, stretch in enumerate(inputs.step_traces, 1)
    ]
    return figures, more


def _tables_by_picture(tables: Iterable[SpeedupTable]) -> dict[tuple[str, str], list[SpeedupTable]]:
    """Return tables by figure, its name and the device."""
    tables_by_name: dict[tuple[str, str], list[SpeedupTable]] = {}
    for table in tables:
        group = table.group
        tables_by_name.setdefault((_picture_name(group), group.device), []).append(table)
    return tables_by_name


def _picture_name(group: Group) -> str:
    return sanitize(f"{group.model} {group.precision}{cpu_suffix(group, ' ')}")


def _split_tables(tables: Sequence[SpeedupTable]) -> Iterator[tuple[SpeedupTable, ...]]:
    remaining = iter(tables)
    while part := tuple(islice(remaining, MAX_LINES)):
        yield part


def _series_label(table: SpeedupTable, words: Words) -> str:
    group = table.group
    parts = [sanitize(group.framework), words("batch-short", size=group.batch)]
    return " ".join([*parts, *([sanitize(group.variant)] if group.variant else [])])


def _scaling_pictures(tables: Sequence[SpeedupTable], words: Words) -> Iterator[Picture]:
    """Yield throughput and speedup against GPUs, one figure per model and precision."""
    number = 0
    for (name, _), speedup_tables in _tables_by_picture(tables).items():
        for part in _split_tables(speedup_tables):
            number += 1
            yield _scaling_picture(number, name, part, words)


def _scaling_picture(
    number: int, name: str, tables: Sequence[SpeedupTable], words: Words
) -> Picture:
    device = tables[0].group.device
    rows = [(table, row) for table in tables for row in table.rows if row.median]
    gpus = sorted({row.shape.gpus for _, row in rows})
    throughput = Panel(
        "scaling",
        words(f"axis.devices.{device}"),
        words("axis.throughput"),
        tuple(
            Series(_series_label(speedup_table, words), tuple(_throughput_points(speedup_table)))
            for speedup_table in tables
        ),
        ideal=_ideal_line(tables[0], gpus),
        legend=words("figure.ideal", name=_series_label(tables[0], words)),
    )
    ratios = tuple(
        Series(_series_label(speedup_table, words), tuple(_speedup_points(speedup_table)))
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
            _series_label(table, words),
            str(row.shape),
            row.shape.gpus,
            row.median,
            row.min,
            row.max,
            row.speedup,
        )
        for table, row in rows
    ]
    descriptions = words("comma").join(
        _describe_line(speedup_table, words) for speedup_table in tables
    )
    title = words("figure.scaling", name=name)
    grid = Grid(f"figure-scaling-{number}", title, columns, tuple(cells), folded=True)
    panels = (throughput, speedup) if ratios else (throughput,)
    alt = words("figure.scaling.alt", name=name, lines=descriptions)
    return Picture(f"scaling-{number}", title, alt, panels, grid)


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


def _throughput_points(table: SpeedupTable) -> Iterator[tuple[float, float, float, float]]:
    for row in table.rows:
        if row.median:
            low, high = row.min or row.median, row.max or row.median
            yield float(row.shape.gpus), row.median, low, high


def _speedup_points(table: SpeedupTable) -> Iterator[tuple[float, float, float, float]]:
    for row in table.rows:
        if row.median and row.speedup:
            unit = row.median / row.speedup
            low, high = (row.min or row.median) / unit, (row.max or row.median) / unit
            yield float(row.shape.gpus), row.speedup, low, high


def _ideal_line(table: SpeedupTable, gpus: Sequence[int]) -> tuple[tuple[float, float], ...]:
    """Return the ideal line: each GPU is as fast as those of the first point."""
    first = next(row for row in table.rows if row.median)
    rate = (first.median or 0.0) / first.shape.gpus
    return tuple((float(gpu), rate * gpu) for gpu in gpus)


def _bar_pictures(tables: Sequence[SpeedupTable], words: Words) -> Iterator[Picture]:
    """Yield frameworks side by side, samples per second per GPU."""
    number = 0
    for (name, _), speedup_tables in _tables_by_picture(tables).items():
        if len({speedup_table.group.framework for speedup_table in speedup_tables}) > 1:
            for part in _split_tables(speedup_tables):
                number += 1
                yield _bar_picture(number, name, part, words)


def _bar_picture(number: int, name: str, tables: Sequence[SpeedupTable], words: Words) -> Picture:
    device = tables[0].group.device
    shapes = sorted(
        {row.shape for speedup_table in tables for row in speedup_table.rows if row.median},
        key=lambda shape: (shape.gpus, shape.nodes),
    )[:_MAX_PLACES]
    places = {shape: number for number, shape in enumerate(shapes)}
    series: list[Series] = []
    cells: list[tuple[Cell, ...]] = []
    for table in tables:
        points = []
        for row in table.rows:
            if row.median and row.shape in places:
                rates = [value / row.shape.gpus for value in _row_range(row)]
                points.append((float(places[row.shape]), rates[0], rates[1], rates[2]))
                cells.append((_series_label(table, words), str(row.shape), *rates))
        series.append(Series(_series_label(table, words), tuple(points)))
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
    lines = words("comma").join(_series_label(speedup_table, words) for speedup_table in tables)
    alt = words("figure.beside.alt", name=name, lines=lines)
    return Picture(f"beside-{number}", title, alt, (panel,), grid)


def _row_range(row: Row) -> tuple[float, float, float]:
    middle = row.median or 0.0
    return middle, row.min or middle, row.max or middle


def _spread_pictures(tables: Sequence[SpeedupTable], words: Words) -> Iterator[Picture]:
    """Yield the runs of every point of a table, as distances from their median."""
    number = 0
    for table in tables:
        rows = [row for row in table.rows if row.median and _valid_speeds(row)[1:]][:_MAX_PLACES]
        if rows:
            number += 1
            yield _spread_picture(number, table, rows, words)


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
            points.append((float(place), deviation, deviation, deviation))
            cells.append((str(row.shape), repeat, speed, deviation / 100))
    label, group = _series_label(table, words), table.group
    device = group.device
    columns = words.columns("shape", "repeat:d", "throughput:.2f", "distance:+.2%")
    name = f"{label} {_picture_name(group)}"
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


def _step_picture(number: int, stretch: StepTrace, words: Words) -> Picture:
    group = stretch.group
    name = f"{sanitize(group.framework)} {_picture_name(group)} {stretch.shape}"
    name = words("figure.of-run", name=name, repeat=stretch.repeat)
    points = tuple(
        (float(iteration), seconds, seconds, seconds) for iteration, seconds in stretch.steps
    )
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


# In the form that hpcbert.logs.window writes.
_SPAN = re.compile(r"(?P<unit>iterations|records) (?P<first>\d+) to (?P<last>\d+|\D+)")
# Each metric with its form, in the order of the table.
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
        measured_rows = [(row, row.metrics) for row in table.rows if row.metrics]
        shown = [
            metric
            for metric in _METRIC_FORMATS
            if any(getattr(row_metrics, metric) is not None for _, row_metrics in measured_rows)
        ]
        columns = (
            *words.columns("shape"),
            *(Column(words(f"metric.{metric}"), _METRIC_FORMATS[metric]) for metric in shown),
        )
        rows = tuple(
            (str(row.shape), *(getattr(row_metrics, metric) for metric in shown))
            for row, row_metrics in measured_rows
        )
        name = table_name(table.group, words)
        if shown:
            grid = Grid(f"metrics-{number}", words("metrics.table", name=name), columns, rows)
            blocks.append(grid)
        unknown_reasons = {
            (metric, reason): None
            for _, row_metrics in measured_rows
            for metric, reason in row_metrics.unknown
        }
        missing_notes = [
            words("metrics.unknown", metric=words(f"metric.{metric}"), why=sanitize(reason))
            for metric, reason in unknown_reasons
            if metric in _METRIC_FORMATS
            and not (table.group.device == "cpu" and metric in _GPU_METRICS)
        ]
        blocks += [Items(tuple(missing_notes))] if missing_notes else []
    return tuple(blocks) or (Paragraph(words("results.none")),)


def show_pictures(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return the figures, each with its numbers."""
    drawn_pictures, hidden_count = make_pictures(inputs, words)
    blocks: list[Block] = (
        [Paragraph(words("figures.none"))] if not drawn_pictures else list(drawn_pictures)
    )
    return (
        (*blocks, Paragraph(words("figures.more", count=hidden_count)))
        if hidden_count
        else tuple(blocks)
    )


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
    """Return the name of a table."""
    parts = [
        sanitize(f"{group.framework} {group.model} {group.precision}{cpu_suffix(group, ' ')}"),
        words("batch", size=group.batch),
    ]
    return words("comma").join([*parts, *([sanitize(group.variant)] if group.variant else [])])


def _published_blocks(number: int, table: SpeedupTable, words: Words) -> list[Block]:
    group = table.group
    device_keys = {"devices": f"devices.{group.device}"}
    columns = words.columns(
        *(f"{device_keys.get(key, key)}:{form}" for key, form in PUBLISHED_COLUMNS.items())
    )
    rows = tuple(map(published_cells, table.rows))
    name = table_name(group, words)
    base = "results.base" if table.baseline else "results.no-base"
    counted = _describe_window(table, words)
    rule_text = words("results.rule", rule=sanitize(group.rule), basis=counted, base=words(base))
    notes = [
        Paragraph(words("results.note", shape=row.shape, note=sanitize(note)))
        for row in table.rows
        for note in (*describe_adaptive(row), *describe_flags(row), *describe_differences(row))
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
    groups = [table.group for table in tables]
    columns = (
        *words.columns(f"cards.{groups[0].device}:d", "shape"),
        *(Column(f"{sanitize(group.precision)}(bs{group.batch})", ".2f") for group in groups),
    )
    rows: list[tuple[Cell, ...]] = [
        (shape.gpus, str(shape), *(median.get(shape) for median in medians)) for shape in shapes
    ]
    first_group = groups[0]
    parts = [
        sanitize(f"{first_group.framework} {first_group.model}{cpu_suffix(first_group, ' ')}"),
        words("rule", name=sanitize(first_group.rule)),
    ]
    parts += [sanitize(first_group.variant)] if first_group.variant else []
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
