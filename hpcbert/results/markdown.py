"""Speedup tables as Markdown, with DLPerf's columns first.

DLPerf's header is `| node_num | gpu_num | samples/s | speedup |`, where gpu_num counts all GPUs
(Oneflow-Inc/DLPerf@c89430b, most of its READMEs).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpcbert.results.words import (
    FLAGS,
    basis,
    differences,
    marks,
    of_devices,
    on_cpu,
    plain,
    protocol,
    refusals,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hpcbert.model import Provenance, Row, SpeedupTable

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
# Only in tables that have one.
_MFU = ("MFU", "MFU padded")
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&!])")
_LEGEND = (
    "samples/s is the median of the valid repeats, over all GPUs; min and max are the slowest and "
    "the fastest of them, of five the range that holds the true median with 93.75 % confidence. "
    "cv is their standard deviation over their mean; repeats are the valid ones, of those "
    "requested."
)


def escape(text: str) -> str:
    """Return text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", plain(text))


def render(tables: Sequence[SpeedupTable], made: Provenance, _width: int = 0) -> str:
    """Return a heading and a table for each group, its problems, and a legend."""
    how = f"Made by hpcbert {escape(made.hpcbert)}, {made.date}: {escape(made.command)}"
    return "\n\n".join([*map(_table, tables), *_legend(tables), how])


def _table(table: SpeedupTable) -> str:
    group = table.group
    variant = f", {group.variant}" if group.variant else ""
    title = f"{group.framework} {group.model} {group.precision}{on_cpu(group, ' ')}"
    columns = ("node_num", "rank_num", *_COLUMNS[2:]) if group.device == "cpu" else _COLUMNS
    mfu = _MFU if any(any(_shares(row)) for row in table.rows) else ()
    lines = [
        f"### {escape(f'{title}, batch size {group.batch} per device{variant}')}",
        "",
        f"Rule {escape(f'{group.rule}; {basis(table)}median')} of the valid repeats.",
        "",
        _line((*columns, *mfu)),
        _line(["---:"] * (len(_COLUMNS) - 1) + [":---"] + ["---:"] * len(mfu)),
        *(_line((*_cells(row), *(_shares(row) if mfu else ()))) for row in table.rows),
    ]
    notes = [
        f"* {row.shape}, {who} {'are' if ' repeats' in who else 'is'} invalid: {escape(said)}"
        for row in table.rows
        for who, said in refusals(row)
    ]
    notes += [
        f"* {row.shape}: {escape(one)}"
        for row in table.rows
        for one in (*protocol(row), *marks(row), *differences(row))
    ]
    return "\n".join([*lines, "", *notes] if notes else lines)


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
        # One run does not have a range.
        _number(row.min if row.cv is not None else None),
        _number(row.max if row.cv is not None else None),
        _number(row.cv, ".2%"),
        f"{row.ok}/{row.asked}",
        escape(", ".join(row.flags)),
    )


def _shares(row: Row) -> tuple[str, ...]:
    metrics = row.metrics
    known = (metrics.mfu, metrics.mfu_padded) if metrics else (None, None)
    return tuple(_number(share, ".1%") for share in known)


def _legend(tables: Sequence[SpeedupTable]) -> list[str]:
    used = {flag for table in tables for row in table.rows for flag in row.flags}
    flags = [
        f"* {escape(name)}: {escape(of_devices(text, tables))}."
        for name, text in FLAGS.items()
        if name in used
    ]
    return (
        [of_devices(_LEGEND, tables), *(["\n".join(["Flags:", "", *flags])] if flags else [])]
        if tables
        else []
    )
