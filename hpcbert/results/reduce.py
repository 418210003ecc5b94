"""From runs to a speedup table: the gate, the median, the spread, the speedup. Pure.

The protocol is DLPerf's (Oneflow-Inc/DLPerf@c89430b, README.md): the median run stands for the
point, and speedup is the ratio to the median of one GPU on one node of the same framework,
precision and batch size per device. Nothing is rounded here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from statistics import median

from hpcbert.errors import UsageError
from hpcbert.model import (
    Group,
    Measured,
    Point,
    PointRecord,
    Reason,
    RepeatCount,
    Row,
    Shape,
    SpeedupTable,
    valid_throughputs,
)
from hpcbert.results.interval import is_precise
from hpcbert.results.metrics import compute_metrics, mfu_flags
from hpcbert.slurm.states import RepeatState

BASELINE = Shape(1, 1)
FOREIGN = "-"
_COMPLETED = "COMPLETED"
# A run is marked if its distance from the median is more than 3.5 times the median absolute
# deviation (scaled to a standard deviation), and more than a share of the median. Faults make runs
# slow; the limit for fast runs is higher, because DLPerf's own tables contain runs up to 4.46 %
# faster than their median (DeepSpeed, 2n8g).
_OUTLIER_DEVIATIONS = 3.5
_SLOW_SHARE, _FAST_SHARE = 0.03, 0.045
_DEVIATION_SCALE = 1.4826
_OUTLIER_RUNS = 3
# 67 of the 69 sets of runs that DLPerf published have a cv below 2.2 %.
NOISY = 0.03


def find_invalid_reasons(
    log_reasons: tuple[Reason, ...], state: RepeatState | None = None, *, rehearsed: bool = False
) -> tuple[Reason, ...]:
    """Return the reasons against a repeat; empty if it is valid.

    It is valid only if the scheduler says COMPLETED, the measured step ended with exit status 0,
    and the log is complete, has every iteration of the window, has finite losses and matches the
    request.

    Args:
        log_reasons: Those from reading its log, which is not judged before the repeat's end.
        state: None for a log that hpcbert did not submit.
        rehearsed: Whether the repeat replayed a sample log.
    """
    if rehearsed or any(reason.code == "rehearsal" for reason in log_reasons):
        return (Reason("rehearsal", "the sample log was replayed; nothing was trained"),)
    if state is None:
        return log_reasons
    reasons = []
    completed, is_over = state.word == _COMPLETED, state.kind.over
    explanation = f": {state.detail}" if state.detail else ""
    if completed and state.suspended:
        text = f"it was suspended for {state.suspended:g} s while its time continued"
        reasons.append(Reason("state", text))
    elif not completed and state.kind.alive:
        reasons.append(Reason("unfinished", f"it is {state.word}{explanation}"))
    elif not completed:
        text = f"it is {state.word}, not {_COMPLETED}{explanation}"
        reasons.append(Reason("state", text))
    if state.step_exit:
        text = f"the measured step ended with status {state.step_exit}"
        reasons.append(Reason("exit", text))
    elif state.step_exit is None and completed:
        text = "the exit status of the measured step is not recorded"
        reasons.append(Reason("exit", text if is_over else state.detail))
    if not reasons:
        return log_reasons
    if not is_over:
        return tuple(reasons)
    return (*reasons, *(reason for reason in log_reasons if reason.code != "no-log"))


class Curves:
    """Points by curve: those of one curve differ only in shape and accumulation."""

    def __init__(self, points: Iterable[Point]) -> None:
        curves: dict[tuple[object, ...], set[Point]] = {}
        for point in points:
            curves.setdefault(_curve_key(point), set()).add(point)
        self._notes = {key: _accumulation_note(curve) for key, curve in curves.items()}

    def variant(self, point: Point) -> str:
        """Return the variant that distinguishes a point's table from others."""
        note = self._notes[_curve_key(point)]
        if not note:
            return point.variant
        variant = replace(point, accumulation=1).variant
        return f"{variant},{note}" if variant else note


def _curve_key(point: Point) -> tuple[object, ...]:
    names = (field.name for field in fields(point) if field.name not in {"accumulation", "shape"})
    return tuple([getattr(point, name) for name in names])


def _accumulation_note(curve: set[Point]) -> str:
    """Return the rule behind a curve of points with several accumulations; may be empty."""
    shapes = {point.shape for point in curve}
    accumulations = {point.accumulation for point in curve}
    if len(accumulations) < 2 or len(shapes) < len(curve):  # noqa: PLR2004 - they don't differ
        return ""
    batches = {point.global_batch_size for point in curve}
    return f"gbs{batches.pop()}" if len(batches) == 1 else "acc by shape"


def make_group(point: Point, curves: Curves, rule: str, *, stated: str | None = None) -> Group:
    """Return the table that a point belongs to.

    Points with different accumulation are in different tables, unless accumulation follows from a
    global batch size and so differs from shape to shape: then these shapes are one curve, like
    DLPerf's DeepSpeed rows.

    Args:
        stated: The kind of device that logs state, for a point that leaves it to the program.
    """
    device = stated if point.device == "auto" else point.device
    return Group(
        framework=point.framework,
        model=point.model,
        precision=point.precision,
        batch_size_per_device=point.batch_size_per_device,
        rule=rule,
        variant=curves.variant(point),
        device="cpu" if device == "cpu" else "gpu",
    )


