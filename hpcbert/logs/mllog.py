"""MLPerf's result files: the clock, the samples and the settings of one run to the target.

Any program's log has the same records, mlcommons/logging 4.1.0, mlperf_logging/mllog/mllog.py:
  :::MLLOG {"namespace": "", "time_ms": 1621399999788, ..., "key": "run_start", "value": null, ...}
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from hpcbert.logs.lines import NotALogError, read_pieces

_MARK = b":::MLLOG "
_DECODER = json.JSONDecoder()
# Some programs count evaluations or epochs in `epoch_num`. No submission reached the target with
# fewer samples than half a million; no program evaluated more often than a few hundred times.
_LEAST_SAMPLES = 100_000


class BenchmarkRun(NamedTuple):
    """One result file.

    Attributes:
        seconds: From run_start to run_stop; None if the run did not reach the target.
        samples: Trained at the last evaluation; None if the log has no such number.
        tracked_rate: Samples per second of the whole run, as the program states them.
        global_batch_size: Samples of an optimizer step.
        accumulation: Micro-batches of an optimizer step.
    """

    seconds: float | None = None
    samples: float | None = None
    tracked_rate: float | None = None
    global_batch_size: int | None = None
    accumulation: int | None = None

    @property
    def clock_rate(self) -> float | None:
        """Samples per second from run_start to run_stop, evaluations included."""
        return self.samples / self.seconds if self.samples and self.seconds else None


def read_benchmark_run(path: Path) -> BenchmarkRun:
    """Read one result file; one that is not readable text, or has two runs, has no result."""
    stop, status, run, is_training_over = 0, "", BenchmarkRun(), False
    try:
        records = list(_read_records(path))
    except NotALogError:
        return run
    starts = [record["time_ms"] for record in records if record.get("key") == "run_start"]
    if len(starts) != 1:
        return run
    (start,) = starts
    for record in records:
        key, value = record.get("key"), record.get("value")
        if key == "run_stop":
            stop, status = record["time_ms"], _read_status(record)
        elif key in ("eval_accuracy", "block_stop") and not stop:
            is_training_over = True
            samples = _read_number(record.get("metadata"), "epoch_num")
            run = run._replace(samples=samples) if samples > _LEAST_SAMPLES else run
        elif key == "train_samples" and is_training_over:
            # Before the first evaluation it is the number of samples that the run may take at most.
            samples = _read_number(record, "value")
            run = run._replace(samples=samples) if samples > _LEAST_SAMPLES else run
        elif key == "tracked_stats":
            run = run._replace(tracked_rate=_read_number(value, "throughput") or None)
        elif key == "global_batch_size":
            run = run._replace(global_batch_size=int(_read_number(record, "value")) or None)
        elif key == "gradient_accumulation_steps":
            run = run._replace(accumulation=int(_read_number(record, "value")) or None)
    is_success = status == "success" and 0 < start < stop
    return run._replace(seconds=(stop - start) / 1000 if is_success else None)


def _read_status(record: dict[str, Any]) -> str:
    metadata = record.get("metadata")
    return str(metadata.get("status", "")) if isinstance(metadata, dict) else ""


def _read_number(record: Any, name: str) -> float:
    """Return a number of a record, 0 if it has none: some programs write numbers as text."""
    value = record.get(name) if isinstance(record, dict) else None
    try:
        number = float(value or 0)
    except (TypeError, ValueError):
        return 0.0
    return number if math.isfinite(number) else 0.0


def _read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records with a time; one that other output interrupts is left out."""
    with closing(read_pieces(path)) as pieces:
        for piece in pieces:
            for text in piece.split(_MARK)[1:]:
                line = text.split(b"\n", 1)[0].decode(errors="replace")
                try:
                    record, _ = _DECODER.raw_decode(line)
                except ValueError:
                    continue
                if isinstance(record, dict) and isinstance(record.get("time_ms"), int):
                    yield record
