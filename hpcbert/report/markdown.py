"""Speedup tables as Markdown, with DLPerf's columns first.

DLPerf's header is `| node_num | gpu_num | samples/s | speedup |`, where gpu_num counts all GPUs
(Oneflow-Inc/DLPerf@c89430b, most of its READMEs).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpcbert.report.words import differences, plain, why

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hpcbert.model import Row, Run, SpeedupTable

_COLUMNS = (
    "node_num",
    "gpu_num",
    "samples/s",
    "speedup",
    "efficiency",
    "min",
    "max",
    "cv",
    "repeats",
    "flags",
)
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&!])")


def escape(text: str) -> str:
    """Return text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", plain(text))


def render(tables: Iterable[SpeedupTable]) -> str:
    """Return a heading and a table for each group, and a list of what speaks against it."""
    return "\n\n".join(_table(table) for table in tables)


def _table(table: SpeedupTable) -> str:
    group = table.group
    variant = f", {group.variant}" if group.variant else ""
    title = f"{group.framework} {group.model} {group.precision}"
    lines = [
        f"### {escape(f'{title}, batch size {group.batch_size_per_device} per device{variant}')}",
        "",
        f"Rule {escape(group.rule)}; median of the valid repeats.",
        "",
        _line(_COLUMNS),
        _line(["---:"] * (len(_COLUMNS) - 1) + [":---"]),
        *(_line(_cells(row)) for row in table.rows),
    ]
    refused = [_refusal(row, run) for row in table.rows for run in row.runs if not run.valid]
    refused += [f"* {row.shape}: {escape(one)}" for row in table.rows for one in differences(row)]
    return "\n".join([*lines, "", *refused] if refused else lines)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _number(value: float | None, form: str = ".2f") -> str:
    return "" if value is None else format(value, form)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        str(row.shape.nodes),
        str(row.shape.gpus),
        _number(row.median),
        _number(row.speedup),
        _number(row.efficiency, ".1%"),
        _number(row.min),
        _number(row.max),
        _number(row.cv, ".2%"),
        f"{row.ok}/{row.asked}",
        escape(", ".join(row.flags)),
    )


def _refusal(row: Row, run: Run) -> str:
    return f"* {row.shape}, repeat {run.repeat} does not count: {escape(why(run))}"
