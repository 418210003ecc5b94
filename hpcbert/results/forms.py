"""The formats of tables of results: a new one is a `Reporter` and a line in `FORMATS`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hpcbert.model import Provenance, Row, Run, SpeedupTable
from hpcbert.results import dlperf, document, text
from hpcbert.results.grid import Cell, Column, Grid, escape_markdown, format_csv, format_markdown
from hpcbert.results.words import (
    FLAGS,
    adapt_to_devices,
    cpu_suffix,
    describe_adaptive,
    describe_differences,
    describe_flags,
    describe_reasons,
    describe_window,
    invalid_repeats,
)

# The columns of a published table by their keys, with their forms. DLPerf's come first: its header
# is `| node_num | gpu_num | samples/s | speedup |`, where gpu_num counts all GPUs
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
    "samples/s is the median of the valid repeats, over all GPUs; min and max are the slowest and "
    "the fastest of them, of five the range that holds the true median with 93.75 % confidence. "
    "cv is their standard deviation over their mean; repeats are the valid ones, of those "
    "requested."
)
_GROUP = ("framework", "model", "precision", "batch_size_per_device", "variant", "rule", "device")
_PLACE = (*_GROUP, "nodes", "gpus_per_node", "gpus")
_NUMBERS = ("median", "mean", "min", "max", "cv", "speedup", "efficiency", "ok", "asked")
_MFU = ("mfu", "mfu_padded")
# Lines of a spreadsheet are copied out of their file, so each states its origin.
_PROVENANCE = ("window", "hpcbert", "date", "command")
_POINT_TITLES = (*_PLACE, *_NUMBERS, *_MFU, "flags", "reasons", "differences", *_PROVENANCE)
_RUN = ("repeat", "attempt", "throughput", "valid", "flags", "reasons", "state", "nodelist", "log")
_RUN_TITLES = (*_PLACE, *_RUN, *_PROVENANCE)


def published_cells(row: Row) -> tuple[Cell, ...]:
    """Return the cells of a row, in the order of PUBLISHED."""
    # One run does not have a range.
    low, high = (row.min, row.max) if row.cv is not None else (None, None)
    numbers = (row.median, row.speedup, row.efficiency, low, high, row.cv)
    repeats = f"{row.ok}/{row.asked}"
    return (row.shape.nodes, row.shape.gpus, *numbers, repeats, ", ".join(row.flags))


def render_markdown(tables: Sequence[SpeedupTable], provenance: Provenance, _width: int = 0) -> str:
    """Return a heading and a table for each group, its problems, and a legend, as Markdown."""
    version, command = escape_markdown(provenance.hpcbert), escape_markdown(provenance.command)
    provenance_line = f"Made by hpcbert {version}, {provenance.date}: {command}"
    return "\n\n".join([*map(_markdown_table, tables), *_markdown_legend(tables), provenance_line])


def _markdown_table(table: SpeedupTable) -> str:
    group = table.group
    variant = f", {group.variant}" if group.variant else ""
    title = f"{group.framework} {group.model} {group.precision}{cpu_suffix(group, ' ')}"
    titles = {"devices": "rank_num" if group.device == "cpu" else "gpu_num", "samples": "samples/s"}
    columns = tuple(Column(titles.get(key, key), form) for key, form in PUBLISHED_COLUMNS.items())
    rows = [published_cells(row) for row in table.rows]
    if any(any(_mfu_cells(row)) for row in table.rows):
        columns += (Column("MFU", ".1%"), Column("MFU padded", ".1%"))
        rows = [(*cells, *_mfu_cells(row)) for cells, row in zip(rows, table.rows, strict=True)]
    lines = [
        f"### {escape_markdown(f'{title}, batch size {group.batch} per device{variant}')}",
        "",
        f"Rule {escape_markdown(f'{group.rule}; {describe_window(table)}median')} of the valid repeats.",
        "",
        format_markdown(Grid("results", title, columns, tuple(rows))),
    ]
    notes = [f"* {escape_markdown(note)}" for row in table.rows for note in _row_notes(row)]
    return "\n".join([*lines, "", *notes] if notes else lines)


def _row_notes(row: Row) -> list[str]:
    notes = []
    for repeats, reason in invalid_repeats(row):
        verb = "are" if " repeats" in repeats else "is"
        notes.append(f"{row.shape}, {repeats} {verb} invalid: {reason}")
    remarks = (*describe_adaptive(row), *describe_flags(row), *describe_differences(row))
    return notes + [f"{row.shape}: {note}" for note in remarks]


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
    legend = adapt_to_devices(_LEGEND, tables)
    return [legend, "\n".join(["Flags:", "", *flags])] if flags else [legend]


def render_csv(tables: Iterable[SpeedupTable], provenance: Provenance, _width: int = 0) -> str:
    """Return a header and a line for each point as CSV."""
    rows = [
        (*_place_cells(table, row), *_point_cells(row), *_provenance_cells(row, provenance))
        for table in tables
        for row in table.rows
    ]
    return format_csv(_POINT_TITLES, rows).rstrip("\n")


def render_runs_csv(tables: Iterable[SpeedupTable], provenance: Provenance, _width: int = 0) -> str:
    """Return a header and a line for each run, including invalid ones, as CSV."""
    rows = [
        (*_place_cells(table, row), *_run_cells(run), *_provenance_cells(row, provenance))
        for table in tables
        for row in table.rows
        for run in row.runs
    ]
    return format_csv(_RUN_TITLES, rows).rstrip("\n")


def _place_cells(table: SpeedupTable, row: Row) -> tuple[Cell, ...]:
    labels = [getattr(table.group, name) for name in _GROUP]
    return (*labels, row.shape.nodes, row.shape.gpus_per_node, row.shape.gpus)


def _point_cells(row: Row) -> tuple[Cell, ...]:
    numbers = [getattr(row, name) for name in _NUMBERS]
    reasons = "; ".join(
        f"repeat {run.repeat}: {describe_reasons(run)}" for run in row.runs if not run.valid
    )
    return (
        *numbers,
        *_mfu_cells(row),
        " ".join(row.flags),
        reasons,
        "; ".join(describe_differences(row)),
    )


def _run_cells(run: Run) -> tuple[Cell, ...]:
    valid = "yes" if run.valid else "no"
    # A log that hpcbert did not submit has no state.
    state = "" if run.state == "-" else run.state
    numbers = (run.repeat, run.attempt, run.throughput, valid)
    return (
        *numbers,
        " ".join(run.flags),
        describe_reasons(run),
        state,
        " ".join(run.nodes),
        run.log,
    )


def _provenance_cells(row: Row, provenance: Provenance) -> tuple[str, ...]:
    window = row.window.counted if row.window else ""
    return window, provenance.hpcbert, provenance.date, provenance.command


class Reporter(Protocol):
    """Writes tables in one form."""

    def __call__(
        self, tables: Sequence[SpeedupTable], provenance: Provenance, width: int, /
    ) -> str:
        """Return the text without its last newline.

        Args:
            tables: What to write.
            provenance: By what, when and by which command.
            width: The maximum length of a line, in forms that fold lines. 0: no maximum.

        Raises:
            UsageError: The form can't represent these tables.
        """
        ...


@dataclass(frozen=True)
class TableFormat:
    """One form.

    Attributes:
        write: Writes it.
        endings: Endings of file names that select this form.
        exact: Whether programs read it: then it is printed byte for byte.
        omissions: Returns the content that it can't hold, one sentence per table.
        pack: Makes the file of a binary format; then `write` is not used.
    """

    write: Reporter
    endings: tuple[str, ...] = ()
    exact: bool = False
    omissions: Callable[[Sequence[SpeedupTable], Provenance], tuple[str, ...]] = lambda *_: ()
    pack: Callable[[Sequence[SpeedupTable], Provenance], bytes] | None = None


def _pack_parquet(tables: Sequence[SpeedupTable], provenance: Provenance) -> bytes:
    from hpcbert.results import frame  # pandas

    return frame.to_parquet(tables, provenance)


# By name, for `collect --format`.
FORMATS = {
    "text": TableFormat(text.render_text, (".txt",)),
    "wide": TableFormat(text.render_wide),
    "markdown": TableFormat(render_markdown, (".md", ".markdown")),
    "csv": TableFormat(render_csv, (".csv",)),
    "csv-runs": TableFormat(render_runs_csv),
    "json": TableFormat(document.render_json, (".json",), exact=True),
    "parquet": TableFormat(text.render_text, (".parquet",), pack=_pack_parquet),
    "dlperf-json": TableFormat(
        dlperf.render_dlperf, exact=True, omissions=dlperf.describe_omissions
    ),
}


def format_of_suffix(ending: str) -> str:
    """Return the name of the form that a file name's ending selects; empty if none."""
    return next((name for name, form in FORMATS.items() if ending.lower() in form.endings), "")