def tabulate(points: Iterable[Measured], *, require_all: bool = False) -> tuple[SpeedupTable, ...]:
    """Reduce points to one table per group, with rows in the order of GPUs and nodes.

    Args:
        points: In any order; groups keep the order of their first point.
        require_all: Whether a point with fewer valid runs than requested gets no number.

    Raises:
        UsageError: A point appears twice.
    """
    groups: dict[Group, dict[Shape, Measured]] = {}
    for point in points:
        shapes = groups.setdefault(point.group, {})
        if point.shape in shapes:
            raise UsageError(f"{point.group.framework} {point.shape} is measured twice.")
        shapes[point.shape] = point
    return tuple(_make_table(group, shapes, require_all) for group, shapes in groups.items())


def _make_table(group: Group, shapes: dict[Shape, Measured], require_all: bool) -> SpeedupTable:
    numbers = {}
    for shape, point in shapes.items():
        speeds = valid_throughputs(point.runs)
        is_short = require_all and len(speeds) < _required_runs(point, speeds)
        numbers[shape] = [] if is_short else speeds
    base = median(numbers[BASELINE]) if numbers.get(BASELINE) else None
    rows = []
    for shape, point in sorted(shapes.items(), key=lambda item: (item[0].gpus, item[0].nodes)):
        # It is not the experiment that its table is measured by.
        is_foreign = any(
            difference.decisive and difference.scope == "points" for difference in point.differences
        )
        rows.append(_make_row(point, numbers[shape], None if is_foreign else base))
    return SpeedupTable(group, BASELINE if base else None, tuple(rows))


def _required_runs(point: Measured, numbers: list[float]) -> int:
    """Return the number of runs needed: the existing ones if they are precise enough."""
    precision = point.adaptive.precision_of_median if point.adaptive else None
    return len(numbers) if is_precise(numbers, precision) else point.asked


def _make_row(point: Measured, numbers: list[float], base: float | None) -> Row:
    ok = len(valid_throughputs(point.runs))
    required = _required_runs(point, numbers)
    middle_speed = median(numbers) if numbers else None
    speedup = middle_speed / base if middle_speed and base else None
    gpu_ratio = point.shape.gpus / BASELINE.gpus
    mean = math.fsum(numbers) / len(numbers) if numbers else None
    cv = None
    if mean is not None and len(numbers) > 1:
        squares = math.fsum((number - mean) ** 2 for number in numbers)
        cv = math.sqrt(squares / (len(numbers) - 1)) / mean
    low, high = expected_range(numbers)
    runs = tuple(
        replace(run, flags=("outlier", *run.flags))
        if run.valid and run.throughput is not None and not low <= run.throughput <= high
        else run
        for run in point.runs
    )
    is_published = point.origin is not None and point.origin.kind == "record"
    conditions = {
        "superlinear": speedup is not None and speedup > gpu_ratio,
        "noisy": cv is not None and cv > NOISY,
        # A published median without its runs may be one of many.
        "single-run": ok == 1 and not is_published,
        "incomplete": ok < required,
        "imprecise": point.adaptive is not None
        and ok >= required
        and not is_precise(numbers, point.adaptive.precision_of_median),
        "mixed-nodes": len({frozenset(run.nodes) for run in runs if run.valid and run.nodes}) > 1,
        "mixed-environment": bool(point.differences),
        "no-baseline": base is None,
    }
    metrics = compute_metrics(point, middle_speed)
    run_flags = [flag for run in runs if run.valid for flag in run.flags]
    row_flags = (name for name, holds in conditions.items() if holds)
    flags = [*row_flags, *point.flags, *run_flags, *mfu_flags(metrics)]
    context = {entry.name: getattr(point, entry.name) for entry in fields(PointRecord)}
    context |= {"flags": tuple(dict.fromkeys(flags)), "runs": runs}
    return Row(
        shape=point.shape,
        median=middle_speed,
        mean=mean,
        min=min(numbers, default=None),
        max=max(numbers, default=None),
        cv=cv,
        speedup=speedup,
        efficiency=speedup / gpu_ratio if speedup else None,
        repeats=RepeatCount(ok, required),
        metrics=metrics,
        **context,
    )


def expected_range(numbers: Sequence[float]) -> tuple[float, float]:
    """Return the range outside which a run is an outlier; unlimited for fewer than three runs."""
    if len(numbers) < _OUTLIER_RUNS:
        return -math.inf, math.inf
    middle = median(numbers)
    deviation = median([abs(number - middle) for number in numbers])
    spread = _OUTLIER_DEVIATIONS * _DEVIATION_SCALE * deviation
    return middle - max(spread, _SLOW_SHARE * middle), middle + max(spread, _FAST_SHARE * middle)
