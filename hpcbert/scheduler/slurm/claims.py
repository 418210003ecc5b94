"""Match the ids that sbatch printed to an array's job, as the controller has it.

A site may wrap sbatch, and Slurm uses job ids again, so an id is recorded as the array's only once
the controller shows that job as the array's. If sbatch ended with status 0 and the controller shows
a job of the submitter's without any mark of the array, the wrapper changed them all: the id stays,
in doubt, until the job itself records its start.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpcbert.scheduler.base import Job
from hpcbert.scheduler.slurm import control
from hpcbert.scheduler.slurm.adopt import identity
from hpcbert.scheduler.slurm.questions import query
from hpcbert.script.request import controller_fields
from hpcbert.slurm import commands

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcbert.campaign.repeats import TrackedCampaign
    from hpcbert.model import Array
    from hpcbert.scheduler.base import World
    from hpcbert.scheduler.slurm.gates import Gates
    from hpcbert.system.runner import Outcome


@dataclass(frozen=True)
class Claim:
    """An id that sbatch printed.

    Attributes:
        mine: Whether the controller shows that job as the array's; None if it does not say.
        unknown: Whether the controller has no job with that id.
    """

    job: Job
    mine: bool | None = None
    unknown: bool = False
    shown: control.Shown | None = None

    @property
    def silent(self) -> bool:
        """Whether the controller gives no information about it at this moment."""
        return self.mine is None and not self.unknown

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
        gates: What its job waits for.
    """

    array: Array
    gates: Gates


def is_plain(outcome: Outcome) -> bool:
    """Return whether sbatch succeeded and printed one id and nothing else."""
    lines = [line for line in outcome.stdout.splitlines() if line.strip()]
    alone = len(control.answers(outcome.stdout)) == 1
    return outcome.ok and alone and all(map(control.answers, lines))


def claims_of(
    watched: TrackedCampaign, array: Array, outcome: Outcome, world: World
) -> list[Claim]:
    """Ask the controller about the ids that sbatch printed, the last one first, until one fits."""
    claims: list[Claim] = []
    for job_id, cluster in control.answers(outcome.stdout):
        claims.append(_check(watched, array, Job(job_id, cluster), world))
        if claims[-1].mine:
            break
    return claims


def _check(watched: TrackedCampaign, array: Array, job: Job, world: World) -> Claim:
    answer = query(world, control.show_argv(job.job_id, cluster=job.cluster))
    shown = control.read(answer.stdout) if answer.ok else None
    if shown is None:
        unknown = not answer.ok and commands.unknown_to_slurm(answer.stderr)
        return Claim(job, unknown=unknown)
    # By its directory, or by name, comment or script.
    label = watched.labelled(shown.row)
    named = label is None or label.name == array.name
    numbered = replace(array, job_id=job.job_id, cluster=job.cluster, submit_time=shown.row.submit)
    mine = shown.row.job == job.job_id and named and watched.lists(shown.row, numbered)
    return Claim(job, mine=mine, shown=shown)


def unmarked(watched: TrackedCampaign, claims: Sequence[Claim]) -> Claim | None:
    """Return the submitter's newest job without the mark of any array; None if there is none.

    The controller's own times and ids say which is the newest. Another array's job stays its own.
    """
    rows = [(claim.shown.row, claim) for claim in claims if claim.shown]
    free = [
        (row.submit or 0.0, int(row.job), claim)
        for row, claim in rows
        if row.job == claim.job.job_id
        and row.job not in watched.of_job
        and watched.owner_fits(row)
        and watched.labelled(row) is None
    ]
    return max(free, key=lambda claim: claim[:2])[-1] if free else None


def settled(watched: TrackedCampaign, order: Order, claim: Claim, stamp: str) -> Array:
    """Return an array with its job, and the differences from its request."""
    changed = _changed(watched, order, claim)
    time = claim.shown.row.submit if claim.shown else None
    job = replace(claim.job, changed=changed, seen=claim.mine is True, submit_time=time)
    return job.of(order.array, stamp)


def _changed(
    watched: TrackedCampaign, order: Order, claim: Claim
) -> tuple[tuple[str, str, str], ...]:
    """Return where the controller's settings differ from the request."""
    if claim.shown is None:
        return ()
    request = controller_fields(order.array)
    identities = identity(watched, order.array, claim.shown.row)
    place = tuple(entry for entry in identities if entry[0] == "WorkDir")
    depends = claim.shown.fields.get("Dependency", "")
    jobs = [gate.job_id for gate in order.gates.jobs]
    waits = depends in {"", "(null)"} or any(f":{job}" in depends for job in jobs)
    gates = () if waits else (("Dependency", ",".join(jobs), depends),)
    return (*control.differences(request, claim.shown), *gates, *place)
