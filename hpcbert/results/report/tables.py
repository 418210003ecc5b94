"""The sections with the results: published tables, pivots, figures and all runs; pure."""

from __future__ import annotations

import re

from hpcbert.model import Group, Row, Run, SpeedupTable
from hpcbert.results.forms import PUBLISHED_COLUMNS, published_cells
from hpcbert.results.grid import Cell, Column, Grid
from hpcbert.results.report.model import Block, Heading, Items, Paragraph, ReportInput
from hpcbert.results.report.pictures import make_pictures
from hpcbert.results.report.words import Words
from hpcbert.results.words import (
    cpu_suffix,
    describe_adaptive,
    describe_differences,
    describe_flags,
    describe_reasons,
    sanitize,
)

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
