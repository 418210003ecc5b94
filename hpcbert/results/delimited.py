"""Speedup tables as CSV: one line per point or per run; numbers unrounded."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from hpcbert.results.words import differences, plain, why

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hpcbert.model import Provenance, Row, Run, SpeedupTable

_GROUP = ("framework", "model", "precision", "batch_size_per_device", "variant", "rule", "device")
_SHAPE = ("nodes", "gpus_per_node", "gpus")
# Lines of a spreadsheet are copied out of their file, so each states its origin.
_MADE = ("window", "hpcbert", "date", "command")
_MFU = ("mfu", "mfu_padded")
COLUMNS = (
    *_GROUP,
    *_SHAPE,
    *("median", "mean", "min", "max", "cv", "speedup", "efficiency", "ok", "asked"),
    *_MFU,
    *("flags", "reasons", "differences"),
    *_MADE,
)
RUN_COLUMNS = (
    *_GROUP,
    *_SHAPE,
    *("repeat", "attempt", "throughput", "valid", "flags", "reasons", "state", "nodelist", "log"),
    *_MADE,
)
# Characters that make a spreadsheet treat a cell as a formula (OWASP, CSV Injection).
_FORMULA = ("=", "+", "-", "@")
_Cell = str | int | float | None


def cell(text: str) -> str:
    """Return text on one line that no spreadsheet treats as a formula."""
    flat = plain(text)
    return f"'{flat}" if flat.startswith(_FORMULA) else flat


def render(tables: Iterable[SpeedupTable], made: Provenance, _width: int = 0) -> str:
    """Return a header and a line for each point, without the last newline."""
    lines = (
        [*_place(table, row), *_point(row), *_made(row, made)]
        for table in tables
        for row in table.rows
    )
    return _written(COLUMNS, lines)


def render_runs(tables: Iterable[SpeedupTable], made: Provenance, _width: int = 0) -> str:
    """Return a header and a line for each run, including invalid ones."""
    lines = (
        [*_place(table, row), *_run(run), *_made(row, made)]
        for table in tables
        for row in table.rows
        for run in row.runs
    )
    return _written(RUN_COLUMNS, lines)


def _written(header: Iterable[str], lines: Iterable[Iterable[_Cell]]) -> str:
    import csv

    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(lines)
    return stream.getvalue().rstrip("\n")


def _place(table: SpeedupTable, row: Row) -> list[_Cell]:
    group, shape = table.group, row.shape
    words = (group.framework, group.model, group.precision)
    return [
        *map(cell, words),
        group.batch_size_per_device,
        cell(group.variant),
        cell(group.rule),
        group.device,
        *(shape.nodes, shape.gpus_per_node, shape.gpus),
    ]


def _point(row: Row) -> list[_Cell]:
    reasons = "; ".join(f"repeat {run.repeat}: {why(run)}" for run in row.runs if not run.valid)
    return [
        *(row.median, row.mean, row.min, row.max, row.cv, row.speedup, row.efficiency),
        *(row.ok, row.asked),
        *(getattr(row.metrics, name, None) for name in _MFU),
        *map(cell, (" ".join(row.flags), reasons, "; ".join(differences(row)))),
    ]


def _run(run: Run) -> list[_Cell]:
    return [
        *(run.repeat, run.attempt, run.throughput, "yes" if run.valid else "no"),
        cell(" ".join(run.flags)),
        cell(why(run)),
        # A log that hpcbert did not submit has no state.
        "" if run.state == "-" else cell(run.state),
        cell(" ".join(run.nodes)),
        cell(run.log),
    ]


def _made(row: Row, made: Provenance) -> list[str]:
    counted = row.window.counted if row.window else ""
    return [cell(one) for one in (counted, made.hpcbert, made.date, made.command)]
