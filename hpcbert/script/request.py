"""The request of an array: from sbatch's options, and back for sbatch and for a comparison."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil

from hpcbert.config.slurm_arguments import argument_values
from hpcbert.model import Array, JobRequest

_DIRECTIVE = "#SBATCH "


def read_request(words: Sequence[str]) -> JobRequest:
    """Parse the request from options of sbatch; the last value of an option counts."""
    options = argument_values(words)
    nodes = _parse_number(options.get("nodes", ""), 1)
    tasks = _parse_number(options.get("ntasks-per-node", ""), 0)
    return JobRequest(
        job_name=options.get("job-name", ""),
        comment=options.get("comment", ""),
        array=options.get("array", ""),
        nodes=nodes,
        tasks_per_node=tasks,
        cpus_per_task=_parse_number(options.get("cpus-per-task", ""), 1),
        partition=options.get("partition", ""),
        account=options.get("account", ""),
        qos=options.get("qos", ""),
        clusters=options.get("clusters", ""),
        gres=options.get("gres", "") or _read_gpus(options, nodes, tasks),
        memory=options.get("mem", ""),
        time_limit=options.get("time", ""),
        exclusive=options.get("exclusive") == "",  # `--exclusive=user` shares nodes
        nodelist=options.get("nodelist", ""),
        exclude=options.get("exclude", ""),
        requeue="requeue" in options,
        output=options.get("output", ""),
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
            number = ceil(int(count) * factor / divisor)
            return ":".join(filter(None, ("gpu", kind, str(number))))
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
