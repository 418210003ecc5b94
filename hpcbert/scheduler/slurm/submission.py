"""Handing a campaign's arrays to sbatch, one after another, until it is known what became of each.

What makes it safe is what is on disk when: that sbatch is about to be called for an array, and what
it answered, before it is called for the next one. A crash in between leaves a job that was
submitted in the campaign, which the next `submit` of the campaign finds and adopts.

What sbatch says is not enough: a site may wrap it, and its answer may come too late. An id that it
prints is believed once the controller shows that job as the array's (`claims`); after any failure
the queue is asked before an array is called refused.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from hpcbert.campaign import store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.errors import SchedulerError, UsageError
from hpcbert.model import utc
from hpcbert.scheduler.base import RESUME, NoRoomError, record
from hpcbert.scheduler.slurm.adopt import complaint, look, search
from hpcbert.scheduler.slurm.claims import Trust, claims_of, confirm, plain, settled
from hpcbert.scheduler.slurm.gates import gates_of, sbatch_argv
from hpcbert.scheduler.slurm.questions import query
from hpcbert.slurm import commands, refusals
from hpcbert.slurm.states import parse
from hpcbert.system.lazy import regex

if TYPE_CHECKING:
    from pathlib import Path

    from hpcbert.campaign.ledger import Ledger
    from hpcbert.model import Array, Campaign, Point
    from hpcbert.scheduler.base import World
    from hpcbert.scheduler.slurm.claims import Claim
    from hpcbert.scheduler.slurm.gates import Gates
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
_LIMIT = regex(r"\b(?:Assoc|QOS)\w+")
# The controller was reached, and this is its answer.
_DECIDED = "Batch job submission failed:"
_PAUSES = (1.0, 2.0, 4.0)
_NO_PROGRAM = 127

Verdict = Literal["done", "again", "full"]


def hand_over(directory: Path, campaign: Campaign, world: World) -> Campaign:
    """Do what `Scheduler.submit` says, an array after the other."""
    open_ = {one.name for one in campaign.unsubmitted}
    there: dict[Point | None, Array] = _first(directory, campaign)
    trust = Trust()
    with store.changing(directory, campaign) as ledger:
        watched = TrackedCampaign(directory, campaign)
        left = deque(campaign.in_order)
        while left:
            array = left.popleft()
            if array.name in open_:
                world.check()
                gates = gates_of(watched, there, array, world)
                array = _handed_over(ledger, watched, array, world, gates, trust=trust)
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
                there |= {None: array, array.point: array}
        confirm(ledger, watched, trust, world)
    return ledger.campaign


def _first(directory: Path, campaign: Campaign) -> dict[Point | None, Array]:
    """Return the last array of the campaign that has to be over first; nothing if it is gone."""
    with contextlib.suppress(UsageError):
        before = store.read_manifest(directory.parent / campaign.after) if campaign.after else None
        if queued := [one for one in before.in_order if one.job_id] if before else []:
            return {None: queued[-1]}
    return {}


def _handed_over(
    ledger: Ledger,
    watched: TrackedCampaign,
    array: Array,
    world: World,
    gates: Gates,
    *,
    trust: Trust,
) -> Array:
    """Return an array as submitted, or one that has to be submitted in parts.

    Raises:
        SchedulerError, NoRoomError: As `Scheduler.submit`.
    """
    store.read_script(ledger.directory, array)
    # An earlier try may have made its job, also one that sbatch seemed to refuse.
    known = TrackedCampaign(ledger.directory, ledger.campaign) if array.called else watched
    if array.called and (found := search(known, array, world)):
        done = found.of(array, utc(world.now()))
        record(ledger, done)
        return done
    workdir = os.path.realpath(ledger.directory)
    tried = replace(array, called=utc(world.now()), workdir=workdir)
    record(ledger, tried)
    done, verdict = _settled(watched, tried, gates, world, trust)
    if verdict == "full" and len(done.repeats) > 1 and not done.together:
        return done
    # It goes to the disk with the next call of sbatch, or the manifest: until then the job itself,
    # which can be found again, stands for it.
    record(ledger, done, flush=done.state != "submitted")
    if verdict == "full":
        raise _full(done, ledger.campaign)
    if done.state != "submitted":
        raise _refusal(done, ledger.campaign, world.again)
    return done


def _halves(array: Array) -> tuple[Array, Array]:
    """Return an array made two, for a limit on how many jobs one may have."""
    middle = (len(array.repeats) + 1) // 2
    first = _part(array, array.repeats[:middle], array.name)
    return first, _part(array, array.repeats[middle:], f"{array.name}.p{array.repeats[middle]}")


def _part(array: Array, repeats: tuple[int, ...], name: str) -> Array:
    why = tuple(one for one in array.why if one[0] in repeats)
    return replace(array, name=name, repeats=repeats, why=why, error="")


def _full(array: Array, campaign: Campaign) -> NoRoomError:
    left = sum(not one.job_id for one, _ in campaign.current)
    there = len(campaign.current) - left
    return NoRoomError(
        f"Slurm takes no more jobs of yours now: {there} repeats are submitted, {left} are left. "
        f"It says: {array.error}",
        where=campaign.id,
        hint=f"When some have ended: {RESUME} {campaign.id}; with --wait it goes on by itself.",
    )


def _refusal(array: Array, campaign: Campaign, again: str) -> SchedulerError:
    """Return the error about an array that Slurm refused, or may not have heard of."""
    there = [one.job_id for one in campaign.arrays if one.state == "submitted"]
    before = f" Submitted before it: {', '.join(there)}." if there else ""
    if "no such program" in array.error:
        hint = "Run this on a login node, or use the local scheduler (--scheduler local)."
    elif array.state == "refused":
        known = refusals.advice(array.error)
        # What was asked for stands in the scripts, which a resumed submission takes as they are.
        better = (
            f"Submit again: {known}. If instead the cause goes away" if known else "Fix the cause"
        )
        hint = f"{better}, then submit what is left: {RESUME} {campaign.id}"
    else:
        hint = f"Once Slurm answers: {again} {campaign.id}; nothing is submitted twice."
    return SchedulerError(f"{array.error}.{before}", where=array.name, hint=hint)


def _settled(
    watched: TrackedCampaign, array: Array, gates: Gates, world: World, trust: Trust
) -> tuple[Array, Verdict]:
    """Call sbatch until it is known what became of the array."""
    for seconds in _PAUSES:
        done, verdict = _call(watched, array, gates, world, trust)
        if verdict != "again":
            return done, verdict
        world.pause(seconds)
    return _call(watched, array, gates, world, trust)


def _call(
    watched: TrackedCampaign, array: Array, gates: Gates, world: World, trust: Trust
) -> tuple[Array, Verdict]:
    """Call sbatch once; return what became of the array, and whether calling again may help."""
    directory = watched.directory
    text = store.read_script(directory, array).decode()
    argv = sbatch_argv(directory, array, gates=gates, text=text)
    environment = commands.submission_environment(world.environ)
    outcome = world.run(argv, cwd=directory, env=environment)
    if outcome.returncode == _NO_PROGRAM:
        return replace(array, state="refused", error=complaint(outcome)), "done"
    stamp, alone = utc(world.now()), plain(outcome)
    if alone and trust.earned:
        done = replace(alone.of(array, stamp), seen="")
        trust.open.append((done, gates))
        return done, "done"
    claims = claims_of(watched, array, outcome, world)
    only = claims[0] if alone else None
    trust.heard(only)
    if ours := next((one for one in claims if one.mine), None):
        return settled(watched, array, ours, gates, stamp), "done"
    # Nobody says otherwise at this moment; who asks later settles it (`Array.unsettled`).
    silent = only is not None and only.silent
    # Where the controller refused it, without waiting.
    refused = _DECIDED in outcome.stderr and not outcome.ok and not _says(outcome, _UNCERTAIN)
    seek = look if refused else search
    found = None if silent else seek(watched, array, world)
    if found:
        return found.of(array, utc(world.now())), "done"
    if only and (silent or only.unknown):
        return replace(only.job.of(array, utc(world.now())), seen=""), "done"
    return _failed(watched, array, outcome, claims, world)


def _failed(
    watched: TrackedCampaign, array: Array, outcome: Outcome, claims: list[Claim], world: World
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
    queue = query(world, argv)
    rows = commands.read_squeue(queue.stdout).rows if queue.ok else ()
    return any(not parse(row.state).kind.over for row in rows)


def _says(outcome: Outcome, phrases: tuple[str, ...]) -> bool:
    return not outcome.ok and any(phrase in outcome.stderr for phrase in phrases)
