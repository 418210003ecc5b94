"""Tables of speedups as data frames."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import pandas as pd

from hpcbert.errors import UsageError
from hpcbert.model import Metrics, SpeedupTable
from hpcbert.results.document import NUMBERS, PLACE, place_data, point_values, run_values

_METRICS = tuple(field.name for field in fields(Metrics) if field.name != "unknown")
_ROWS = (*PLACE, *NUMBERS, *_METRICS, "flags", "window", "source", "unit")
_RUNS = (
    *PLACE,
    *("repeat", "attempt", "throughput", "valid", "state"),
    *("reasons", "flags", "nodelist", "log", "source", "unit"),
)
_STEPS = (*PLACE, "repeat", "iteration", "seconds", "measured", "source")
# The types of columns that are not text, which is pandas' own and never missing.
_TYPES = {
    **dict.fromkeys((*NUMBERS, *_METRICS, "throughput", "seconds"), "float64"),
    **dict.fromkeys(["batch_size_per_device", "nodes", "gpus_per_node", "gpus"], "int64"),
    **dict.fromkeys(["ok", "asked", "repeat", "attempt", "iteration"], "int64"),
    **dict.fromkeys(("valid", "measured"), "bool"),
}


def rows_frame(tables: Iterable[SpeedupTable]) -> pd.DataFrame:
    """Return one row per point; numbers unrounded, NaN if missing.

    framework, model, precision, variant, rule, device, batch_size_per_device (samples):
    identify its table. nodes, gpus_per_node, gpus: its shape. median, mean, min, max (samples/s
    over all devices), cv, speedup, efficiency (ratios): over the valid runs. ok, asked: numbers
    of valid and requested runs. samples_per_second_per_gpu, tokens_per_second,
    real_tokens_per_second, sequences_per_second, step_seconds, step_seconds_p95,
    model_flops_per_sample, peak_flops_per_second (of one GPU), mfu, mfu_padded (ratios),
    gpu_memory_mib, watts (all GPUs), samples_per_joule: as `Metrics`. flags: separated by
    blanks. window: the measured part of each run. source: the campaign or the logs. unit: of
    median, mean, min and max.
    """
    values = (point_values(table, row) for table in tables for row in table.rows)
    return _make_frame(values, _ROWS)


def runs_frame(tables: Iterable[SpeedupTable]) -> pd.DataFrame:
    """Return one row per repeat, invalid ones with their reasons.

    The first columns and source are those of `rows_frame`. repeat: from 1. attempt: from 0.
    throughput: samples/s over all devices, NaN if there is no trusted number. valid: whether it is
    valid. state: the scheduler's word, empty for logs that hpcbert did not submit. reasons, flags,
    nodelist (separated by `; ` or blanks), log: its path.
    """
    runs = ((table, row, run) for table in tables for row in table.rows for run in row.runs)
    return _make_frame((run_values(*place) for place in runs), _RUNS)


def steps_frame(tables: Iterable[SpeedupTable]) -> pd.DataFrame:
    """Return one row per record of a log, for valid runs.

    The first columns and source are those of `rows_frame`. repeat: the run. iteration: where the
    record ends, in iterations completed. seconds: of one iteration, averaged over those that the
    record covers. measured: whether it is in the window that the number comes from.
    """
    return _make_frame(_step_records(tables), _STEPS)


def to_parquet(frame: pd.DataFrame) -> bytes:
    """Return a frame as a Parquet file.

    Raises:
        UsageError: pyarrow is not installed, or too old for pandas.
    """
    if importlib.util.find_spec("pyarrow") is None:
        message = "Parquet needs pyarrow, which is not installed."
        raise UsageError(message, hint="pip install 'hpcbert[parquet]'; CSV and JSON need nothing.")
    return frame.to_parquet(engine="pyarrow", index=False)


def _make_frame(records: Iterable[Mapping[str, Any]], names: Sequence[str]) -> pd.DataFrame:
    types = {name: _TYPES.get(name, "string") for name in names}
    return pd.DataFrame(list(records), columns=list(names)).astype(types)


def _step_records(tables: Iterable[SpeedupTable]) -> Iterator[dict[str, Any]]:
    for table in tables:
        for row in table.rows:
            place = place_data(table, row)
            source = row.origin.name if row.origin else ""
            for repeat, steps in row.steps:
                for iteration, seconds in zip(steps.iterations, steps.seconds, strict=True):
                    yield {
                        **place,
                        "source": source,
                        "repeat": repeat,
                        "iteration": iteration,
                        "seconds": seconds,
                        "measured": steps.after < iteration <= steps.until,
                    }
