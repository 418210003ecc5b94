"""Speedup tables as CSV: one line a point, numbers unrounded."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from hpcbert.report.words import differences, plain, why

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hpcbert.model import Row, SpeedupTable

COLUMNS = (
    "framework",
    "model",
    "precision",
    "batch_size_per_device",
    "variant",
    "rule",
    "nodes",
    "gpus_per_node",
    "gpus",
    "median",
    "mean",
    "min",
    "max",
    "cv",
    "speedup",
    "efficiency",
    "ok",
    "asked",
    "flags",
    "reasons",
    "differences",
)
# What makes a spreadsheet take a cell for a formula (OWASP, CSV Injection).
_FORMULA = ("=", "+", "-", "@")


def cell(text: str) -> str:
    """Return text on one line that no spreadsheet takes for a formula."""
    flat = plain(text)
    return f"'{flat}" if flat.startswith(_FORMULA) else flat


def render(tables: Iterable[SpeedupTable]) -> str:
    """Return a header and a line for each point, without the last newline."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for table in tables:
        for row in table.rows:
            writer.writerow([*_group(table), *_numbers(row), *_words(row)])
    return stream.getvalue().rstrip("\n")


def _group(table: SpeedupTable) -> list[str | int]:
    group = table.group
    words = (group.framework, group.model, group.precision)
    return [
        *map(cell, words),
        group.batch_size_per_device,
        cell(group.variant),
        cell(group.rule),
    ]


def _numbers(row: Row) -> list[float | int | None]:
    shape = row.shape
    spread = (row.median, row.mean, row.min, row.max, row.cv, row.speedup, row.efficiency)
    return [shape.nodes, shape.gpus_per_node, shape.gpus, *spread, row.ok, row.asked]


def _words(row: Row) -> list[str]:
    reasons = "; ".join(f"repeat {run.repeat}: {why(run)}" for run in row.runs if not run.valid)
    return [cell(" ".join(row.flags)), cell(reasons), cell("; ".join(differences(row)))]
