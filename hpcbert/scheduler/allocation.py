"""Campaigns inside an allocation that the user has already: `submit --here`.

The local queue runs the scripts of Slurm jobs, each as a step of the user's job on the first of the
point's nodes; from there the script starts its own steps, as it does in a job of its own.

`scontrol show job --details` has a line for each group of equal nodes, `Nodes=n[1-2] CPU_IDs=0-3
Mem=16000 GRES=gpu:4(IDX:0-3)` (SchedMD/slurm, src/api/job_info.c, 22.05 to 26.05).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.config.recipe import Recipe
from hpcbert.config.schedulers import ALLOCATION
from hpcbert.config.site import Site
from hpcbert.errors import SchedulerError, UsageError, format_count
from hpcbert.finding import Finding
from hpcbert.model import Array, Campaign, JobRequest
from hpcbert.scheduler.local.backend import Local, start_queue
from hpcbert.scheduler.slurm import TRAITS as SLURM_TRAITS
from hpcbert.script.resolve import SubmitOptions
from hpcbert.slurm import commands
from hpcbert.slurm.hostlist import expand, fold
from hpcbert.slurm.inventory import parse_resources

TRAITS = replace(
    SLURM_TRAITS,
    name=ALLOCATION,
    class_path="hpcbert.scheduler.allocation:InAllocation",
    accepts_more=False,
    records_end=True,
    in_allocation=True,
)
# Steps that hold nothing of their allocation have ids above any other (SLURM_MAX_NORMAL_STEP_ID in
# SchedMD/slurm, slurm/slurm.h.in): the shell of salloc is 4294967290.
_LAST_STEP = 0xFFFFFFF0
_FIELD = re.compile(r"(?:^|\s)(JobState|UserId|NodeList)=(\S*)")
_NODES = re.compile(r"^\s+Nodes=(\S+) CPU_IDs=(\S+) .*?\bGRES=(\S*)", re.MULTILINE)
_HINT = "Get an allocation, for example with salloc --nodes=2, and type the command there."


@dataclass(frozen=True)
class Allocation:
    """The allocation of a job that runs.

    Attributes:
        capacity: The number of its CPUs and GPUs on each of them, by name; empty if unknown.
    """

    job_id: str
    nodes: tuple[str, ...]
    capacity: Mapping[str, Mapping[str, int]]


def read_job_id(environ: Mapping[str, str]) -> str:
    """Return the job in whose allocation a shell is, from its environment.

    Raises:
        UsageError: It is in none, or in a step that keeps the allocation's CPUs from other steps.
    """
    job_id = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID", "")
    if not job_id.isdecimal():
        raise UsageError("This shell is not in an allocation: SLURM_JOB_ID names none.", hint=_HINT)
    if int(environ.get("SLURM_HET_SIZE") or 1) > 1:
        raise UsageError(f"Job {job_id} is heterogeneous: it has several allocations.", hint=_HINT)
    step = environ.get("SLURM_STEP_ID", "")
    if step.isdecimal() and int(step) < _LAST_STEP:
        raise UsageError(
            f"This shell is step {job_id}.{step}, and steps of hpcbert would wait for its CPUs.",
            hint="Start hpcbert in the shell of salloc or in a batch script. If the step shares "
            "its CPUs (srun --overlap), unset SLURM_STEP_ID.",
        )
    return job_id


def read_allocation(text: str, job_id: str, *, uid: int) -> Allocation:
    """Return the allocation of a job.

    Args:
        text: The output of `scontrol show job --details`; of an array, all its jobs.

    Raises:
        UsageError: It does not run, or belongs to another user.
    """
    start = re.compile(rf"JobId={job_id}\s")
    block = next(filter(start.match, text.split("\n\n")), "")
    fields = dict(_FIELD.findall(block))
    state, user = fields.get("JobState", "unknown"), fields.get("UserId", "unknown")
    if state != "RUNNING" or not user.endswith(f"({uid})"):
        raise UsageError(
            f"Job {job_id} of this shell is not a running job of yours: it is {state}, its user "
            f"{user}.",
            hint=_HINT,
        )
    capacity = {
        name: {"CPU": len(expand(f"[{cpus}]")), "GPU": _count_gpus(gres)}
        for names, cpus, gres in _NODES.findall(block)
        for name in expand(names)
    }
    return Allocation(job_id, expand(fields.get("NodeList", "")), capacity)


def _count_gpus(gres: str) -> int:
    return sum(entry.count for entry in parse_resources(gres) if entry.name == "gpu")


def refuse_larger(requests: Iterable[JobRequest], allocation: Allocation) -> None:
    """Refuse a request that needs more than an allocation has.

    Raises:
        UsageError: It needs more nodes, or more GPUs or CPUs per node.
    """
    hint = "Get a larger one (--nodes, --gpus-per-node, --ntasks-per-node), or leave the point out."
    for request in requests:
        if request.nodes > len(allocation.nodes):
            raise UsageError(
                f"A point needs {format_count(request.nodes, 'node')}, and job {allocation.job_id} "
                f"has {len(allocation.nodes)}.",
                hint=hint,
            )
        cpus = request.tasks_per_node * request.cpus_per_task
        needs = {"GPU": _count_gpus(request.gres), "CPU": cpus}
        for node, (unit, count) in product(allocation.nodes[: request.nodes], needs.items()):
            available = allocation.capacity.get(node, needs)[unit]
            if count > available:
                raise UsageError(
                    f"A point needs {format_count(count, unit)} per node, and job "
                    f"{allocation.job_id} has {available} on {node}.",
                    hint=hint,
                )


def launch_words(allocation: Allocation, array: Array) -> tuple[str, ...]:
    """Return the words before the command that runs an array's script in an allocation.

    The script runs where its job would run it, and holds no CPUs: with --overlap, its own steps may
    have all. --disable-status has srun hand a SIGINT on at once; it would answer SIGTERM by killing
    the script, which could not end its own steps then.
    """
    nodes = allocation.nodes[: array.point.shape.nodes]
    gres = "none" if array.point.device == "cpu" else array.request.gres
    return (
        *("env", f"HPCBERT_NODELIST={fold(nodes)}", *([f"SLURM_GRES={gres}"] if gres else [])),
        *("srun", f"--jobid={allocation.job_id}", "--overlap", "--nodes=1", "--ntasks=1"),
        *(f"--nodelist={nodes[0]}", "--mpi=none", "--export=ALL", "--disable-status"),
    )


class InAllocation(Local):
    """Runs campaigns as steps of the job in whose allocation the command was typed."""

    def fit(self, options: SubmitOptions, site: Site, recipe: Recipe) -> SubmitOptions:
        """Refuse a shell that is not in an allocation, before anything is decided."""
        read_job_id(self.context.environ)
        return super().fit(options, site, recipe)

    def obstacles(self, directory: Path, requests: Sequence[JobRequest]) -> Iterable[Finding]:
        """Refuse what is larger than the allocation."""
        del directory
        refuse_larger(requests, self._ask_allocation())
        return ()

    def refuse_doubling(
        self, watched: TrackedCampaign, missing: Sequence[tuple[Array, int]]
    ) -> None:
        """Refuse what is larger than the allocation before a retry is written down."""
        del watched
        if missing:
            refuse_larger((array.request for array, _ in missing), self._ask_allocation())

    def start(self, directory: Path, campaign: Campaign) -> str:
        """Start a queue in the allocation, which may be another one than at the submission."""
        allocation = self._ask_allocation()
        refuse_larger((array.request for array in campaign.arrays), allocation)
        return start_queue(
            directory,
            campaign,
            environ=self.context.environ,
            allocation=allocation.job_id,
            launch=partial(launch_words, allocation),
        )

    def _ask_allocation(self) -> Allocation:
        environ = self.context.environ
        job_id = read_job_id(environ)
        argv = ["scontrol", "--details", "show", "job", job_id]
        outcome = self.context.run(argv, env=commands.query_environment(environ), timeout=60)
        if not outcome.ok and not commands.is_unknown_job(outcome.stderr):
            raise SchedulerError(
                f"Slurm does not say what job {job_id} has: {outcome.stderr.strip()}",
                hint="Try again once it answers.",
            )
        return read_allocation(outcome.stdout, job_id, uid=os.geteuid())
