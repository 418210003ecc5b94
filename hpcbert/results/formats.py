"""The formats of speedup tables: a new one is a `Writer` and a line in `FORMATS`.

DLPerf's JSON has the shape and the rounding of its extractors (Oneflow-Inc/DLPerf@e36df2e,
Tensorflow/resnet50v1.5/result/resnet50_result.json): runs are rounded to two decimals before
they are averaged, medians before they are divided. Unlike them it never writes NaN: a point
without a valid run is left out, a missing baseline gives null.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import click

from hpcbert.errors import UsageError
from hpcbert.logs.arithmetic import median
from hpcbert.model import UNFINISHED, Provenance, Row, Run, SpeedupTable, valid_throughputs
from hpcbert.results import document, exchange
from hpcbert.results.document import NUMBERS, PLACE, place_data
from hpcbert.results.grid import (
    GAP,
    NOTHING,
    Cell,
    Column,
    Grid,
    escape_markdown,
    fold_text,
    format_csv,
    format_lines,
    format_markdown,
)
from hpcbert.results.reduce import BASELINE, FOREIGN
from hpcbert.results.units import per_device, real_rate
from hpcbert.results.wording import (
    FLAGS,
    adapt_to_devices,
    describe_adaptive,
    describe_differences,
    describe_flags,
    describe_reasons,
    describe_window,
    device_word,
    earlier_attempts,
    invalid_repeats,
    row_notes,
    sanitize,
    table_title,
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
# The columns of a published table: keys and number formats. DLPerf's come first: its header is
# `| node_num | gpu_num | samples/s | speedup |`, where gpu_num counts all GPUs
# (Oneflow-Inc/DLPerf@c89430b, most of its READMEs).
PUBLISHED_COLUMNS = {
    "node_num": "d",
    "devices": "d",
    "samples": ".2f",
    "speedup": ".2f",
    "efficiency": ".1%",
    "min": ".2f",
    "max": ".2f",
    "cv": ".2%",
    "repeats": ">",
    "flags": "",
}
_LEGEND = (
    "{unit}/s is the median of the valid repeats, over all GPUs; min and max are the slowest and "
    "the fastest of them, of five the range that holds the true median with 93.75 % confidence. "
    "cv is their standard deviation over their mean; repeats are the valid ones, of those "
    "requested."
)
_MFU = ("mfu", "mfu_padded")
# Lines of a spreadsheet are copied out of their file, so each states its origin.
_PROVENANCE = ("window", "hpcbert", "date", "command")
# The unit of all rates, and the median in two more forms.
# Characters of a command line below a table.
_MAX_COMMAND = 300
_RATE = ("unit", "per_gpu", "real_tokens_per_second")
_POINT_TITLES = (*PLACE, *NUMBERS, *_MFU, "flags", "reasons", "differences", *_PROVENANCE, *_RATE)
_RUN = ("repeat", "attempt", "throughput", "valid", "flags", "reasons", "state", "nodelist", "log")
_RUN_TITLES = (*PLACE, *_RUN, *_PROVENANCE, "unit")


def render_text(tables: Iterable[SpeedupTable], provenance: Provenance, width: int = 0) -> str:
    """Return the tables with their headings and, below each row, its invalid repeats.

    Colours are in it; `click.echo` takes them out where they are not wanted.

    Args:
        width: The maximum length of a line; longer ones are folded. 0: no maximum.
    """
    parts = [_table_text(table, width) for table in tables]
    command = shorten_command(provenance.command)
    words = f"hpcbert {provenance.hpcbert} · {provenance.date} · {command}"
    text = "\n".join(click.style(line, dim=True) for line in fold_text(sanitize(words), width))
    return "\n\n".join([*parts, text])


def shorten_command(command: str) -> str:
    """Return a command line that a shell expanded to many paths with its first words only."""
    if len(command) <= _MAX_COMMAND:
        return command
    shown = command[:_MAX_COMMAND].rpartition(" ")[0]
    return f"{shown} … and {len(command[len(shown) :].split())} more words, which --json has"


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
        for repeats, reason in invalid_repeats(row):
            lines += _refusal_lines(repeats, reason, width)
        for run in row.runs:
            lines += _note_lines(f"{GAP}· ", earlier_attempts(run), width)
        warnings = describe_flags(row) + describe_differences(row)
        lines += _note_lines(f"{GAP}! ", warnings, width, colour="yellow")
    return "\n".join([*lines, *_note_lines(f"{GAP}· ", _likely_cause(table), width)])


def _row_lines(table: SpeedupTable, width: int) -> list[list[str]]:
    """Return the lines of the titles and of each row; values without a column go below it."""
    columns: tuple[Column, ...] = _TEXT_COLUMNS
    choices: tuple[tuple[int, ...], ...] = _COLUMN_CHOICES
    if table.group.device == "cpu":
        columns = (columns[0], replace(columns[1], title="ranks (CPU)"), *columns[2:])
    if table.unit != "samples":
        rate = Column(f"median {table.unit}/s", _rate_form(table))
        columns = (*columns[:2], rate, *columns[3:], *_unit_columns(table))
        choices = (tuple(range(len(columns))), *choices)
    cells = tuple((*_text_cells(row, table), *_unit_cells(row, table)) for row in table.rows)
    grid = Grid("results", "", columns, cells)
    layouts = [(places, format_lines(grid.select(places))) for places in choices]
    fitting = [layout for layout in layouts if not width or _text_width(layout[1]) <= width]
    places, (head, *lines) = fitting[0] if fitting else layouts[-1]
    row_lines = [[head]]
    for row, line in zip(grid.rows, lines, strict=True):
        cells_below = [
            f"{column.title} {column.format_cell(cell, separator=',')}"
            for place, (column, cell) in enumerate(zip(columns, row, strict=True))
            if place not in places and cell not in (None, "", NOTHING)
        ]
        row_lines.append([line])
        if cells_below:
            row_lines[-1] += fold_text(_INDENT + ", ".join(cells_below), width, _INDENT)
    return row_lines


def _text_width(lines: Iterable[str]) -> int:
    return max(len(click.unstyle(line)) for line in lines)


def _rate_form(table: SpeedupTable) -> str:
    """Return the format of a table's rates: tokens are many."""
    return ".0f" if table.unit == "tokens" else ".2f"


