"""Tables of speedups as data frames."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any

import pandas as pd

from hpcbert.model import Metrics, Provenance, Row, Run, SpeedupTable

# Columns with their types. Text is pandas' own text type, and never missing.
_TEXT, _INTEGER, _NUMBER, _BOOL = "string", "int64", "float64", "bool"
_PLACE_COLUMNS = {
    "framework": _TEXT,
    "model": _TEXT,
    "precision": _TEXT,
    "batch_size_per_device": _INTEGER,
    "variant": _TEXT,
    "rule": _TEXT,
    "device": _TEXT,
    "nodes": _INTEGER,
    "gpus_per_node": _INTEGER,
    "gpus": _INTEGER,
}
_NUMBERS = ("median", "mean", "min", "max", "cv", "speedup", "efficiency")
_ROW_COLUMNS = {
    **_PLACE_COLUMNS,
    **dict.fromkeys(_NUMBERS, _NUMBER),
    "ok": _INTEGER,
    "asked": _INTEGER,
}
_METRICS = tuple(field.name for field in fields(Metrics) if field.name != "unknown")
_ROW_COLUMNS |= dict.fromkeys(_METRICS, _NUMBER)
_ROW_COLUMNS |= {"flags": _TEXT, "window": _TEXT, "source": _TEXT}
_RUN_COLUMNS = {
    **_PLACE_COLUMNS,
    "repeat": _INTEGER,
    "attempt": _INTEGER,
    "throughput": _NUMBER,
    "valid": _BOOL,
}
_RUN_COLUMNS |= {"state": _TEXT, "reasons": _TEXT, "flags": _TEXT, "nodelist": _TEXT, "log": _TEXT}
_RUN_COLUMNS |= {"source": _TEXT}
_STEP_COLUMNS = {
    **_PLACE_COLUMNS,
    "repeat": _INTEGER,
    "iteration": _INTEGER,
    "seconds": _NUMBER,
    "measured": _BOOL,
}
_STEP_COLUMNS |= {"source": _TEXT}


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
    return _make_frame(
        ({**_place_values(*point), **_point_values(point[1])} for point in points), _ROW_COLUMNS
    )


def runs_frame(tables: Iterable[SpeedupTable]) -> pd.DataFrame:
    """Return one row per repeat, invalid ones with their reasons.

    The first columns and source are those of `rows_frame`. repeat: from 1. attempt: from 0.
    throughput: samples/s over all devices, NaN if there is no trusted number. valid: whether it is
    valid. state: the scheduler's word. reasons, flags, nodelist (separated by `; ` or blanks),
    log: its path.
    """
    runs = ((table, row, run) for table in tables for row in table.rows for run in row.runs)
    return _make_frame(
        ({**_place_values(table, row), **_run_values(run)} for table, row, run in runs),
        _RUN_COLUMNS,
    )


def steps_frame(tables: Iterable[SpeedupTable]) -> pd.DataFrame:
    """Return one row per record of a log, for valid runs.

    The first columns and source are those of `rows_frame`. repeat: the run. iteration: where the
    record ends, in iterations completed. seconds: of one iteration, averaged over those that the
    record covers. measured: whether it is in the window that the number comes from.
    """
    return _make_frame(_step_records(tables), _STEP_COLUMNS)


def to_parquet(tables: Iterable[SpeedupTable], provenance: Provenance) -> bytes:
    """Return `rows_frame` as a Parquet file, with version, time and command as attributes."""
    frame = rows_frame(tables)
    for name, value in asdict(provenance).items():
        frame.attrs[name] = value
    stream = io.BytesIO()
    frame.to_parquet(stream, engine="pyarrow", index=False)
    return stream.getvalue()


def _make_frame(records: Iterable[Mapping[str, Any]], types: Mapping[str, str]) -> pd.DataFrame:
    return pd.DataFrame(list(records), columns=list(types)).astype(dict(types))


def _place_values(table: SpeedupTable, row: Row) -> dict[str, Any]:
    values = {**asdict(table.group), **asdict(row.shape), "gpus": row.shape.gpus}
    return {**values, "source": row.origin.name if row.origin else ""}


def _point_values(row: Row) -> dict[str, Any]:
    numbers = {name: getattr(row, name) for name in (*_NUMBERS, "ok", "asked")}
    window = row.window.counted if row.window else ""
    metrics = {name: getattr(row.metrics, name, None) for name in _METRICS}
    return {**numbers, **metrics, "flags": " ".join(row.flags), "window": window}


def _run_values(run: Run) -> dict[str, Any]:
    names = ("repeat", "attempt", "throughput", "valid", "state", "log")
    return {
        **{name: getattr(run, name) for name in names},
        "reasons": "; ".join(map(str, run.reasons)),
        "flags": " ".join(run.flags),
        "nodelist": " ".join(run.nodes),
    }


def _step_records(tables: Iterable[SpeedupTable]) -> Iterator[dict[str, Any]]:
    for table in tables:
        for row in table.rows:
            place = _place_values(table, row)
            for repeat, steps in row.steps:
                for iteration, seconds in zip(steps.iterations, steps.seconds, strict=True):
                    is_measured = steps.after < iteration <= steps.until
                    step_values = {
                        "iteration": iteration,
                        "seconds": seconds,
                        "measured": is_measured,
                    }
                    yield {**place, "repeat": repeat, **step_values}
