"""The sections with the results: pivots, published tables, metrics, figures and all runs; pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hpcbert.model import Group, Row, Run, Shape, SpeedupTable
from hpcbert.results.formats import PUBLISHED_COLUMNS, published_cells
from hpcbert.results.grid import Cell, Column, Grid
from hpcbert.results.report.model import Block, Items, Paragraph, ReportInput, Words
from hpcbert.results.report.pictures import make_pictures
from hpcbert.results.wording import (
    FLAGS,
    adapt_to_devices,
    cpu_suffix,
    describe_reasons,
    invalid_repeats,
    row_notes,
    sanitize,
    table_title,
)
from hpcbert.slurm.hostlist import fold

# The most columns of shapes that fit on paper.
_MAX_SHAPES = 10
# The packages whose versions are a framework's.
_PACKAGE = re.compile(
    r"package (deepspeed|jax|megatron_core|mindspore\w*|mxnet\w*|oneflow\w*|paddlepaddle\w*|"
    r"tensorflow(_gpu|_cpu)?|torch|transformers)"
)
_VERSION = re.compile(r"v?\d+\.\d")
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


def describe_results(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return the main figure, one table across everything, and each table as it is published."""
    if not inputs.tables:
        return (Paragraph(words("results.none")),)
    pictures, _ = make_pictures(inputs, words)
    blocks: list[Block] = [*pictures[:1], *_make_pivots(inputs.tables, words)]
    for number, table in enumerate(inputs.tables, 1):
        blocks += _published_blocks(number, table, words)
    return (*blocks, Paragraph(words("results.how")))