def _unit_columns(table: SpeedupTable) -> tuple[Column, ...]:
    """Return the further columns of a table in another unit: per device, and without padding."""
    if table.unit == "samples":
        return ()
    form, word = _rate_form(table), device_word(table.group)
    columns = (Column(f"{table.unit}/s per {word}", form),)
    return (*columns, Column("real tokens/s", form)) if table.unit == "tokens" else columns


def _unit_cells(row: Row, table: SpeedupTable) -> tuple[Cell, ...]:
    """Return the cells of `_unit_columns`."""
    cells = (per_device(row), real_rate(row, table.unit))
    return cells[: len(_unit_columns(table))]


def _text_cells(row: Row, table: SpeedupTable) -> tuple[Cell, ...]:
    # One run does not have a range.
    form = f",{_rate_form(table)}"
    spread = NOTHING if row.cv is None else f"{row.min:{form}} .. {row.max:{form}}"
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
    """Yield the likely cause if ranks on CPUs scatter: others use the same CPU."""
    if table.group.device == "cpu" and any("noisy" in row.flags for row in table.rows):
        yield "noisy: on CPUs, the likely cause is other programs that ran on the machine"


def _note_lines(sign: str, notes: Iterable[str], width: int, *, colour: str = "") -> list[str]:
    lines = [line for note in notes for line in fold_text(sign + note, width, " " * len(sign))]
    return [click.style(line[: len(sign)], fg=colour or None) + line[len(sign) :] for line in lines]


def _heading_lines(table: SpeedupTable, width: int) -> list[str]:
    group = table.group
    title = table_title(group, " · ")
    batch = f" · {group.batch} samples per device"
    variant = f" · {sanitize(group.variant)}" if group.variant else ""
    base = "no speedup: there is no valid run of 1n1g"
    if table.baseline:
        base = f"speedup to the median of {table.baseline}"
    counted = describe_window(table).replace("; ", " · ")
    first, *more = fold_text(title + batch + variant, width, GAP)
    name = click.style(first[: len(title)], bold=True) + first[len(title) :]
    return [name, *more, *fold_text(f"rule {sanitize(group.rule)} · {counted}{base}", width, GAP)]


def _colour_line(row: Row, line: str) -> str:
    if row.ok < row.asked:
        return click.style(line, fg="red")
    return click.style(line, fg="yellow") if set(row.flags).difference(_NEUTRAL_FLAGS) else line


def _refusal_lines(repeats: str, reason: str, width: int) -> list[str]:
    unfinished = reason.startswith(UNFINISHED)
    sign = f"{GAP}{'▶' if unfinished else '✗'} {repeats}{':' if ' repeats' in repeats else ' '} "
    first, *more = fold_text(sign + reason, width, _INDENT)
    colour = "yellow" if unfinished else "red"
    return [click.style(first[: len(sign)], fg=colour) + first[len(sign) :], *more]


def dlperf_data(tables: Iterable[SpeedupTable]) -> dict[str, Any]:
    """Return `{model: {shape: {average_speed, batch_size_per_device, median_speed, speedup}}}`.

    As in DLPerf's scripts, the model is the part of a log's name before the first underscore.

    Raises:
        UsageError: Two tables have the same model, and this shape can't distinguish them.
    """
    models: dict[str, Any] = {}
    for table in tables:
        name = _dlperf_model(table)
        if name in models:
            raise UsageError(
                f"DLPerf's JSON has one table per model, but {name} has several.",
                hint="Collect one framework, precision and batch size at a time.",
            )
        models[name] = _dlperf_points(table)
    return models


