"""The maximum cost of a submission: nodes, and GPUs or ranks on CPUs, times its jobs' limits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hpcbert.errors import UsageError
from hpcbert.model import Array, Point
from hpcbert.timelimit import TimeLimit

_HOUR = 3600.0
_UNITS = {"gpu": "GPU", "cpu": "rank", "auto": "device"}


@dataclass(frozen=True)
class Cost:
    """The cost of a point's runs.

    Attributes:
        repeats: Number of runs.
        jobs: Number of jobs that run them, each with the limit.
        limit: Time limit of one job.
        preflight: Whether it is the job before all points, and not a point.
    """

    point: Point
    repeats: int
    jobs: int
    limit: TimeLimit
    preflight: bool = False

    @property
    def unit(self) -> str:
        """The counted device: `GPU`, `rank` on a CPU, `device` if the run decides."""
        return _UNITS[self.point.device]

    @property
    def hours(self) -> float | None:
        """Maximum hours of all jobs together; None without a limit."""
        seconds = self.limit.seconds
        return None if seconds is None else self.jobs * seconds / _HOUR

    def on_nodes(self, hours: float | None) -> float | None:
        """Return the node-hours for hours of a job; None for None."""
        return None if hours is None else hours * self.point.shape.nodes

    def on_devices(self, hours: float | None) -> float | None:
        """Return the GPU- or rank-hours for hours of a job; None for None."""
        return None if hours is None else hours * self.point.shape.gpus


def array_costs(arrays: Iterable[Array]) -> tuple[Cost, ...]:
    """Return the cost of each point of a campaign, in the order of the points."""
    costs: dict[Point, Cost] = {}
    for array in arrays:
        limit = TimeLimit.parse_reported(array.request.time_limit)
        cost = costs.get(array.point, Cost(array.point, 0, 0, limit, array.preflight))
        repeats = len(array.repeats)
        jobs = cost.jobs + (1 if array.together else repeats)
        costs[array.point] = replace(cost, repeats=cost.repeats + repeats, jobs=jobs)
    return tuple(costs.values())


def sum_hours(hours: Iterable[float | None]) -> float | None:
    """Return a sum; None if a part of it is unknown."""
    values = list(hours)
    return None if None in values else sum((value for value in values if value is not None), 0.0)


def hours_unit(costs: Iterable[Cost]) -> str:
    """Return the unit of the points' hours: `GPU-hours`, `rank-hours`, or both words."""
    units = sorted({f"{cost.unit}-" for cost in costs})
    return f"{' and '.join(units)}hours"


def format_hours(hours: float | None) -> str:
    """Return hours for printing: `0.0833`, `12.5`, `1,234.5`; a dash for none."""
    if hours is None:
        return "-"
    return f"{hours:.3g}" if hours < 100 else f"{hours:,.1f}".removesuffix(".0")  # noqa: PLR2004


def refuse_expensive(costs: Sequence[Cost], max_gpu_hours: float, *, tries: int = 1) -> None:
    """Refuse a submission that may cost more than the user allows.

    A rank on a CPU counts as a GPU does.

    Args:
        max_gpu_hours: GPU-hours.
        tries: How often each repeat may run.

    Raises:
        UsageError: It may; the message has the sum.
    """
    hours = sum_hours(cost.on_devices(cost.hours) for cost in costs)
    unit, flag = hours_unit(costs), f"--max-gpu-hours {max_gpu_hours:g}"
    if hours is None:
        message = f"The {unit} of this submission have no upper limit: it has no time limit."
        raise UsageError(message, where=flag, hint="Set the limit of one repeat with --time.")
    if hours * tries <= max_gpu_hours:
        return
    parts = [
        f"{cost.point.key} {cost.jobs} x {cost.point.shape.gpus} x {cost.limit}"
        f" = {format_hours(cost.on_devices(cost.hours))}"
        for cost in costs
    ]
    text = "; ".join(parts) + (f", each up to {tries} times" if tries > 1 else "")
    total = format_hours(hours * tries)
    raise UsageError(
        f"This submission may take up to {total} {unit}, more than {max_gpu_hours:g}: {text}.",
        where=flag,
        hint="Request fewer points or repeats, or a shorter limit with --time; or allow "
        f"--max-gpu-hours {total.replace(',', '')}.",
    )