def describe_metrics(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return the flags, and each number's metrics: per device, in tokens, steps, operations."""
    blocks: list[Block] = [_explain_flags(inputs.tables, words)]
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
    notes = _unknown_metrics(inputs.tables, words)
    return (*blocks, *([Items(notes)] if notes else []))


def _explain_flags(tables: Sequence[SpeedupTable], words: Words) -> Block:
    """Return the meaning of each flag in the tables; a sentence if they have none."""
    rows = [row for table in tables for row in table.rows]
    used_flags = {flag for row in rows for flag in row.flags}
    used_flags |= {flag for row in rows for run in row.runs for flag in run.flags}
    meanings = tuple(
        (name, adapt_to_devices(words.translate(f"flag.{name}", text), tables))
        for name, text in FLAGS.items()
        if name in used_flags
    )
    if not meanings:
        return Paragraph(words("flags.none"))
    return Grid("flags", words("flags.table"), words.columns("flag", "meaning"), meanings)


def _unknown_metrics(tables: Sequence[SpeedupTable], words: Words) -> tuple[str, ...]:
    """Return the reasons for unknown metrics, a sentence each."""
    unknown = dict.fromkeys(
        reason
        for table in tables
        for row in table.rows
        if row.metrics
        for reason in row.metrics.unknown
        if not (table.group.device == "cpu" and reason[0] in _GPU_METRICS)
    )
    return tuple(
        words("metrics.unknown", metric=words(f"metric.{name}"), why=sanitize(reason))
        for name, reason in unknown
        if name in _METRIC_FORMATS
    )


def show_pictures(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return the figures after the main one."""
    pictures, more = make_pictures(inputs, words)
    blocks: list[Block] = [*pictures[1:]]
    if not blocks:
        blocks.append(Paragraph(words("figures.first" if pictures else "figures.none")))
    if more:
        blocks.append(Paragraph(words("figures.more", count=more)))
    return tuple(blocks)


def list_runs(inputs: ReportInput, words: Words) -> tuple[Block, ...]:
    """Return every run, including invalid ones."""
    columns = words.columns(
        *("shape", "repeat:d", "attempt:d", "throughput:.2f"),
        *("counts", "state", "nodes-names", "flags", "log"),
    )
    grids = []
    for number, table in enumerate(inputs.tables, 1):
        # A published median is not a run.
        rows = [row for row in table.rows if not (row.published and len(row.runs) == 1)]
        cells = tuple(_run_cells(row, run, words) for row in rows for run in row.runs)
        if cells:
            title = words("runs.table", name=table_name(table.group, words))
            grids.append(Grid(f"runs-{number}", title, columns, cells))
    return tuple(grids) or (Paragraph(words("runs.none")),)


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
        words("results.note", shape=row.shape, note=sanitize(note))
        for row in table.rows
        for note in (*row_notes(row), *_missing_notes(row))
    ]
    return [
        Grid(f"results-{number}", words("results.table", name=name), columns, rows),
        Paragraph(rule_text),
        *([Items(tuple(notes))] if notes else []),
    ]


def _missing_notes(row: Row) -> tuple[str, ...]:
    """Return why a row has no number."""
    reasons = invalid_repeats(row) if row.median is None else ()
    return tuple(f"{repeats}: {reason}" for repeats, reason in reasons)


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


def _make_pivots(tables: Sequence[SpeedupTable], words: Words) -> list[Grid]:
    """Return all medians, a row for each table and a column for each shape, by model and device."""
    tables_by_key: dict[tuple[str, str], list[SpeedupTable]] = {}
    for table in tables:
        tables_by_key.setdefault((table.group.model, table.group.device), []).append(table)
    grids: list[Grid] = []
    for pivot_tables in tables_by_key.values():
        shapes = sorted(
            {row.shape for table in pivot_tables for row in table.rows},
            key=lambda shape: (shape.gpus, shape.nodes),
        )
        for start in range(0, len(shapes), _MAX_SHAPES):
            part = shapes[start : start + _MAX_SHAPES]
            grids.append(_make_pivot(len(grids) + 1, pivot_tables, part, words))
    return grids


def _make_pivot(
    number: int, tables: Sequence[SpeedupTable], shapes: Sequence[Shape], words: Words
) -> Grid:
    group = tables[0].group
    labels = [
        (
            sanitize(table.group.framework),
            describe_version(table),
            sanitize(table.group.precision),
            table.group.batch,
            sanitize(table.group.variant),
            sanitize(table.group.rule),
        )
        for table in tables
    ]
    # The last two are columns only where they differ.
    places = [
        *range(4),
        *(place for place in (4, 5) if len({label[place] for label in labels}) > 1),
    ]
    titles = words.columns("framework", "version", "precision", "batch:>", "variant", "rule")
    columns = tuple(titles[place] for place in places)
    counts = [shape.gpus for shape in shapes]
    for shape in shapes:
        end = "-1" if shape.gpus == 1 else ""
        title = words(f"pivot.devices.{group.device}{end}", count=shape.gpus)
        single = counts.count(shape.gpus) == 1
        columns += (Column(title if single else f"{title} ({shape})", ".2f"),)
    columns += words.columns("efficiency-largest:.1%")
    rows: list[tuple[Cell, ...]] = []
    for label, table in zip(labels, tables, strict=True):
        medians = {row.shape: row.median for row in table.rows}
        shares = [row.efficiency for row in table.rows if row.efficiency and row.shape.gpus > 1]
        numbers = (*(medians.get(shape) for shape in shapes), shares[-1] if shares else None)
        rows.append((*(label[place] for place in places), *numbers))
    variant = "" if 4 in places else labels[0][4]  # noqa: PLR2004 - the variant's place
    name = " ".join(filter(None, (sanitize(f"{group.model}{cpu_suffix(group, ' ')}"), variant)))
    return Grid(f"pivot-{number}", words("pivot.table", name=name), columns, tuple(rows))


def describe_version(table: SpeedupTable) -> str:
    """Return the version of a table's framework: of its packages, its log, or its image."""
    facts = {name: values for row in table.rows for name, values in row.facts}
    packages = [name for name in sorted(facts) if _PACKAGE.fullmatch(name)]
    texts = [f"{name.removeprefix('package ')} {', '.join(facts[name])}" for name in packages]
    # In some logs it is the number of a build.
    texts = texts or [text for text in facts.get("version", ()) if _VERSION.match(text)]
    texts = texts or [image.rpartition("/")[2] for image in facts.get("image", ())]
    return sanitize(", ".join(texts))


def _run_cells(row: Row, run: Run, words: Words) -> tuple[Cell, ...]:
    counts = words("yes") if run.valid else words("no-because", why=describe_reasons(run))
    return (
        str(row.shape),
        run.repeat,
        run.attempt,
        run.throughput,
        counts,
        sanitize(run.state),
        sanitize(fold(run.nodes)),
        sanitize(", ".join(run.flags)),
        sanitize(run.log),
    )