def render_dlperf(tables: Iterable[SpeedupTable], _provenance: Provenance, _width: int = 0) -> str:
    """Return the text of DLPerf's result JSON."""
    return json.dumps(dlperf_data(tables), ensure_ascii=False, allow_nan=False)


def describe_omissions(tables: Iterable[SpeedupTable], provenance: Provenance) -> tuple[str, ...]:
    """Return the content that DLPerf's JSON can't hold, one sentence per table."""
    text = f"hpcbert {provenance.hpcbert}, {provenance.date}: {provenance.command}"
    sentences = []
    for table in tables:
        device = "device CPU; " if table.group.device == "cpu" else ""
        origin = f"{device}rule {table.group.rule}; {describe_window(table)}{text}"
        sentences.append(f"what dlperf-json has no key for: {origin}")
    return tuple(sentences)


def _dlperf_model(table: SpeedupTable) -> str:
    logs = (run.log for row in table.rows for run in row.runs if run.log)
    head, underscore, _ = next(logs, "").rpartition("/")[2].partition("_")
    return head if underscore else table.group.model


def _dlperf_points(table: SpeedupTable) -> dict[str, Any]:
    speeds = {
        row.shape: [round(number, 2) for number in valid_throughputs(row.runs)]
        for row in table.rows
        if row.median is not None
    }
    medians = {shape: round(median(numbers), 2) for shape, numbers in speeds.items()}
    base = medians.get(BASELINE)
    return {
        str(shape): {
            "average_speed": round(sum(numbers) / len(numbers), 2),
            "batch_size_per_device": table.group.batch_size_per_device,
            "median_speed": medians[shape],
            "speedup": round(medians[shape] / base, 2) if base else None,
        }
        for shape, numbers in speeds.items()
    }


def published_cells(row: Row) -> tuple[Cell, ...]:
    """Return the cells of a row, in the order of PUBLISHED_COLUMNS."""
    # One run does not have a range.
    low, high = (row.min, row.max) if row.cv is not None else (None, None)
    numbers = (row.median, row.speedup, row.efficiency, low, high, row.cv)
    repeats = "published" if row.published and row.ok == 1 else f"{row.ok}/{row.asked}"
    return (row.shape.nodes, row.shape.gpus, *numbers, repeats, ", ".join(row.flags))


def render_markdown(tables: Sequence[SpeedupTable], provenance: Provenance, _width: int = 0) -> str:
    """Return a heading and a table for each group, its problems, and a legend, as Markdown."""
    version, command = escape_markdown(provenance.hpcbert), escape_markdown(provenance.command)
    origin = f"Made by hpcbert {version}, {provenance.date}: {command}"
    return "\n\n".join([*map(_markdown_table, tables), *_markdown_legend(tables), origin])


def _markdown_table(table: SpeedupTable) -> str:
    group = table.group
    variant = f", {group.variant}" if group.variant else ""
    title = table_title(group)
    devices = "rank_num" if group.device == "cpu" else "gpu_num"
    titles = {"devices": devices, "samples": f"{table.unit}/s"}
    columns = tuple(Column(titles.get(key, key), form) for key, form in PUBLISHED_COLUMNS.items())
    columns += _unit_columns(table)
    rows = [(*published_cells(row), *_unit_cells(row, table)) for row in table.rows]
    if any(any(_mfu_cells(row)) for row in table.rows):
        columns += (Column("MFU", ".1%"), Column("MFU padded", ".1%"))
        rows = [(*cells, *_mfu_cells(row)) for cells, row in zip(rows, table.rows, strict=True)]
    heading = f"{title}, batch size {group.batch} per device{variant}"
    rule = f"{group.rule}; {describe_window(table)}median"
    lines = [
        f"### {escape_markdown(heading)}",
        "",
        f"Rule {escape_markdown(rule)} of the valid repeats.",
        "",
        format_markdown(Grid("results", title, columns, tuple(rows))),
    ]
    notes = [f"* {escape_markdown(note)}" for row in table.rows for note in _markdown_notes(row)]
    return "\n".join([*lines, "", *notes] if notes else lines)


def _markdown_notes(row: Row) -> list[str]:
    notes = []
    for repeats, reason in invalid_repeats(row):
        verb = "are" if " repeats" in repeats else "is"
        notes.append(f"{row.shape}, {repeats} {verb} invalid: {reason}")
    return notes + [f"{row.shape}: {note}" for note in row_notes(row)]


