"""The request of an array: from sbatch's options, back for sbatch, once more, and its cost.

A retry of a repeat that reached its time limit gets a longer one, or is refused.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import ceil
from pathlib import Path
from typing import Any

from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.config.schedulers import Traits
from hpcbert.config.slurm_arguments import argument_values
from hpcbert.errors import UsageError
from hpcbert.model import Array, JobRequest, Point
from hpcbert.timelimit import TimeLimit

_DIRECTIVE = "#SBATCH "
# The texts of a request, and the options of sbatch that have them.
_OTHER_NAMES = {"job_name": "job-name", "memory": "mem", "time_limit": "time"}
_TEXTS = {
    field.name: _OTHER_NAMES.get(field.name, field.name)
    for field in fields(JobRequest)
    if field.type == "str"
}
_HOUR = 3600.0
_UNITS = {"gpu": "GPU", "cpu": "rank", "auto": "device"}
_ATTEMPT = re.compile(r"\bfirst_attempt=\d+\b")
_NAME = re.compile(r"\barray_name=\S+")
_TOGETHER = re.compile(r"\brepeats=\([\d ]+\)")


def read_request(words: Sequence[str]) -> JobRequest:
    """Parse the request from options of sbatch; the last value of an option counts."""
    options = argument_values(words)
    nodes = _parse_number(options.get("nodes", ""), 1)
    tasks = _parse_number(options.get("ntasks-per-node", ""), 0)
    texts: dict[str, Any] = {name: options.get(word, "") for name, word in _TEXTS.items()}
    texts["gres"] = texts["gres"] or _read_gpus(options, nodes, tasks)
    return JobRequest(
        **texts,
        nodes=nodes,
        tasks_per_node=tasks,
        cpus_per_task=_parse_number(options.get("cpus-per-task", ""), 1),
        exclusive=options.get("exclusive") == "",  # `--exclusive=user` shares nodes
        requeue="requeue" in options,
    )


def read_script_request(script: str) -> JobRequest:
    """Parse the request of the `#SBATCH` lines of a rendered script."""
    lines = (line for line in script.splitlines() if line.startswith(_DIRECTIVE))
    return read_request([word for line in lines for word in shlex.split(line)[1:]])


def _read_gpus(options: Mapping[str, str], nodes: int, tasks: int) -> str:
    """Return the GPUs of each node, as `--gres` takes them; empty if they are of several types."""
    shares = {"gpus-per-node": (1, 1), "gpus": (1, nodes), "gpus-per-task": (tasks, 1)}
    for name, (factor, divisor) in shares.items():
        kind, _, count = options.get(name, "").rpartition(":")
        if count.isdecimal() and "," not in kind:
            return f"gpu:{kind}{':' if kind else ''}{ceil(int(count) * factor / divisor)}"
    return ""


def _parse_number(text: str, default: int) -> int:
    return int(text) if text.isdecimal() else default


def without_names(request: JobRequest) -> JobRequest:
    """Return a request without the job's names: equal for jobs that need the same nodes."""
    return replace(request, job_name="", comment="", array="", output="")


def format_indices(numbers: Sequence[int]) -> str:
    """Return array indices as sbatch takes them: `1-5` or `2,4,7`."""
    first_index, last_index = min(numbers), max(numbers)
    if len(numbers) > 1 and sorted(numbers) == list(range(first_index, last_index + 1)):
        return f"{first_index}-{last_index}"
    return ",".join(map(str, numbers))


def part_options(array: Array) -> list[str]:
    """Return sbatch's options for an array that is a part of its script's repeats."""
    request, indices = array.request, format_indices(array.indices)
    if array.together or request.indices == indices:
        return []
    options = [f"--array={indices}%{request.throttle or 1}", f"--job-name={array.name}"]
    return [*options, f"--comment={array.name}"] if is_marked(request) else options


def is_marked(request: JobRequest) -> bool:
    """Return whether the comment is hpcbert's mark, the job's name, and not the user's own."""
    return request.comment == request.job_name


def controller_fields(array: Array) -> dict[str, str]:
    """Return the request of an array by the controller's names of its fields."""
    request = array.request
    tasks = request.nodes * request.tasks_per_node
    return {
        "JobName": array.name,
        "ArrayTaskThrottle": request.throttle,
        "NumNodes": str(request.nodes),
        "NumTasks": str(tasks) if tasks else "",
        "TimeLimit": request.time_limit,
        "Partition": request.partition,
        "Account": request.account,
        "QOS": request.qos,
        "Requeue": str(int(request.requeue)),
        "StdOut": request.output.replace("%%", "%"),
    }


# --- Retries: the script of a point once more, for some repeats ----------------------------------


def is_pointless(array: Array, state: str, time_limit: str) -> bool:
    """Return whether a repeat reached its time limit and a retry would have no longer one.

    Args:
        time_limit: The time limit from now on; empty for the present one.
    """
    if state != "TIMEOUT":
        return False
    previous_limit = TimeLimit.parse(array.request.time_limit)
    is_longer = bool(time_limit) and TimeLimit.parse(time_limit).exceeds(previous_limit)
    return previous_limit.seconds is not None and not is_longer


