"""The formats of speedup tables: a new one is a `Writer` and a line in `FORMATS`.

DLPerf's JSON has the shape and the rounding of its extractors (Oneflow-Inc/DLPerf@e36df2e,
Tensorflow/resnet50v1.5/result/resnet50_result.json): runs are rounded to two decimals before
they are averaged, medians before they are divided. Unlike them it never writes NaN: a point
without a valid run is left out, a missing baseline gives null.

The perflog has the delimiter, the order (result first, performance variables last) and the columns
of a variable that ReFrame's default configuration writes (reframe-hpc/reframe 4.10.4,
reframe/core/settings.py, handlers_perflog). The report has the outline of exaCB's
(arXiv:2603.22251); its keys are hpcbert's own and were not checked against a schema.
JUnit XML is what Jenkins and GitLab read: testsuites, testsuite, testcase, failure, skipped.
"""

from __future__ import annotations

import csv
import io
import json
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, Literal, NamedTuple
from xml.etree import ElementTree as ET

import click

from hpcbert.errors import UsageError, format_count
from hpcbert.model import Provenance, Row, SpeedupTable, valid_throughputs
from hpcbert.results import document
from hpcbert.results.document import NUMBERS, PLACE, place_data, point_values, run_values
from hpcbert.results.grid import (
    Cell,
    Column,
    Grid,
    TableView,
    escape_markdown,
    fold_text,
    format_csv,
)
from hpcbert.results.metrics import per_device, real_rate
from hpcbert.results.reduce import BASELINE
from hpcbert.results.wording import (
    describe_reasons,
    describe_window,
    earlier_attempts,
    invalid_repeats,
    row_notes,
    sanitize,
    table_title,
)
from hpcbert.results.words import Words, flag_meanings, name_table

