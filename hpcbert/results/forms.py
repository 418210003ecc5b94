"""The formats of tables of results: a new one is a `Reporter` and a line in `FORMS`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hpcbert.results import dlperf, document, text
from hpcbert.results.grid import Column, Grid, comma_separated, escape, markdown
from hpcbert.results.words import (
    FLAGS,
    basis,
    differences,
    marks,
    of_devices,
    on_cpu,
    protocol,
    refusals,
    why,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hpcbert.model import Provenance, Row, Run, SpeedupTable
    from hpcbert.results.grid import Cell

# The columns of a published table by their keys, with their forms. DLPerf's come first: its header
# is `| node_num | gpu_num | samples/s | speedup |`, where gpu_num counts all GPUs
# (Oneflow-Inc/DLPerf@c89430b, most of its READMEs).
PUBLISHED = {
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
_MADE = ("window", "hpcbert", "date", "command")
_POINT_TITLES = (*_PLACE, *_NUMBERS, *_MFU, "flags", "reasons", "differences", *_MADE)
_RUN = ("repeat", "attempt", "throughput", "valid", "flags", "reasons", "state", "nodelist", "log")
_RUN_TITLES = (*_PLACE, *_RUN, *_MADE)


def published_cells(row: Row) -> tuple[Cell, ...]:
    """Return the cells of a row, in the order of PUBLISHED."""
    # One run does not have a range.
    low, high = (row.min, row.max) if row.cv is not None else (None, None)
    numbers = (row.median, row.speedup, row.efficiency, low, high, row.cv)
    repeats = f"{row.ok}/{row.asked}"
    return (row.shape.nodes, row.shape.gpus, *numbers, repeats, ", ".join(row.flags))


def render_markdown(tables: Sequence[SpeedupTable], provenance: Provenance, _width: int = 0) -> str:
    """Return a heading and a table for each group, its problems, and a legend, as Markdown."""
    version, command = escape(provenance.hpcbert), escape(provenance.command)
    how = f"Made by hpcbert {version}, {provenance.date}: {command}"
    return "\n\n".join([*map(_markdown_table, tables), *_legend(tables), how])


def _markdown_table(table: SpeedupTable) -> str:
    group = table.group
    variant = f", {group.variant}" if group.variant else ""
    title = f"{group.framework} {group.model} {group.precision}{on_cpu(group, ' ')}"
    titles = {"devices": "rank_num" if group.device == "cpu" else "gpu_num", "samples": "samples/s"}
    columns = tuple(Column(titles.get(key, key), form) for key, form in PUBLISHED.items())
    rows = [published_cells(row) for row in table.rows]
    if any(any(_mfu(row)) for row in table.rows):
        columns += (Column("MFU", ".1%"), Column("MFU padded", ".1%"))
        rows = [(*cells, *_mfu(row)) for cells, row in zip(rows, table.rows, strict=True)]
    lines = [
        f"### {escape(f'{title}, batch size {group.batch} per device{variant}')}",
        "",
        f"Rule {escape(f'{group.rule}; {basis(table)}median')} of the valid repeats.",
        "",
        markdown(Grid("results", title, columns, tuple(rows))),
    ]
    notes = [f"* {escape(note)}" for row in table.rows for note in _row_notes(row)]
    return "\n".join([*lines, "", *notes] if notes else lines)


def _row_notes(row: Row) -> list[str]:
    notes = []
    for who, reason in refusals(row):
        verb = "are" if " repeats" in who else "is"
        notes.append(f"{row.shape}, {who} {verb} invalid: {reason}")
    others = (*protocol(row), *marks(row), *differences(row))
    return notes + [f"{row.shape}: {note}" for note in others]


def _mfu(row: Row) -> tuple[float | None, float | None]:
    return (row.metrics.mfu, row.metrics.mfu_padded) if row.metrics else (None, None)


def _legend(tables: Sequence[SpeedupTable]) -> list[str]:
    if not tables:
        return []
    used = {flag for table in tables for row in table.rows for flag in row.flags}
    flags = [
        f"* {escape(name)}: {escape(of_devices(text, tables))}."
        for name, text in FLAGS.items()
        if name in used
    ]
    legend = of_devices(_LEGEND, tables)
    return [legend, "\n".join(["Flags:", "", *flags])] if flags else [legend]


def render_csv(tables: Iterable[SpeedupTable], provenance: Provenance, _width: int = 0) -> str:
    """Return a header and a line for each point as CSV."""
    rows = [
        (*_place(table, row), *_point(row), *_made(row, provenance))
        for table in tables
        for row in table.rows
    ]
    return comma_separated(_POINT_TITLES, rows).rstrip("\n")


def render_runs_csv(tables: Iterable[SpeedupTable], provenance: Provenance, _width: int = 0) -> str:
    """Return a header and a line for each run, including invalid ones, as CSV."""
    rows = [
        (*_place(table, row), *_run(run), *_made(row, provenance))
        for table in tables
        for row in table.rows
        for run in row.runs
    ]
    return comma_separated(_RUN_TITLES, rows).rstrip("\n")


def _place(table: SpeedupTable, row: Row) -> tuple[Cell, ...]:
    labels = [getattr(table.group, name) for name in _GROUP]
    return (*labels, row.shape.nodes, row.shape.gpus_per_node, row.shape.gpus)


def _point(row: Row) -> tuple[Cell, ...]:
    numbers = [getattr(row, name) for name in _NUMBERS]
    reasons = "; ".join(f"repeat {run.repeat}: {why(run)}" for run in row.runs if not run.valid)
    return (*numbers, *_mfu(row), " ".join(row.flags), reasons, "; ".join(differences(row)))


def _run(run: Run) -> tuple[Cell, ...]:
    valid = "yes" if run.valid else "no"
    # A log that hpcbert did not submit has no state.
    state = "" if run.state == "-" else run.state
    numbers = (run.repeat, run.attempt, run.throughput, valid)
    return (*numbers, " ".join(run.flags), why(run), state, " ".join(run.nodes), run.log)


def _made(row: Row, provenance: Provenance) -> tuple[str, ...]:
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
class Form:
    """One form.

    Attributes:
        write: Writes it.
        endings: Endings of file names that select this form.
        exact: Whether programs read it: then it is printed byte for byte.
        unsaid: Returns the content that it can't hold, one sentence per table.
        pack: Makes the file of a binary format; then `write` is not used.
    """

    write: Reporter
    endings: tuple[str, ...] = ()
    exact: bool = False
    unsaid: Callable[[Sequence[SpeedupTable], Provenance], tuple[str, ...]] = lambda *_: ()
    pack: Callable[[Sequence[SpeedupTable], Provenance], bytes] | None = None


def _parquet(tables: Sequence[SpeedupTable], provenance: Provenance) -> bytes:
    from hpcbert.results import frame  # pandas

    return frame.parquet(tables, provenance)


# By name, for `collect --format`.
FORMS = {
    "text": Form(text.render, (".txt",)),
    "wide": Form(text.render_wide),
    "markdown": Form(render_markdown, (".md", ".markdown")),
    "csv": Form(render_csv, (".csv",)),
    "csv-runs": Form(render_runs_csv),
    "json": Form(document.render, (".json",), exact=True),
    "parquet": Form(text.render, (".parquet",), pack=_parquet),
    "dlperf-json": Form(dlperf.render, exact=True, unsaid=dlperf.unsaid),
}


def form_of(ending: str) -> str:
    """Return the name of the form that a file name's ending selects; empty if none."""
    return next((name for name, form in FORMS.items() if ending.lower() in form.endings), "")
