"""Match the ids that sbatch printed to an array's job, as the controller has it.

A site may wrap sbatch, and Slurm uses job ids again, so an id is recorded as the array's only once
the controller shows that job as the array's. If sbatch ended with status 0 and the controller shows
a job of the submitter's without any mark of the array, the wrapper changed them all: the id stays,
in doubt, until the job itself records its start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.model import Array
from hpcbert.scheduler.base import Job, World
from hpcbert.scheduler.slurm import control
from hpcbert.scheduler.slurm.adopt import compare_identity
from hpcbert.scheduler.slurm.gates import StartConditions
from hpcbert.scheduler.slurm.questions import run_query
from hpcbert.script.request import controller_fields
from hpcbert.slurm import commands
from hpcbert.system.runner import Outcome


@dataclass(frozen=True)
class Claim:
    """An id that sbatch printed.

    Attributes:
        is_ours: Whether the controller shows that job as the array's; None if it does not say.
        unknown: Whether the controller has no job with that id.
    """

    job: Job
    is_ours: bool | None = None
    unknown: bool = False
    shown: control.ControllerJob | None = None

    @property
    def silent(self) -> bool:
        """Whether the controller gives no information about it at this moment."""
        return self.is_ours is None and not self.unknown

    @property
    def text(self) -> str:
        """The job as the controller describes it."""
        if not self.shown:
            return f"{self.job.job_id}, which Slurm does not describe"
        row = self.shown.row
        return f"{self.job.job_id}, {row.name!r} of {row.user} in {row.workdir}"


@dataclass(frozen=True)
class Order:
    """A call of sbatch.

    Attributes:
        conditions: What its job waits for.
    """

    array: Array
    conditions: StartConditions


def is_single_id(outcome: Outcome) -> bool:
    """Return whether sbatch succeeded and printed one id and nothing else."""
    lines = [line for line in outcome.stdout.splitlines() if line.strip()]
    alone = len(control.parse_job_ids(outcome.stdout)) == 1
    return outcome.ok and alone and all(map(control.parse_job_ids, lines))


def check_printed_ids(
    watched: TrackedCampaign, array: Array, outcome: Outcome, world: World
) -> list[Claim]:
    """Ask the controller about the ids that sbatch printed, the last one first, until one fits."""
    claims: list[Claim] = []
    for job_id, cluster in control.parse_job_ids(outcome.stdout):
        claims.append(_check_printed_id(watched, array, Job(job_id, cluster), world))
        if claims[-1].is_ours:
            break
    return claims


def _check_printed_id(watched: TrackedCampaign, array: Array, job: Job, world: World) -> Claim:
    answer = run_query(world, control.show_argv(job.job_id, cluster=job.cluster))
    controller_job = control.read_job(answer.stdout) if answer.ok else None
    if controller_job is None:
        unknown = not answer.ok and commands.is_unknown_job(answer.stderr)
        return Claim(job, unknown=unknown)
    # By its directory, or by name, comment or script.
    label = watched.find_labelled_array(controller_job.row)
    name_fits = label is None or label.name == array.name
    array_with_job = replace(
        array, job_id=job.job_id, cluster=job.cluster, submit_time=controller_job.row.submit
    )
    is_ours = (
        controller_job.row.job == job.job_id
        and name_fits
        and watched.lists(controller_job.row, array_with_job)
    )
    return Claim(job, is_ours=is_ours, shown=controller_job)


def find_unmarked(watched: TrackedCampaign, claims: Sequence[Claim]) -> Claim | None:
    """Return the submitter's newest job without the mark of any array; None if there is none.

    The controller's own times and ids say which is the newest. Another array's job stays its own.
    """
    rows = [(claim.shown.row, claim) for claim in claims if claim.shown]
    candidates = [
        (row.submit or 0.0, int(row.job), claim)
        for row, claim in rows
        if row.job == claim.job.job_id
        and row.job not in watched.arrays_of_job
        and watched.owner_fits(row)
        and watched.find_labelled_array(row) is None
    ]
    return max(candidates, key=lambda candidate: candidate[:2])[-1] if candidates else None


def complete_array(watched: TrackedCampaign, order: Order, claim: Claim, stamp: str) -> Array:
    """Return an array with its job, and the differences from its request."""
    changed = _find_changes(watched, order, claim)
    time = claim.shown.row.submit if claim.shown else None
    job = replace(claim.job, changed=changed, seen=claim.is_ours is True, submit_time=time)
    return job.of(order.array, stamp)


def _find_changes(
    watched: TrackedCampaign, order: Order, claim: Claim
) -> tuple[tuple[str, str, str], ...]:
    """Return where the controller's settings differ from the request."""
    if claim.shown is None:
        return ()
    request = controller_fields(order.array)
    identities = compare_identity(watched, order.array, claim.shown.row)
    workdir_change = tuple(entry for entry in identities if entry[0] == "WorkDir")
    dependency = claim.shown.fields.get("Dependency", "")
    jobs = [gate.job_id for gate in order.conditions.jobs]
    dependency_kept = dependency in {"", "(null)"} or any(f":{job}" in dependency for job in jobs)
    dependency_change = () if dependency_kept else (("Dependency", ",".join(jobs), dependency),)
    return (*control.find_differences(request, claim.shown), *dependency_change, *workdir_change)