# Other flags describe the measurement; these say that something may be wrong with it.
_NEUTRAL_FLAGS = ("no-baseline", "accumulation")
# The columns of metrics: formats, and units for their values.
METRIC_COLUMNS = {
    "samples_per_second_per_gpu": (".2f", 1),
    "tokens_per_second": (".0f", 1),
    "real_tokens_per_second": (".0f", 1),
    "step_seconds": (".1f", 1e-3),
    "step_seconds_p95": (".1f", 1e-3),
    "model_flops_per_sample": (".1f", 1e9),
    "mfu": (".1%", 1),
    "mfu_padded": (".1%", 1),
    "gpu_memory_mib": (".0f", 1),
    "watts": (".0f", 1),
    "samples_per_joule": (".3f", 1),
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
# Characters of a command line below a table.
_MAX_COMMAND = 300
# Lines of a spreadsheet are copied out of their file, so each states its origin.
_PROVENANCE = ("hpcbert", "date", "command")
_POINT_TITLES = (
    *(*PLACE, *NUMBERS, "mfu", "mfu_padded", "flags", "reasons", "differences", "window"),
    *(*_PROVENANCE, "unit", "per_gpu", "real_tokens_per_second"),
)
_RUN_TITLES = (
    *(*PLACE, "repeat", "attempt", "throughput", "valid", "flags", "reasons", "state", "nodelist"),
    *("log", "window", *_PROVENANCE, "unit"),
)
_PERFLOG_TITLES = (
    *("result", "job_completion_time", "name", *PLACE, "ok", "asked", "flags", "window"),
    *_PROVENANCE,
)
_VARIABLES = ("throughput", "throughput_min", "throughput_max", "throughput_per_gpu")
_VARIABLE_PARTS = ("value", "unit", "ref", "lower_thres", "upper_thres")


def render_text(tables: Iterable[SpeedupTable], provenance: Provenance, width: int = 0) -> str:
    """Return the tables with their titles and, below them, their rules and invalid repeats.

    Colours are in it; `click.echo` takes them out where they are not wanted.

    Args:
        width: The maximum length of a line; longer ones are folded. 0: no maximum.
    """
    parts = [_table_text(table, width) for table in tables]
    # A shell may have expanded it to many paths; --json has them all.
    command = textwrap.shorten(provenance.command, _MAX_COMMAND, placeholder=" …")
    words = f"hpcbert {provenance.hpcbert} · {provenance.date} · {command}"
    text = "\n".join(click.style(line, dim=True) for line in fold_text(sanitize(words), width))
    return "\n\n".join([*parts, text])


def _table_text(table: SpeedupTable, width: int = 0) -> str:
    view = table_view(table, Words("en", table.unit))
    devices = "ranks (CPU)" if table.group.device == "cpu" else "GPUs"
    columns = Column("nodes", "d"), Column(devices, "d"), *view.grid.columns[2:]
    return replace(view, grid=replace(view.grid, columns=columns)).text(width)


def render_wide(tables: Iterable[SpeedupTable], provenance: Provenance, _width: int = 0) -> str:
    """Return the text of `render_text`, with the metrics below each table; no line is folded."""
    parts = [part for table in tables for part in (_table_text(table), _metrics_text(table))]
    return "\n\n".join([*parts, render_text((), provenance)])


def metrics_grid(table: SpeedupTable, name: str, title: str, words: Words) -> Grid:
    """Return the metrics of the rows that have some, in the units of METRIC_COLUMNS."""
    columns = [Column(words("column.shape"), ">")]
    columns += [Column(words(f"metric.{key}"), form) for key, (form, _) in METRIC_COLUMNS.items()]
    rows = []
    for row in table.rows:
        if row.metrics:
            values = [
                (getattr(row.metrics, key), unit) for key, (_, unit) in METRIC_COLUMNS.items()
            ]
            cells = [None if value is None else value / unit for value, unit in values]
            rows.append((str(row.shape), *cells))
    return Grid(name, title, tuple(columns), tuple(rows))


def explain_unknown(tables: Iterable[SpeedupTable], words: Words) -> tuple[str, ...]:
    """Return a sentence for each metric that is unknown for a reason."""
    all_metrics = [row.metrics for table in tables for row in table.rows if row.metrics]
    reasons = dict.fromkeys(reason for metrics in all_metrics for reason in metrics.unknown)
    return tuple(
        words("metrics.unknown", metric=words(f"metric.{name}"), why=sanitize(explanation))
        for name, explanation in reasons
        if name in METRIC_COLUMNS
    )


def _metrics_text(table: SpeedupTable) -> str:
    words = Words("en")
    return TableView(
        (), metrics_grid(table, "metrics", "", words), explain_unknown([table], words)
    ).text()


def table_view(table: SpeedupTable, words: Words, name: str = "results") -> TableView:
    """Return a table with its rule, its invalid repeats and the notes on its rows."""
    group, rows = table.group, table.rows
    keys = (f"{key}:{form}" for key, form in PUBLISHED_COLUMNS.items())
    columns = words.columns(*(key.replace("devices", f"devices.{group.device}") for key in keys))
    cells = [published_cells(row) for row in rows]
    for column, values in _further_columns(table, words):
        if any(values):
            columns = (*columns, column)
            cells = [(*row, value) for row, value in zip(cells, values, strict=True)]
    base = words("results.base" if table.baseline else "results.no-base")
    rule = words(
        "results.rule", rule=sanitize(group.rule), window=describe_window(table), base=base
    )
    title = name_table(group, words)
    return TableView(
        heading=(click.style(title, bold=True),),
        grid=Grid(name, title, columns, tuple(cells)),
        notes=(rule, *list_notes(table)),
        colours=tuple(map(_row_colour, rows)),
    )


def _further_columns(
    table: SpeedupTable, words: Words
) -> Iterator[tuple[Column, list[float | None]]]:
    rows = table.rows
    if table.unit != "samples":
        yield words.columns("per-device:.2f")[0], [per_device(row) for row in rows]
    title = words("metric.real_tokens_per_second")
    yield Column(title, ".2f"), [real_rate(row, table.unit) for row in rows]
    for name in ("mfu", "mfu_padded"):
        title = words(f"metric.{name}")
        yield Column(title, ".1%"), [getattr(row.metrics, name, None) for row in rows]


def _row_colour(row: Row) -> str | None:
    if row.ok < row.asked:
        return "red"
    return "yellow" if set(row.flags).difference(_NEUTRAL_FLAGS) else None


def list_notes(table: SpeedupTable) -> Iterator[str]:
    """Yield the repeats of a table that were left out, and the notes on its rows."""
    for row in table.rows:
        for repeats, reason in invalid_repeats(row):
            yield f"{row.shape}, {repeats} left out: {reason}"
        earlier = (note for run in row.runs for note in earlier_attempts(run))
        for note in (*earlier, *row_notes(row)):
            yield f"{row.shape}: {note}"
    if table.group.device == "cpu" and any("noisy" in row.flags for row in table.rows):
        yield "noisy: on CPUs, the likely cause is other programs that ran on the machine"


def render_dlperf(tables: Iterable[SpeedupTable], _provenance: Provenance, _width: int = 0) -> str:
    """Return `{model: {shape: {average_speed, batch_size_per_device, median_speed, speedup}}}`.

    As in DLPerf's scripts, the model is the part of a log's name before the first underscore.

    Raises:
        UsageError: Two tables have the same model, and this shape can't distinguish them.
    """
    models: dict[str, Any] = {}
    for table in tables:
        logs = (run.log for row in table.rows for run in row.runs if run.log)
        head, underscore, _ = next(logs, "").rpartition("/")[2].partition("_")
        name = head if underscore else table.group.model
        if name in models:
            raise UsageError(
                f"DLPerf's JSON has one table per model, but {name} has several.",
                hint="Collect one framework, precision and batch size at a time.",
            )
        models[name] = _dlperf_points(table)
    return json.dumps(models, ensure_ascii=False, allow_nan=False)


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


def describe_omissions(tables: Iterable[SpeedupTable], provenance: Provenance) -> tuple[str, ...]:
    """Return the content that DLPerf's JSON can't hold, one sentence per table."""
    text = f"hpcbert {provenance.hpcbert}, {provenance.date}: {provenance.command}"
    return tuple(
        f"what dlperf-json has no key for: device {table.group.device}; rule {table.group.rule}; "
        f"{describe_window(table)}{text}"
        for table in tables
    )


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
    parts = [table_view(table, Words("en", table.unit)).markdown() for table in tables]
    if tables:
        parts.append(Words("en", tables[0].unit)("results.how"))
    used = {flag for table in tables for row in table.rows for flag in row.flags}
    flags = [
        f"* {escape_markdown(name)}: {escape_markdown(text)}."
        for name, text in flag_meanings().items()
        if name in used
    ]
    if flags:
        parts.append("\n".join(["Flags:", "", *flags]))
    parts.append(f"Made by hpcbert {version}, {provenance.date}: {command}")
    return "\n\n".join(parts)


def render_csv(tables: Iterable[SpeedupTable], provenance: Provenance, _width: int = 0) -> str:
    """Return a header and a line for each point as CSV."""
    values = [point_values(table, row) for table in tables for row in table.rows]
    return _format_values(_POINT_TITLES, values, provenance)


def render_runs_csv(tables: Iterable[SpeedupTable], provenance: Provenance, _width: int = 0) -> str:
    """Return a header and a line for each run, including invalid ones, as CSV."""
    values = [
        {**run_values(table, row, run), "valid": "yes" if run.valid else "no"}
        for table in tables
        for row in table.rows
        for run in row.runs
    ]
    return _format_values(_RUN_TITLES, values, provenance)


def _format_values(
    titles: Sequence[str], values: Iterable[dict[str, Any]], provenance: Provenance
) -> str:
    origin = asdict(provenance)
    rows = [[{**row, **origin}.get(title) for title in titles] for row in values]
    return format_csv(titles, rows).rstrip("\n")


def render_perflog(tables: Iterable[SpeedupTable], provenance: Provenance, _width: int = 0) -> str:
    """Return a header and a line for each point, separated by bars.

    A point passes if all of its repeats are valid. Columns for what hpcbert does not know, such as
    thresholds, are empty.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, delimiter="|", lineterminator="\n")
    variables = [f"{name}_{part}" for name in _VARIABLES for part in _VARIABLE_PARTS]
    writer.writerow((*_PERFLOG_TITLES, *variables))
    for table in tables:
        for row in table.rows:
            values = point_values(table, row) | asdict(provenance)
            values["result"] = "pass" if row.ok == row.asked else "fail"
            values["name"] = f"{table.group.framework}_{row.shape}_{table.group.precision}"
            cells = [values.get(title) for title in _PERFLOG_TITLES]
            for rate in (row.median, row.min, row.max, per_device(row)):
                cells += [rate, f"{table.unit}/s", "", "", ""]
            writer.writerow(cells)
    return stream.getvalue().rstrip("\n")


def render_exacb(tables: Iterable[SpeedupTable], provenance: Provenance, _width: int = 0) -> str:
    """Return a report with an entry in `data` for each repeat, invalid ones with their reasons."""
    entries = [
        {
            "success": run.valid,
            "nodes": row.shape.nodes,
            "taskspernode": row.shape.gpus_per_node,
            "nodelist": list(run.nodes),
            "repeat": run.repeat,
            "reasons": describe_reasons(run),
            "flags": list(dict.fromkeys((*row.flags, *run.flags))),
            "parameter": {**place_data(table, row), "window": row.window and row.window.counted},
            "metrics": {
                "throughput": run.throughput if run.valid else None,
                "median": row.median,
                "median_per_gpu": per_device(row),
                "unit": f"{table.unit}/s",
            },
        }
        for table in tables
        for row in table.rows
        for run in row.runs
    ]
    report = {
        "reporter": {"tool": "hpcbert", **asdict(provenance)},
        "experiment": {"benchmark": "BERT pre-training", "metric": "throughput"},
        "data": entries,
    }
    return json.dumps(report, ensure_ascii=False, allow_nan=False, indent=1)


Outcome = Literal["", "failure", "error", "skipped"]


class Case(NamedTuple):
    """One test case.

    Attributes:
        outcome: Empty if it passed.
        rate: The point's median with its unit; empty if there is none.
    """

    suite: str
    group: str
    name: str
    outcome: Outcome = ""
    reason: str = ""
    rate: str = ""


def render_cases(title: str, cases: Sequence[Case]) -> bytes:
    """Return a file of test cases as JUnit XML, in a suite for each title of one."""
    root = ET.Element("testsuites", name=title)
    for suite in dict.fromkeys(case.suite for case in cases):
        members = [case for case in cases if case.suite == suite]
        counts: Counter[str] = Counter(case.outcome for case in members)
        element = ET.SubElement(root, "testsuite", name=sanitize(suite), tests=str(len(members)))
        for outcome, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            element.set(name, str(counts[outcome]))
        for case in members:
            names = {"classname": sanitize(case.group), "name": sanitize(case.name)}
            item = ET.SubElement(element, "testcase", names)
            if case.outcome:
                reason = sanitize(case.reason)
                ET.SubElement(item, case.outcome, message=reason).text = reason
            if case.rate:
                ET.SubElement(item, "system-out").text = sanitize(case.rate)
    ET.indent(root)
    text = ET.tostring(root, encoding="unicode", xml_declaration=True)
    return f"{text}\n".encode(errors="backslashreplace")


def list_cases(tables: Iterable[SpeedupTable], unread: Iterable[str]) -> Iterator[Case]:
    """Yield a case for each point, and one for each result that has no table.

    A point fails if a repeat is invalid, and is skipped while one waits or runs.
    """
    for table in tables:
        group = table.group
        words = [table_title(group), f"b{group.batch}", group.variant, group.rule]
        suite = " ".join(filter(None, words))
        for row in table.rows:
            median = "" if row.median is None else f"median {row.median!r} {table.unit}/s"
            case = Case(suite, suite, str(row.shape), rate=median)
            if row.ok < row.asked:
                invalid = row.asked - row.ok - row.unfinished
                counts = f"{row.ok} of {format_count(row.asked, 'repeat')} valid, {invalid} invalid"
                reasons = "; ".join(f"{name}: {text}" for name, text in invalid_repeats(row))
                text = f"{counts}, {row.unfinished} unfinished. {reasons}"
                case = case._replace(outcome="failure" if invalid else "skipped", reason=text)
            yield case
    for reason in unread:
        yield Case("no table", "hpcbert collect", reason, "error", reason)


# Returns the text of tables without its last newline, from what made it and the maximum length of
# a line (0: no maximum), which only formats that fold lines use.
Writer = Callable[[Sequence[SpeedupTable], Provenance, int], str]


@dataclass(frozen=True)
class TableFormat:
    """One format.

    Attributes:
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
    """Return one row per point, with version, time and command as the frame's attributes."""
    from hpcbert.results import frame  # pandas

    rows = frame.rows_frame(tables)
    rows.attrs.update(asdict(provenance))
    return frame.to_parquet(rows)


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
    "perflog": TableFormat(render_perflog, exact=True),
    "exacb": TableFormat(render_exacb, exact=True),
}


def format_of_suffix(ending: str) -> str:
    """Return the name of the format that a file name's ending selects; empty if none."""
    return next((name for name, form in FORMATS.items() if ending.lower() in form.endings), "")
