"""Explain the efficiency of results, from rows, logs and nccl-tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert.flows.collect import CollectRequest
from hpcbert.flows.results import load
from hpcbert.logs.arithmetic import median
from hpcbert.logs.input_wait import waited
from hpcbert.results.explained import explain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcbert.flows.results import Places
    from hpcbert.model import Group, Row, Shape, SpeedupTable
    from hpcbert.results.explained import Observation

_SPEED = re.compile(r" is ([0-9.e+]{1,20}) GB/s")
# Logs of a point to read for waits for input.
_LOGS = 5
# The rule for large messages, such as the buckets in which gradients are sent.
_LARGE = "busbw-32M"


def explained(
    words: Sequence[str], at: Places, *, network: Sequence[str] = ()
) -> tuple[tuple[tuple[Group, tuple[Observation, ...]], ...], tuple[str, ...]]:
    """Return an explanation of each table's efficiency, and warnings.

    Args:
        words: Campaigns, logs, saved results; the newest campaign without any.
        at: Where campaigns and recipes are.
        network: Campaigns or logs of nccl-tests.

    Raises:
        UsageError: As `load`.
    """
    found = load(words, at)
    speeds = bandwidths(load(network, at, CollectRequest(rule=_LARGE)).tables) if network else {}
    places = {source.name: Path(source.path) for source in found.sources if source.path}
    return tuple(
        (table.group, explain(table, bandwidths=speeds, waits=_waits(table, places)))
        for table in found.tables
    ), (*found.warnings, *found.refused)


def bandwidths(tables: Sequence[SpeedupTable]) -> dict[Shape, float]:
    """Return the bus bandwidth of each shape, GB/s: runs of nccl-tests give it as their reason."""
    found: dict[Shape, list[float]] = {}
    for table in tables:
        for row in table.rows:
            for run in row.runs:
                for reason in run.reasons:
                    if match := _SPEED.search(reason.detail):
                        found.setdefault(row.shape, []).append(float(match[1]))
    return {shape: median(speeds) for shape, speeds in found.items()}


def _waits(table: SpeedupTable, places: Mapping[str, Path]) -> dict[Shape, list[float]]:
    shares = {row.shape: _of_row(row, places) for row in table.rows}
    return {shape: found for shape, found in shares.items() if found}


def _of_row(row: Row, places: Mapping[str, Path]) -> list[float]:
    logs = [run.log for run in row.runs if run.valid and run.log][:_LOGS]
    origin = row.origin
    base = places.get(origin.name, Path()) if origin and origin.kind == "campaign" else Path()
    shares = (waited(base / log) for log in logs)
    return [one for one in shares if one is not None]
