"""Speedup tables as data frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hpcbert.model import Row, Run, SpeedupTable

_GROUP = ("framework", "model", "precision", "batch_size_per_device", "variant", "rule", "device")
_SHAPE = ("nodes", "gpus_per_node", "gpus")
_NUMBERS = ("median", "mean", "min", "max", "cv", "speedup", "efficiency", "ok", "asked")


def rows_frame(tables: Iterable[SpeedupTable]) -> pd.DataFrame:
    """Return one line a point: its group, shape, numbers (NaN where there is none) and flags."""
    columns = [*_GROUP, *_SHAPE, *_NUMBERS, "flags"]
    records = [_point(table, row) for table in tables for row in table.rows]
    return pd.DataFrame(records, columns=columns).astype(dict.fromkeys(_NUMBERS[:7], float))


def runs_frame(tables: Iterable[SpeedupTable]) -> pd.DataFrame:
    """Return one line a repeat, those that don't count with their reasons."""
    columns = [*_GROUP, *_SHAPE, "repeat", "attempt", "throughput", "valid", "state", "reasons"]
    records = [
        {**_place(table, row), **_repeat(run)}
        for table in tables
        for row in table.rows
        for run in row.runs
    ]
    return pd.DataFrame(records, columns=[*columns, "log"]).astype({"throughput": float})


def _place(table: SpeedupTable, row: Row) -> dict[str, Any]:
    group = {name: getattr(table.group, name) for name in _GROUP}
    return {**group, **{name: getattr(row.shape, name) for name in _SHAPE}}


def _point(table: SpeedupTable, row: Row) -> dict[str, Any]:
    numbers = {name: getattr(row, name) for name in _NUMBERS}
    return {**_place(table, row), **numbers, "flags": " ".join(row.flags)}


def _repeat(run: Run) -> dict[str, Any]:
    names = ("repeat", "attempt", "throughput", "valid", "state", "log")
    reasons = "; ".join(map(str, run.reasons))
    return {**{name: getattr(run, name) for name in names}, "reasons": reasons}
