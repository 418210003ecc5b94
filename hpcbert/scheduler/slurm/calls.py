"""Calling sbatch for one array until it is known what became of it.

What sbatch says is not enough: a site may wrap it, and its answer may come too late. An id that it
prints is believed once the controller shows that job as the array's; after any failure the queue
is asked before an array is called refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from hpcbert.campaign import store
from hpcbert.model import utc
from hpcbert.scheduler.base import Job
from hpcbert.scheduler.slurm import control
from hpcbert.scheduler.slurm.adopt import complaint, look, search
from hpcbert.script import directives
from hpcbert.slurm import commands
from hpcbert.slurm.states import parse

if TYPE_CHECKING:
    from pathlib import Path

    from hpcbert.campaign.repeats import TrackedCampaign
    from hpcbert.model import Array, Campaign
    from hpcbert.scheduler.base import World
    from hpcbert.system.runner import Outcome

# What sbatch says when the controller is busy or away and nothing was submitted
# (SchedMD/slurm, src/common/slurm_errno.c).
TRANSIENT = (
    "(connect failure)",
    "Slurm temporarily unable to accept job",
    "Resource temporarily unavailable",
)
# What it says when the request may or may not have arrived.
_UNCERTAIN = (
    "Socket timed out",
    "Unexpected message received",
    "Zero Bytes were transmitted or received",
    "(send failure)",
    "(receive failure)",
    "(shutdown failure)",
    "Message send failure",
    "Message receive failure",
    "gave no answer within",
)
# What it says of a submission that breaks a limit, and the limit's name, which releases since
# 20.11 print before it (src/common/slurm_protocol_defs.c, job_state_reason_string).
_POLICY = "job submit limit"
_LIMIT = re.compile(r"\b(?:Assoc|QOS)\w+")
# The controller was reached, and this is its answer.
_DECIDED = "Batch job submission failed:"
_PAUSES = (1.0, 2.0, 4.0)
_NO_PROGRAM = 127

Verdict = Literal["done", "again", "full"]


def sbatch_argv(
    directory: Path, array: Array, *, after: Array | None = None, text: str = ""
) -> list[str]:
    """Return the command that submits one array; all other options are in the script.

    Args:
        directory: The campaign.
        array: What to submit.
        after: The array whose job must be over first.
        text: The script, where the array is a part of what it says.
    """
    cluster = after.cluster if after else array.cluster
    words = [f"--clusters={cluster}"] if cluster else []
    words += [f"--dependency=afterany:{after.job_id}"] if after else []
    words += directives.narrowed(text, array) if text else []
    return ["sbatch", "--parsable", *words, str(directory / array.script)]


def predecessor(campaign: Campaign, array: Array) -> Array | None:
    """Return the array whose job an array waits for: the one before it, if it must wait.

    A retry waits for its own point's in any case: repeats of a point never share the network
    unless that was asked for.
    """
    before = campaign.arrays[: campaign.arrays.index(array)]
    if campaign.concurrent_points:
        before = tuple(one for one in before if one.point == array.point)
    there = [one for one in before if one.job_id]
    return there[-1] if there else None


def left_behind(watched: TrackedCampaign, array: Array, world: World) -> Job | None:
    """Return the job that an earlier try made, also one that sbatch seemed to refuse."""
    if not array.called:
        return None
    return search(watched, array, world)


def settled(watched: TrackedCampaign, array: Array, world: World) -> tuple[Array, Verdict]:
    """Call sbatch until it is known what became of the array."""
    for seconds in _PAUSES:
        done, verdict = _call(watched, array, world)
        if verdict != "again":
            return done, verdict
        world.pause(seconds)
    return _call(watched, array, world)


def _call(watched: TrackedCampaign, array: Array, world: World) -> tuple[Array, Verdict]:
    """Call sbatch once; return what became of the array, and whether calling again may help."""
    directory = watched.directory
    text = store.read_script(directory, array).decode()
    after = predecessor(watched.campaign, array)
    argv = sbatch_argv(directory, array, after=after, text=text)
    environment = commands.submission_environment(world.environ)
    outcome = world.run(argv, cwd=directory, env=environment)
    if outcome.returncode == _NO_PROGRAM:
        return replace(array, state="refused", error=complaint(outcome)), "done"
    claims = _claims(watched, array, outcome, world)
    ours = next((one for one in claims if one.mine), None)
    if ours:
        changed = _changed(watched, array, text, ours, after)
        return replace(ours.job.of(array, utc(world.now())), changed=changed), "done"
    plain = claims[0] if outcome.ok and len(outcome.stdout.split()) == 1 and claims else None
    # Nobody says otherwise at this moment; who asks later settles it (`Array.unsettled`).
    silent = plain is not None and plain.mine is None and not plain.unknown
    found = None if silent else _found(watched, array, outcome, world)
    if found:
        return found.of(array, utc(world.now())), "done"
    if plain and (silent or plain.unknown):
        return replace(plain.job.of(array, utc(world.now())), seen=""), "done"
    return _failed(watched, array, outcome, claims, world)


def _found(watched: TrackedCampaign, array: Array, outcome: Outcome, world: World) -> Job | None:
    """Look for the job that a call made; where the controller refused it, without waiting."""
    if not outcome.ok and _DECIDED in outcome.stderr and not _says(outcome, _UNCERTAIN):
        return look(watched, array, world)
    return left_behind(watched, array, world)


def _failed(
    watched: TrackedCampaign, array: Array, outcome: Outcome, claims: list[_Claim], world: World
) -> tuple[Array, Verdict]:
    """Judge a call that left no job that anybody knows."""
    if not outcome.ok and _is_full(watched, array, outcome, world):
        return replace(array, called="", workdir="", error=complaint(outcome)), "full"
    if claims and any(one.mine is None for one in claims):
        ids = ", ".join(one.job.job_id for one in claims)
        error = f"sbatch printed {ids}, and Slurm does not say now which job is this array's"
        return replace(array, error=error), "done"
    # Who is killed by a signal tells nothing.
    if outcome.ok or outcome.returncode < 0 or _says(outcome, _UNCERTAIN):
        return replace(array, error=complaint(outcome)), "again"
    refused = replace(array, state="refused", error=complaint(outcome))
    return refused, "again" if _says(outcome, TRANSIENT) else "done"


def _is_full(watched: TrackedCampaign, array: Array, outcome: Outcome, world: World) -> bool:
    """Say whether an array is too much for now: of jobs of one's own, which a limit counts.

    Where Slurm does not name the limit, a single repeat may break another one: it can only be too
    much if something of the person's waits or runs.
    """
    names = _LIMIT.findall(outcome.stderr)
    if names:
        return any("Submit" in name for name in names)
    if _POLICY not in outcome.stderr:
        return False
    if len(array.repeats) > 1 and not array.together:
        return True
    argv = commands.squeue_argv(users=[watched.campaign.owner], cluster=array.cluster)
    queue = world.run(argv, env=commands.environment(world.environ))
    rows = commands.read_squeue(queue.stdout).rows if queue.ok else ()
    return any(not parse(row.state).kind.over for row in rows)


def _says(outcome: Outcome, phrases: tuple[str, ...]) -> bool:
    return not outcome.ok and any(phrase in outcome.stderr for phrase in phrases)


@dataclass(frozen=True)
class _Claim:
    """An id that sbatch printed.

    Attributes:
        mine: Whether the controller shows that job as the array's; None where it does not say.
        unknown: Whether the controller has no job of that id.
    """

    job: Job
    mine: bool | None = None
    unknown: bool = False
    shown: control.Shown | None = None


def _claims(watched: TrackedCampaign, array: Array, outcome: Outcome, world: World) -> list[_Claim]:
    """Ask the controller about the ids that sbatch printed, the last one first, until one fits."""
    claims: list[_Claim] = []
    environment = commands.environment(world.environ)
    for job_id, cluster in control.answers(outcome.stdout):
        answer = world.run(control.show_argv(job_id, cluster=cluster), env=environment)
        shown = control.read(answer.stdout) if answer.ok else None
        job = Job(job_id, cluster)
        if shown is None:
            unknown = not answer.ok and commands.unknown_to_slurm(answer.stderr)
            claims.append(_Claim(job, unknown=unknown))
            continue
        mine = shown.row.job == job_id and _is_of(watched, array, shown, cluster)
        claims.append(_Claim(job, mine=mine, shown=shown))
        if mine:
            break
    return claims


def _is_of(watched: TrackedCampaign, array: Array, shown: control.Shown, cluster: str) -> bool:
    """Say whether the controller's job is an array's: in its directory, or by name or script."""
    label = watched.labelled(shown.row)
    if label is not None and label.name != array.name:
        return False
    called = replace(array, job_id=shown.row.job, cluster=cluster)
    return watched.lists(shown.row, called)


def _changed(
    watched: TrackedCampaign, array: Array, text: str, claim: _Claim, after: Array | None
) -> tuple[tuple[str, str, str], ...]:
    """Return what the controller has otherwise than it was asked for."""
    if claim.shown is None:
        return ()
    asked = directives.asked(text, array)
    found = control.differences(asked, claim.shown)
    depends = claim.shown.fields.get("Dependency", "")
    known = after.job_id if after else ""
    if depends not in {"", "(null)"} and not (known and f":{known}" in depends):
        found = (*found, ("Dependency", known, depends))
    if claim.shown.row.workdir and claim.shown.row.workdir not in watched.places:
        found = (*found, ("WorkDir", array.workdir, claim.shown.row.workdir))
    return found
