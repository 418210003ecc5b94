"""Tables of speedups as data frames."""

from __future__ import annotations

import io
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import pandas as pd

from hpcbert.model import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hpcbert.model import Provenance, Row, Run, SpeedupTable

# Columns with their types. Text is pandas' own text type, and never missing.
_TEXT, _WHOLE, _NUMBER, _TRUTH = "string", "int64", "float64", "bool"
_PLACE = {
    "framework": _TEXT,
    "model": _TEXT,
    "precision": _TEXT,
    "batch_size_per_device": _WHOLE,
    "variant": _TEXT,
    "rule": _TEXT,
    "device": _TEXT,
    "nodes": _WHOLE,
    "gpus_per_node": _WHOLE,
    "gpus": _WHOLE,
}
_NUMBERS = ("median", "mean", "min", "max", "cv", "speedup", "efficiency")
_ROWS = {**_PLACE, **dict.fromkeys(_NUMBERS, _NUMBER), "ok": _WHOLE, "asked": _WHOLE}
_METRICS = tuple(field.name for field in fields(Metrics) if field.name != "unknown")
_ROWS |= dict.fromkeys(_METRICS, _NUMBER)
_ROWS |= {"flags": _TEXT, "window": _TEXT, "source": _TEXT}
_RUNS = {**_PLACE, "repeat": _WHOLE, "attempt": _WHOLE, "throughput": _NUMBER, "valid": _TRUTH}
_RUNS |= {"state": _TEXT, "reasons": _TEXT, "flags": _TEXT, "nodelist": _TEXT, "log": _TEXT}
_RUNS |= {"source": _TEXT}
_STEPS = {**_PLACE, "repeat": _WHOLE, "iteration": _WHOLE, "seconds": _NUMBER, "measured": _TRUTH}
_STEPS |= {"source": _TEXT}


def rows_frame(tables: Iterable[SpeedupTable]) -> pd.DataFrame:
    """Return one row per point; numbers unrounded, NaN if missing.

    framework, model, precision, variant, rule, device, batch_size_per_device (samples):
    identify its table. nodes, gpus_per_node, gpus: its shape. median, mean, min, max (samples/s
    over all devices), cv, speedup, efficiency (ratios): over the valid runs. ok, asked: numbers
    of valid and requested runs. samples_per_second_per_gpu, tokens_per_second,
    real_tokens_per_second, step_seconds, step_seconds_p95, model_flops_per_sample,
    peak_flops_per_second (of one GPU), mfu, mfu_padded (ratios),
    gpu_memory_mib, watts (all GPUs), samples_per_joule: as `Metrics`. flags: separated by
    blanks. window: the measured part of each run. source: the campaign or the logs.
    """
    points = ((table, row) for table in tables for row in table.rows)
    return _frame(({**_place(*point), **_point(point[1])} for point in points), _ROWS)


def runs_frame(tables: Iterable[SpeedupTable]) -> pd.DataFrame:
    """Return one row per repeat, invalid ones with their reasons.

    The first columns and source are those of `rows_frame`. repeat: from 1. attempt: from 0.
    throughput: samples/s over all devices, NaN if there is no trusted number. valid: whether it is
    valid. state: the scheduler's word. reasons, flags, nodelist (separated by `; ` or blanks),
    log: its path.
    """
    runs = ((table, row, run) for table in tables for row in table.rows for run in row.runs)
    return _frame(({**_place(table, row), **_repeat(run)} for table, row, run in runs), _RUNS)


def steps_frame(tables: Iterable[SpeedupTable]) -> pd.DataFrame:
    """Return one row per record of a log, for valid runs.

    The first columns and source are those of `rows_frame`. repeat: the run. iteration: where the
    record ends, in iterations completed. seconds: of one iteration, averaged over those that the
    record covers. measured: whether it is in the window that the number comes from.
    """
    return _frame(_records(tables), _STEPS)


def parquet(tables: Iterable[SpeedupTable], provenance: Provenance) -> bytes:
    """Return `rows_frame` as a Parquet file, with version, time and command as attributes."""
    frame = rows_frame(tables)
    for name, value in asdict(provenance).items():
        frame.attrs[name] = value
    stream = io.BytesIO()
    frame.to_parquet(stream, engine="pyarrow", index=False)
    return stream.getvalue()


def _frame(records: Iterable[Mapping[str, Any]], types: Mapping[str, str]) -> pd.DataFrame:
    return pd.DataFrame(list(records), columns=list(types)).astype(dict(types))


def _place(table: SpeedupTable, row: Row) -> dict[str, Any]:
    whole = {**asdict(table.group), **asdict(row.shape), "gpus": row.shape.gpus}
    return {**whole, "source": row.origin.name if row.origin else ""}


def _point(row: Row) -> dict[str, Any]:
    numbers = {name: getattr(row, name) for name in (*_NUMBERS, "ok", "asked")}
    window = row.window.counted if row.window else ""
    metrics = {name: getattr(row.metrics, name, None) for name in _METRICS}
    return {**numbers, **metrics, "flags": " ".join(row.flags), "window": window}


def _repeat(run: Run) -> dict[str, Any]:
    names = ("repeat", "attempt", "throughput", "valid", "state", "log")
    return {
        **{name: getattr(run, name) for name in names},
        "reasons": "; ".join(map(str, run.reasons)),
        "flags": " ".join(run.flags),
        "nodelist": " ".join(run.nodes),
    }


def _records(tables: Iterable[SpeedupTable]) -> Iterator[dict[str, Any]]:
    for table in tables:
        for row in table.rows:
            place = _place(table, row)
            for repeat, steps in row.steps:
                for at, seconds in zip(steps.iterations, steps.seconds, strict=True):
                    inside = steps.after < at <= steps.until
                    own = {"iteration": at, "seconds": seconds, "measured": inside}
                    yield {**place, "repeat": repeat, **own}
