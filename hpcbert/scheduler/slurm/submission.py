"""Hand a campaign's arrays to sbatch, one after another, until the result of each is known.

The order of writes makes this safe: on disk are the intent to call sbatch for an array, and its
answer, before the call for the next one. A crash in between leaves a job that was submitted in the
campaign's directory, which the next `submit` of the campaign finds and adopts.

sbatch's answer is not enough: a site may wrap it, and its answer may come too late. The controller
is asked about each id that it prints (`claims`), before the next call, which may name it as a
dependency. After any failure the queue is searched before an array counts as refused. After status
0, or an id of the submitter's, sbatch is never called again for the array, not even by a resumed
submission.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from hpcbert.campaign import store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.errors import SchedulerError, UsageError
from hpcbert.model import utc
from hpcbert.scheduler.base import RESUME, NoRoomError, record
from hpcbert.scheduler.slurm.adopt import adopted, complaint, look, search
from hpcbert.scheduler.slurm.claims import Order, claims_of, is_plain, settled, unmarked
from hpcbert.scheduler.slurm.gates import gates_of, sbatch_argv
from hpcbert.scheduler.slurm.questions import query
from hpcbert.slurm import commands, refusals
from hpcbert.slurm.states import parse

if TYPE_CHECKING:
    from pathlib import Path

    from hpcbert.campaign.ledger import Ledger
    from hpcbert.model import Array, Campaign, Point
    from hpcbert.scheduler.base import World
    from hpcbert.scheduler.slurm.claims import Claim
    from hpcbert.scheduler.slurm.gates import Gates
    from hpcbert.system.runner import Outcome

# sbatch's messages if the controller is busy or away and nothing was submitted
# (SchedMD/slurm, src/common/slurm_errno.c).
TRANSIENT = (
    "(connect failure)",
    "Slurm temporarily unable to accept job",
    "Resource temporarily unavailable",
)
# Its messages if the request may or may not have arrived.
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
# Its message for a submission that exceeds a limit, and the limit's name, which releases since
# 20.11 print before it (src/common/slurm_protocol_defs.c, job_state_reason_string).
_POLICY = "job submit limit"
_LIMIT = re.compile(r"\b(?:Assoc|QOS)\w+")
# The controller was reached, and this is its answer.
_DECIDED = "Batch job submission failed:"
_PAUSES = (1.0, 2.0, 4.0)
_NO_PROGRAM = 127

Verdict = Literal["done", "again", "full"]


def hand_over(directory: Path, campaign: Campaign, world: World) -> Campaign:
    """Implement `Scheduler.submit`, one array after the other."""
    arrays: dict[Point | None, Array] = _first(directory, campaign)
    world = world._replace(environ=commands.submission_environment(world.environ))
    with store.changing(directory, campaign) as ledger:
        if world.resumed:
            _adopt_all(ledger, world)
        watched = TrackedCampaign(directory, ledger.campaign)
        open_ = {array.name for array in watched.campaign.unsubmitted}
        left = deque(watched.campaign.in_order)
        while left:
            array = left.popleft()
            if array.name in open_:
                world.check()
                gates = gates_of(watched, arrays, array, world)
                array = _handed_over(ledger, watched, array, world, gates)
                if array.state != "submitted":
                    first, rest = _halves(array)
                    ledger.split(array, (first, rest))
                    watched = TrackedCampaign(directory, ledger.campaign)
                    open_.add(rest.name)
                    left.extendleft((rest, first))
                    continue
            if array.preflight:
                watched = TrackedCampaign(directory, ledger.campaign)
            elif array.job_id:
                arrays |= {None: array, array.point: array}
    return ledger.campaign


def _adopt_all(ledger: Ledger, world: World) -> None:
    """Record the jobs of all arrays that have one, although the manifest may not know of any call.

    Raises:
        SchedulerError: Slurm can't say which jobs there are.
    """
    campaign = ledger.campaign
    watched = TrackedCampaign(ledger.directory, campaign)
    workdir = os.path.realpath(ledger.directory)
    doubts = (array for array in campaign.arrays if array.state == "submitted" and array.unsettled)
    jobs = list(adopted(watched, (*campaign.unsubmitted, *doubts), world, strict=True))
    if jobs:
        record(ledger, *(replace(job, workdir=job.workdir or workdir) for job in jobs))


def _first(directory: Path, campaign: Campaign) -> dict[Point | None, Array]:
    """Return the last array of the campaign that must be over first; nothing if it is gone."""
    with contextlib.suppress(UsageError):
        before = store.read_manifest(directory.parent / campaign.after) if campaign.after else None
        if queued := [array for array in before.in_order if array.job_id] if before else []:
            return {None: queued[-1]}
    return {}


def _handed_over(
    ledger: Ledger,
    watched: TrackedCampaign,
    array: Array,
    world: World,
    gates: Gates,
) -> Array:
    """Return an array as submitted, or one that must be submitted in parts.

    Raises:
        SchedulerError, NoRoomError: As `Scheduler.submit`.
    """
    store.read_script(ledger.directory, array)
    # An earlier try may have made its job, even if sbatch seemed to refuse it.
    tracked_campaign = (
        TrackedCampaign(ledger.directory, ledger.campaign) if array.called else watched
    )
    if array.called and (job := search(tracked_campaign, array, world)):
        done = job.of(array, utc(world.now()))
        record(ledger, done)
        return done
    if array.submitted:
        raise _refusal(array, ledger.campaign, world.again)
    workdir = os.path.realpath(ledger.directory)
    tried = replace(array, called=utc(world.now()), workdir=workdir)
    record(ledger, tried)
    order = Order(tried, gates)
    done, verdict = _settled(ledger, watched, order, world)
    if verdict == "full" and len(done.repeats) > 1 and not done.together:
        return done
    # This goes to disk with the next call of sbatch, or the manifest: until then the job itself,
    # which can be found again, is the record.
    record(ledger, done, flush=done.state != "submitted")
    if verdict == "full":
        raise _full(done, ledger.campaign)
    if done.state != "submitted":
        raise _refusal(done, ledger.campaign, world.again)
    return done


def _halves(array: Array) -> tuple[Array, Array]:
    """Return an array split in two, because of a limit on the jobs of one."""
    middle = (len(array.repeats) + 1) // 2
    first = _part(array, array.repeats[:middle], array.name)
    return first, _part(array, array.repeats[middle:], f"{array.name}.p{array.repeats[middle]}")


def _part(array: Array, repeats: tuple[int, ...], name: str) -> Array:
    why = tuple(one for one in array.why if one[0] in repeats)
    return replace(array, name=name, repeats=repeats, why=why, error="")


def _full(array: Array, campaign: Campaign) -> NoRoomError:
    unsubmitted = sum(not one.job_id for one, _ in campaign.current)
    count = len(campaign.current) - unsubmitted
    return NoRoomError(
        f"Slurm accepts no more of your jobs now: {count} repeats are submitted, "
        f"{unsubmitted} are not. "
        f"Slurm's message: {array.error}",
        where=campaign.id,
        hint=f"When some have ended: {RESUME} {campaign.id}; --wait continues by itself.",
    )


def _refusal(array: Array, campaign: Campaign, again: str) -> SchedulerError:
    """Return the error for an array that Slurm refused, or may not have received."""
    job_ids = [one.job_id for one in campaign.arrays if one.state == "submitted"]
    before = f" Submitted before it: {', '.join(job_ids)}." if job_ids else ""
    if "no such program" in array.error:
        hint = "Run this on a login node, or use the local scheduler (--scheduler local)."
    elif array.state == "refused":
        known = refusals.advice(array.error)
        # The request is in the scripts, which a resumed submission uses unchanged.
        better = (
            f"Submit again: {known}. If instead the cause goes away" if known else "Fix the cause"
        )
        hint = f"{better}, then submit the rest: {RESUME} {campaign.id}"
    elif array.submitted:
        hint = (
            "hpcbert finds its job when that starts, and does not call sbatch for it again. If "
            f"squeue shows that there is none: hpcbert submit --like {campaign.id}"
        )
    else:
        hint = f"Once Slurm answers: {again} {campaign.id}; hpcbert submits nothing twice."
    return SchedulerError(f"{array.error}.{before}", where=array.name, hint=hint)


def _settled(
    ledger: Ledger, watched: TrackedCampaign, order: Order, world: World
) -> tuple[Array, Verdict]:
    """Call sbatch until the result for the array is known."""
    for seconds in _PAUSES:
        array, verdict = _call(ledger, watched, order, world)
        if verdict != "again":
            return array, verdict
        world.pause(seconds)
    return _call(ledger, watched, order, world)


def _call(
    ledger: Ledger, watched: TrackedCampaign, order: Order, world: World
) -> tuple[Array, Verdict]:
    """Call sbatch once; return the result for the array, and whether calling again may help."""
    array, directory = order.array, watched.directory
    argv = sbatch_argv(directory, array, gates=order.gates)
    outcome = world.run(argv, cwd=directory, env=world.environ)
    if outcome.returncode == _NO_PROGRAM:
        return replace(array, state="refused", error=complaint(outcome)), "done"
    claims = claims_of(watched, array, outcome, world)
    claim = next((claim for claim in claims if claim.mine), None)
    if claim:
        return settled(watched, order, claim, utc(world.now())), "done"
    # One array's job can't be another's, so all that are on record by now matter.
    watched = TrackedCampaign(directory, ledger.campaign)
    only = claims[0] if is_plain(outcome) else None
    # Nothing contradicts it at this moment; a later query settles it (`Array.unsettled`).
    silent = only is not None and only.silent
    # If the controller refused it, don't wait.
    refused = _DECIDED in outcome.stderr and not outcome.ok and not _says(outcome, _UNCERTAIN)
    seek = look if refused else search
    job = None if silent else seek(watched, array, world)
    if job:
        return job.of(array, utc(world.now())), "done"
    claim = unmarked(watched, claims) if outcome.ok else None
    if claim := claim or (only if silent or (only and only.unknown) else None):
        return settled(watched, order, claim, utc(world.now())), "done"
    return _failed(watched, array, outcome, claims, world)


def _failed(
    watched: TrackedCampaign, array: Array, outcome: Outcome, claims: list[Claim], world: World
) -> tuple[Array, Verdict]:
    """Judge a call that left no known job."""
    if not outcome.ok and _is_full(watched, array, outcome, world):
        return replace(array, called="", workdir="", error=complaint(outcome)), "full"
    accepted = outcome.ok or unmarked(watched, claims) or any(claim.silent for claim in claims)
    if accepted or any(claim.unknown for claim in claims):
        printed = "; ".join(claim.text for claim in claims) or "no job id"
        error = f"sbatch ended with status {outcome.returncode} and printed {printed}: "
        error += "Slurm does not show which job is this array's"
        stamp = utc(world.now()) if accepted else ""
        return replace(array, submitted=stamp, error=error), "done"
    # A command killed by a signal gives no information.
    if outcome.returncode < 0 or _says(outcome, _UNCERTAIN):
        return replace(array, error=complaint(outcome)), "again"
    refused = replace(array, state="refused", error=complaint(outcome))
    return refused, "again" if _says(outcome, TRANSIENT) else "done"


def _is_full(watched: TrackedCampaign, array: Array, outcome: Outcome, world: World) -> bool:
    """Return whether an array is too much for now, because a limit counts the user's own jobs.

    If Slurm does not name the limit, a single repeat may exceed another one: it can only be too
    much if a job of the user waits or runs.
    """
    names = _LIMIT.findall(outcome.stderr)
    if names:
        return any("Submit" in name for name in names)
    if _POLICY not in outcome.stderr:
        return False
    if len(array.repeats) > 1 and not array.together:
        return True
    argv = commands.squeue_argv(users=[watched.campaign.owner], cluster=array.cluster)
    queue = query(world, argv)
    rows = commands.read_squeue(queue.stdout).rows if queue.ok else ()
    return any(not parse(row.state).kind.over for row in rows)


def _says(outcome: Outcome, phrases: tuple[str, ...]) -> bool:
    return not outcome.ok and any(phrase in outcome.stderr for phrase in phrases)
