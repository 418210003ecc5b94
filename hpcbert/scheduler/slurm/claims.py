"""Match the ids that sbatch printed to an array's job, as the controller has it.

A site may wrap sbatch, and Slurm uses job ids again, so an id is trusted only once the controller
shows that job as the array's. After it has done so for some arrays of a submission, plain answers
for the next ones are trusted until all are submitted, and then checked together.
"""

from __future__ import annotations

import contextlib
from dataclasses import field, replace
from itertools import islice
from typing import TYPE_CHECKING

from hpcbert.errors import SchedulerError
from hpcbert.model import utc
from hpcbert.scheduler.base import Job, record
from hpcbert.scheduler.slurm import control
from hpcbert.scheduler.slurm.adopt import look
from hpcbert.scheduler.slurm.questions import query
from hpcbert.script import directives
from hpcbert.slurm import commands
from hpcbert.system.lazy import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hpcbert.campaign.ledger import Ledger
    from hpcbert.campaign.repeats import TrackedCampaign
    from hpcbert.model import Array
    from hpcbert.scheduler.base import World
    from hpcbert.scheduler.slurm.gates import Gates
    from hpcbert.system.runner import Outcome

# Plain answers in a row that must be right before later ones are trusted for a while.
_ENOUGH = 4


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


@dataclass(frozen=True)
class Order:
    """A call of sbatch.

    Attributes:
        gates: What its job waits for.
        text: The script.
    """

    array: Array
    gates: Gates
    text: str


@dataclass
class Trust:
    """How far sbatch's plain answers, an id and nothing else, are trusted in one submission.

    Attributes:
        right: Number of confirmed answers in a row.
        open: What was submitted with trusted answers.
    """

    right: int = 0
    open: list[Order] = field(default_factory=list)

    @property
    def earned(self) -> bool:
        """Whether the next one is trusted until all are submitted."""
        return self.right >= _ENOUGH

    def heard(self, claim: Claim | None) -> None:
        """Take note of whether a plain answer was right; None: the answer was not plain."""
        self.right = self.right + 1 if claim and claim.mine else 0


def plain(outcome: Outcome) -> Job | None:
    """Return the job of a plain answer; None if it is not one."""
    answers = control.answers(outcome.stdout) if outcome.ok else ()
    alone = len(answers) == 1 and len(outcome.stdout.split()) == 1
    return Job(*answers[0]) if alone else None


def claims_of(
    watched: TrackedCampaign, array: Array, outcome: Outcome, world: World
) -> list[Claim]:
    """Ask the controller about the ids that sbatch printed, the last one first, until one fits."""
    claims: list[Claim] = []
    for job_id, cluster in control.answers(outcome.stdout):
        claims.append(_asked(watched, array, Job(job_id, cluster), world))
        if claims[-1].mine:
            break
    return claims


def _asked(watched: TrackedCampaign, array: Array, job: Job, world: World) -> Claim:
    answer = query(world, control.show_argv(job.job_id, cluster=job.cluster))
    shown = control.read(answer.stdout) if answer.ok else None
    if shown is None:
        unknown = not answer.ok and commands.unknown_to_slurm(answer.stderr)
        return Claim(job, unknown=unknown)
    return _compared(watched, array, job, shown)


def _compared(watched: TrackedCampaign, array: Array, job: Job, shown: control.Shown) -> Claim:
    # By its directory, or by name or script.
    label = watched.labelled(shown.row)
    named = label is None or label.name == array.name
    called = replace(array, job_id=job.job_id, cluster=job.cluster)
    mine = shown.row.job == job.job_id and named and watched.lists(shown.row, called)
    return Claim(job, mine=mine, shown=shown)


def settled(watched: TrackedCampaign, order: Order, claim: Claim, stamp: str) -> Array:
    """Return an array with its own job, and the differences from its request."""
    return replace(claim.job.of(order.array, stamp), changed=_changed(watched, order, claim))


def _changed(
    watched: TrackedCampaign, order: Order, claim: Claim
) -> tuple[tuple[str, str, str], ...]:
    """Return where the controller's settings differ from the request."""
    if claim.shown is None:
        return ()
    asked = directives.asked(order.text, order.array)
    found = control.differences(asked, claim.shown)
    depends = claim.shown.fields.get("Dependency", "")
    known = [one.job_id for one in order.gates.jobs]
    if depends not in {"", "(null)"} and not any(f":{one}" in depends for one in known):
        found = (*found, ("Dependency", ",".join(known), depends))
    if claim.shown.row.workdir and claim.shown.row.workdir not in watched.places:
        found = (*found, ("WorkDir", order.array.workdir, claim.shown.row.workdir))
    return found


def confirm(ledger: Ledger, watched: TrackedCampaign, trust: Trust, world: World) -> None:
    """Ask about all arrays with trusted answers, and record what the controller has.

    If it does not say, they stay as they are: a later query settles it (`Array.unsettled`).

    Raises:
        HpcbertError: The file system refused.
    """
    if trust.open:
        found = tuple(_confirmed(watched, trust.open, world))
        if found:
            record(ledger, *found)


def shown_by_now(watched: TrackedCampaign, world: World) -> dict[str, Array]:
    """Return the arrays of an interrupted submission with trusted answers, by name.

    For many, squeue is asked about all at once; for few, and for those that it does not show,
    nothing is returned: they are searched one by one.
    """
    arrays = watched.campaign.arrays
    open_ = [one for one in arrays if one.state == "submitted" and one.unsettled]
    shown = _listed(open_, world) if len(open_) > _ENOUGH else {}
    found = {}
    for array in open_:
        job = Job(array.job_id, array.cluster)
        there = shown.get(array.job_id)
        if there and _compared(watched, array, job, there).mine:
            found[array.name] = job.of(array, utc(world.now()))
    return found


def _confirmed(
    watched: TrackedCampaign, believed: Sequence[Order], world: World
) -> Iterator[Array]:
    shown, silent = _listed([one.array for one in believed], world), False
    for order in believed:
        array = order.array
        job = Job(array.job_id, array.cluster)
        there = shown.get(array.job_id)
        claim = _compared(watched, array, job, there) if there else Claim(job)
        if not claim.mine and not silent:
            claim = _asked(watched, array, job, world)
            silent = claim.silent
        if claim.mine:
            yield settled(watched, order, claim, utc(world.now()))
        elif not claim.silent:
            with contextlib.suppress(SchedulerError):
                other = look(watched, array, world)
                yield from [other.of(array, utc(world.now()))] if other else []


def _listed(arrays: Iterable[Array], world: World) -> dict[str, control.Shown]:
    """Return the jobs of arrays as squeue shows them, by their ids; the others are absent."""
    found: dict[str, control.Shown] = {}
    clusters: dict[str, list[str]] = {}
    for array in arrays:
        clusters.setdefault(array.cluster, []).append(array.job_id)
    for cluster, ids in clusters.items():
        rest = iter(ids)
        while chunk := list(islice(rest, commands.CHUNK)):
            answer = query(world, control.list_argv(chunk, cluster=cluster))
            found |= control.read_list(answer.stdout) if answer.ok else {}
    return found