def _mfu_cells(row: Row) -> tuple[float | None, float | None]:
    return (row.metrics.mfu, row.metrics.mfu_padded) if row.metrics else (None, None)


def _markdown_legend(tables: Sequence[SpeedupTable]) -> list[str]:
    if not tables:
        return []
    used = {flag for table in tables for row in table.rows for flag in row.flags}
    flags = [
        f"* {escape_markdown(name)}: {escape_markdown(adapt_to_devices(text, tables))}."
        for name, text in FLAGS.items()
        if name in used
    ]
    legend = adapt_to_devices(_LEGEND.format(unit=tables[0].unit), tables)
    return [legend, "\n".join(["Flags:", "", *flags])] if flags else [legend]


def render_csv(tables: Iterable[SpeedupTable], provenance: Provenance, _width: int = 0) -> str:
    """Return a header and a line for each point as CSV."""
    rows = [
        (
            *place_data(table, row).values(),
            *_point_cells(row),
            *_provenance_cells(row, provenance),
            *(f"{table.unit}/s", per_device(row), real_rate(row, table.unit)),
        )
        for table in tables
        for row in table.rows
    ]
    return format_csv(_POINT_TITLES, rows).rstrip("\n")


def render_runs_csv(tables: Iterable[SpeedupTable], provenance: Provenance, _width: int = 0) -> str:
    """Return a header and a line for each run, including invalid ones, as CSV."""
    rows = [
        (
            *place_data(table, row).values(),
            *_run_cells(run),
            *_provenance_cells(row, provenance),
            f"{table.unit}/s",
        )
        for table in tables
        for row in table.rows
        for run in row.runs
    ]
    return format_csv(_RUN_TITLES, rows).rstrip("\n")


def _point_cells(row: Row) -> tuple[Cell, ...]:
    numbers = [getattr(row, name) for name in NUMBERS]
    reasons = "; ".join(
        f"repeat {run.repeat}: {describe_reasons(run)}" for run in row.runs if not run.valid
    )
    differences = "; ".join(describe_differences(row))
    return (*numbers, *_mfu_cells(row), " ".join(row.flags), reasons, differences)


def _run_cells(run: Run) -> tuple[Cell, ...]:
    return (
        run.repeat,
        run.attempt,
        run.throughput,
        "yes" if run.valid else "no",
        " ".join(run.flags),
        describe_reasons(run),
        "" if run.state == FOREIGN else run.state,
        " ".join(run.nodes),
        run.log,
    )


def _provenance_cells(row: Row, provenance: Provenance) -> tuple[str, ...]:
    window = row.window.counted if row.window else ""
    return window, provenance.hpcbert, provenance.date, provenance.command


# Returns the text of tables without its last newline, from what made it and the maximum length of
# a line (0: no maximum), which only formats that fold lines use.
Writer = Callable[[Sequence[SpeedupTable], Provenance, int], str]


@dataclass(frozen=True)
class TableFormat:
    """One format.

    Attributes:
        endings: Endings of file names that select it.
        exact: Whether programs read it: then it is printed byte for byte.
        omissions: Returns the content that it can't hold, one sentence per table.
        units: `convert`: its rates are in the table's unit; `add`: in samples, with the rates in
            the unit next to them; `none`: in samples only.
        pack: Makes the file of a binary format; then `write` is not used.
    """

    write: Writer
    endings: tuple[str, ...] = ()
    exact: bool = False
    omissions: Callable[[Sequence[SpeedupTable], Provenance], tuple[str, ...]] = lambda *_: ()
    pack: Callable[[Sequence[SpeedupTable], Provenance], bytes] | None = None
    units: Literal["convert", "add", "none"] = "convert"


def _pack_parquet(tables: Sequence[SpeedupTable], provenance: Provenance) -> bytes:
    from hpcbert.results import frame  # pandas

    return frame.to_parquet(tables, provenance)


# By name, for `collect --format`.
FORMATS = {
    "text": TableFormat(render_text, (".txt",)),
    "wide": TableFormat(render_wide),
    "markdown": TableFormat(render_markdown, (".md", ".markdown")),
    "csv": TableFormat(render_csv, (".csv",)),
    "csv-runs": TableFormat(render_runs_csv),
    "json": TableFormat(document.render_json, (".json",), exact=True, units="add"),
    "parquet": TableFormat(render_text, (".parquet",), pack=_pack_parquet),
    "dlperf-json": TableFormat(
        render_dlperf, exact=True, omissions=describe_omissions, units="none"
    ),
    "perflog": TableFormat(exchange.render_perflog, exact=True),
    "exacb": TableFormat(exchange.render_exacb, exact=True),
}


def format_of_suffix(ending: str) -> str:
    """Return the name of the format that a file name's ending selects; empty if none."""
    return next((name for name, form in FORMATS.items() if ending.lower() in form.endings), "")
