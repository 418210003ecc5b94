"""The sections with the results: published tables, pivots, figures and all runs; pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpcbert.results.forms import PUBLISHED, published_cells
from hpcbert.results.grid import Column, Grid
from hpcbert.results.report.model import Block, Heading, Items, Paragraph
from hpcbert.results.report.pictures import pictures
from hpcbert.results.words import differences, marks, on_cpu, plain, protocol, why

if TYPE_CHECKING:
    from hpcbert.model import Group, Row, Run, SpeedupTable
    from hpcbert.results.grid import Cell
    from hpcbert.results.report.model import ReportInput
    from hpcbert.results.report.words import Words


# In the form that hpcbert.logs.window writes.
_SPAN = re.compile(r"(?P<unit>iterations|records) (?P<first>\d+) to (?P<last>\d+|\D+)")
# Each metric with its form, in the order of the table.
_METRICS = {
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
_OF_GPUS = ("mfu", "mfu_padded", "gpu_memory_mib", "watts", "samples_per_joule")


def results(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return each table as it is published, and the pivots that reports use."""
    if not inputs.tables:
        return (Paragraph(words("results.none")),)
    blocks: list[Block] = [Paragraph(words("results.how"))]
    for number, table in enumerate(inputs.tables, 1):
        blocks += _published(number, table, words)
    return (
        *blocks,
        Heading(words("pivot.heading")),
        Paragraph(words("pivot.how")),
        *_pivots(inputs.tables, words),
    )


def metrics(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return the metrics of each number: per device, in tokens, steps, operations and joules."""
    blocks: list[Block] = []
    for number, table in enumerate(inputs.tables, 1):
        known = [(row, row.metrics) for row in table.rows if row.metrics]
        shown = [
            metric
            for metric in _METRICS
            if any(getattr(own, metric) is not None for _, own in known)
        ]
        columns = (
            *words.columns("shape"),
            *(Column(words(f"metric.{one}"), _METRICS[one]) for one in shown),
        )
        rows = tuple((str(row.shape), *(getattr(own, one) for one in shown)) for row, own in known)
        name = title(table.group, words)
        if shown:
            grid = Grid(f"metrics-{number}", words("metrics.table", name=name), columns, rows)
            blocks.append(grid)
        why = {(one, told): None for _, own in known for one, told in own.unknown}
        lacking = [
            words("metrics.unknown", metric=words(f"metric.{one}"), why=plain(told))
            for one, told in why
            if one in _METRICS and not (table.group.device == "cpu" and one in _OF_GPUS)
        ]
        blocks += [Items(tuple(lacking))] if lacking else []
    return tuple(blocks) or (Paragraph(words("results.none")),)


def figures(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return the figures, each with its numbers."""
    found, more = pictures(inputs, words)
    blocks: list[Block] = [Paragraph(words("figures.none"))] if not found else list(found)
    return (*blocks, Paragraph(words("figures.more", count=more))) if more else tuple(blocks)


def runs(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return every run, including invalid ones."""
    columns = words.columns(
        *("shape", "repeat:d", "attempt:d", "throughput:.2f"),
        *("counts", "state", "nodes-names", "flags", "log"),
    )
    return tuple(
        Grid(
            f"runs-{number}",
            words("runs.table", name=title(table.group, words)),
            columns,
            tuple(_run(row, run, words) for row in table.rows for run in row.runs),
        )
        for number, table in enumerate(inputs.tables, 1)
    )


def title(group: Group, words: Words) -> str:
    """Return the name of a table."""
    parts = [
        plain(f"{group.framework} {group.model} {group.precision}{on_cpu(group, ' ')}"),
        words("batch", size=group.batch),
    ]
    return words("comma").join([*parts, *([plain(group.variant)] if group.variant else [])])


def _published(number: int, table: SpeedupTable, words: Words) -> list[Block]:
    group = table.group
    keys = {"devices": f"devices.{group.device}"}
    columns = words.columns(*(f"{keys.get(key, key)}:{form}" for key, form in PUBLISHED.items()))
    rows = tuple(map(published_cells, table.rows))
    name = title(group, words)
    base = "results.base" if table.baseline else "results.no-base"
    counted = _counted(table, words)
    how = words("results.rule", rule=plain(group.rule), basis=counted, base=words(base))
    notes = [
        Paragraph(words("results.note", shape=row.shape, note=plain(note)))
        for row in table.rows
        for note in (*protocol(row), *marks(row), *differences(row))
    ]
    return [
        Heading(name),
        Paragraph(how),
        Grid(f"results-{number}", words("results.table", name=name), columns, rows),
        *notes,
    ]


def _counted(table: SpeedupTable, words: Words) -> str:
    """Return the measured part of the runs, each part with its separator."""
    found = dict.fromkeys(row.window.counted for row in table.rows if row.window)
    return "".join(words("results.counted", what=_in_words(plain(one), words)) for one in found)


def _in_words(what: str, words: Words) -> str:
    """Return `iterations 21 to 120` in the report's language; other texts stay as they are."""
    match = _SPAN.fullmatch(what)
    if match is None:
        return what
    last = match["last"] if match["last"].isdigit() else words("window.end")
    return words(f"window.{match['unit']}", first=match["first"], last=last)


def _pivots(tables: tuple[SpeedupTable, ...], words: Words) -> tuple[Grid, ...]:
    """Return medians by cards and precision(batch), one table per framework, model and rule."""
    alike: dict[tuple[str, ...], list[SpeedupTable]] = {}
    for table in tables:
        group = table.group
        key = (group.framework, group.model, group.rule, group.variant, group.device)
        alike.setdefault(key, []).append(table)
    return tuple(
        _pivot(number, speedup_tables, words)
        for number, speedup_tables in enumerate(alike.values(), 1)
    )


def _pivot(number: int, tables: list[SpeedupTable], words: Words) -> Grid:
    ordered = sorted(
        {row.shape for table in tables for row in table.rows},
        key=lambda shape: (shape.gpus, shape.nodes),
    )
    medians = [{row.shape: row.median for row in table.rows} for table in tables]
    groups = [table.group for table in tables]
    columns = (
        *words.columns(f"cards.{groups[0].device}:d", "shape"),
        *(Column(f"{plain(group.precision)}(bs{group.batch})", ".2f") for group in groups),
    )
    rows: list[tuple[Cell, ...]] = [
        (shape.gpus, str(shape), *(median.get(shape) for median in medians)) for shape in ordered
    ]
    first = groups[0]
    parts = [
        plain(f"{first.framework} {first.model}{on_cpu(first, ' ')}"),
        words("rule", name=plain(first.rule)),
    ]
    parts += [plain(first.variant)] if first.variant else []
    name = words("comma").join(parts)
    return Grid(f"pivot-{number}", words("pivot.table", name=name), columns, tuple(rows))


def _run(row: Row, run: Run, words: Words) -> tuple[Cell, ...]:
    counts = words("yes") if run.valid else words("no-because", why=why(run))
    return (
        str(row.shape),
        run.repeat,
        run.attempt,
        run.throughput,
        counts,
        plain(run.state),
        plain(", ".join(run.nodes)),
        plain(", ".join(run.flags)),
        plain(run.log),
    )
