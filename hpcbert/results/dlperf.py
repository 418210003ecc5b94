"""Speedup tables in the shape and the rounding of DLPerf's result JSON.

The format is that of its extractors (Oneflow-Inc/DLPerf@e36df2e,
Tensorflow/resnet50v1.5/result/resnet50_result.json): runs are rounded to two decimals before
they are averaged, medians before they are divided. Unlike them it never writes NaN: a point
without a valid run is left out, a missing baseline gives null.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from hpcbert.errors import UsageError
from hpcbert.logs.arithmetic import median
from hpcbert.model import Provenance, SpeedupTable, valid_throughputs
from hpcbert.results.reduce import BASELINE
from hpcbert.results.words import cpu_suffix, describe_window


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
    """Return the JSON text."""
    return json.dumps(dlperf_data(tables), ensure_ascii=False, allow_nan=False)


def describe_omissions(tables: Iterable[SpeedupTable], provenance: Provenance) -> tuple[str, ...]:
    """Return the content that this form can't hold, one sentence per table."""
    text = f"hpcbert {provenance.hpcbert}, {provenance.date}: {provenance.command}"
    texts = (
        f"{cpu_suffix(table.group, 'device ')}{'; ' if table.group.device == 'cpu' else ''}"
        f"rule {table.group.rule}; {describe_window(table)}{text}"
        for table in tables
    )
    return tuple(f"what dlperf-json has no key for: {sentence}" for sentence in texts)


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