def refuse_pointless(
    tracked_campaign: TrackedCampaign,
    ended_repeats: Iterable[tuple[Array, int, str]],
    time_limit: str,
) -> None:
    """Refuse to resubmit a repeat that reached its time limit without a longer one.

    Raises:
        UsageError: A repeat did; the hint is the command that gives it a longer one.
    """
    limits = {
        f"{array.point.key} repeat {number}": TimeLimit.parse(array.request.time_limit).bound
        for array, number, state in ended_repeats
        if is_pointless(array, state, time_limit)
    }
    if limits:
        limit = TimeLimit(max(limits.values()))
        new_limit = TimeLimit(min(2 * limit.bound, TimeLimit.MOST))
        directory = shlex.quote(str(tracked_campaign.directory))
        raise UsageError(
            f"{', '.join(limits)} reached the time limit of {limit}, and would do so again.",
            where=tracked_campaign.campaign.id,
            hint=f"Set a longer one: hpcbert retry {directory} --time {new_limit}",
        )


def is_written_to(request: JobRequest, directory: Path) -> bool:
    """Return whether a job writes to this campaign directory; False if that is a copy."""
    output = Path(request.output.replace("%%", "%"))
    with contextlib.suppress(OSError, ValueError):
        return directory.samefile(output.parent.parent)
    return False


def retry_request(
    request: JobRequest,
    *,
    name: str,
    indices: Sequence[int],
    exclude: Sequence[str],
    time_limit: str,
) -> JobRequest:
    """Return the request of a retry.

    Args:
        exclude: Nodes to exclude, in addition to those of the first request.
    """
    nodes = [*filter(None, [request.exclude]), *exclude]
    array = f"{','.join(map(str, indices))}%{request.throttle or 1}"
    return replace(
        request,
        job_name=name,
        comment=name if is_marked(request) else request.comment,
        array=array if request.array else "",
        exclude=",".join(nodes),
        time_limit=time_limit,
    )


def rewrite_script(text: str, first_request: JobRequest, array: Array, *, scheduler: Traits) -> str:
    """Return a script that runs a retry's repeats, and is the same otherwise, byte for byte.

    What differs in the request follows the script's own lines: the scheduler takes the last.

    Raises:
        UsageError: It is not a script of this version's.
    """
    request = array.request
    changes = [
        f"--{word}={getattr(request, name)}"
        for name, word in _TEXTS.items()
        if getattr(request, name) != getattr(first_request, name)
    ]
    lines = "".join(f"{line}\n" for line in scheduler.format_directives(changes))
    match = re.search(rf"(?:^{re.escape(scheduler.prefix)} .*\n)+", text, re.MULTILINE)
    if (lines and match is None) or not _ATTEMPT.search(text):
        message = f"The campaign's script has no {scheduler.prefix} lines, or no first_attempt=."
        hint = "Another version of hpcbert made it: submit the point again."
        raise UsageError(message, hint=hint)
    if match:
        text = text[: match.end()] + lines + text[match.end() :]
    text = _ATTEMPT.sub(f"first_attempt={array.first_attempt}", text, count=1)
    text = _NAME.sub(f"array_name={shlex.quote(request.job_name)}", text, count=1)
    if request.array:
        return text
    numbers = " ".join(map(str, array.indices))
    return _TOGETHER.sub(f"repeats=({numbers})", text, count=1)


# --- The maximum cost: nodes, and GPUs or ranks on CPUs, times the limits of jobs -----------------


@dataclass(frozen=True)
class Cost:
    """The cost of a point's runs.

    Attributes:
        jobs: Number of jobs that run them, each with the limit.
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


def refuse_expensive(costs: Sequence[Cost], max_gpu_hours: float | None, *, tries: int = 1) -> None:
    """Refuse a submission that may cost more than the user allows.

    A rank on a CPU counts as a GPU does.

    Args:
        tries: How often each repeat may run.

    Raises:
        UsageError: It may; the message has the sum.
    """
    if max_gpu_hours is None:
        return
    hours = sum_hours(cost.on_devices(cost.hours) for cost in costs)
    unit, flag = hours_unit(costs), f"--max-gpu-hours {max_gpu_hours:g}"
    if hours is None:
        message = f"The {unit} of this submission have no upper limit: it has no time limit."
        raise UsageError(message, where=flag, hint="Set the limit of one repeat with --time.")
    if hours * tries <= max_gpu_hours:
        return
    total = format_hours(hours * tries)
    repeated = f", each repeat up to {tries} times" if tries > 1 else ""
    raise UsageError(
        f"This submission may take up to {total} {unit}, more than {max_gpu_hours:g}{repeated}.",
        where=flag,
        hint="hpcbert plan lists the hours of each point. Request fewer points or repeats, or a "
        f"shorter limit with --time; or allow --max-gpu-hours {total.replace(',', '')}.",
    )
