"""Submitting: write a drafted campaign down, hand its arrays to the scheduler, remember the ids.

The order is what makes it safe: every script and the manifest with all arrays `intended` are on
disk before sbatch is called first; that it is about to be called for an array, and what it
answered, are on disk before it is called for the next one. A crash in between leaves a job whose
name carries campaign and point, which the next `submit` of the campaign finds and adopts.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from hpcbert import store
from hpcbert.errors import HpcbertError, SchedulerError
from hpcbert.flows.adopt import SETTLE, complaint, search, witnessed
from hpcbert.model import utc
from hpcbert.slurm import commands

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hpcbert.flows.draft import Draft
    from hpcbert.model import Array, Campaign
    from hpcbert.slurm.runner import Outcome, Runner

# What sbatch says when the controller is busy or away and nothing was submitted
# (SchedMD/slurm, src/common/slurm_errno.c).
_TRANSIENT = (
    "(connect failure)",
    "Slurm temporarily unable to accept job",
    "Resource temporarily unavailable",
)
_NO_CLUSTER = ("Could not establish a configuration source",)
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
_PAUSES = (1.0, 2.0, 4.0)
_PARSABLE = re.compile(r"(\d+)(?:;\S+)?")


class Means(NamedTuple):
    """What submitting needs of the world.

    Attributes:
        run: Starts sbatch, squeue and sacct.
        now: Clock, seconds since the epoch.
        pause: Waits a number of seconds.
        settle: Seconds between two looks at the queue, before nothing is believed to be nothing.
    """

    run: Runner
    now: Callable[[], float] = time.time
    pause: Callable[[float], None] = time.sleep
    settle: float = SETTLE


def sbatch_argv(directory: Path, array: Array, *, after: str = "") -> list[str]:
    """Return the command that submits one array; all other options are in the script.

    Args:
        directory: The campaign.
        array: What to submit.
        after: Id of the job that must be over first; empty for none.
    """
    waits = [f"--dependency=afterany:{after}"] if after else []
    return ["sbatch", "--parsable", *waits, str(directory / array.script)]


def predecessor(campaign: Campaign, array: Array) -> str:
    """Return the job that an array waits for: that of the array before it, if it must wait.

    A retry waits for its own point's in any case: repeats of a point never share the network
    unless that was asked for.
    """
    before = campaign.arrays[: campaign.arrays.index(array)]
    if campaign.concurrent_points:
        before = tuple(one for one in before if one.point == array.point)
    ids = [one.job_id for one in before if one.job_id]
    return ids[-1] if ids else ""


def write(draft: Draft) -> None:
    """Write a drafted campaign: scripts, copies, and last the manifest.

    Raises:
        HpcbertError: The file system refused; nothing has been submitted then.
    """
    store.create(draft.directory)
    for target, source in draft.copies:
        store.write_bytes(draft.directory / target, source.read_bytes())
    for array in draft.campaign.arrays:
        store.write_text(draft.directory / array.script, draft.scripts[array.name])
    store.write_manifest(draft.directory, draft.campaign)


def submit(directory: Path, means: Means) -> Campaign:
    """Hand every array that is not submitted yet to Slurm, adopting what is there already.

    Args:
        directory: The campaign; what its manifest says is what is done.
        means: What it needs of the world.

    Returns:
        The manifest as it is on disk in the end.

    Raises:
        SchedulerError: Slurm refused an array, or can't be reached, or can't say what it has.
            Everything submitted so far is in the manifest.
        UsageError: There is no such campaign, its scripts were changed, or somebody else is
            submitting it at this moment; or it is not the caller's alone.
        HpcbertError: The directory can't be written to.
    """
    store.claim(directory)
    with store.locked(directory):
        return hand_over(directory, store.read_manifest(directory), means)


def hand_over(directory: Path, campaign: Campaign, means: Means) -> Campaign:
    """Do what `submit` does, for who holds the campaign's lock."""
    for array in campaign.arrays:
        if array.state == "submitted" or campaign.superseded(array):
            continue
        store.read_script(directory, array)
        job_id = _left_behind(directory, array, campaign.user, means)
        done = _submitted(array, job_id, means)
        if not job_id:
            tried = replace(array, called=utc(means.now()))
            campaign = _record(directory, campaign, tried)
            done = _settle(directory, campaign, tried, means)
        campaign = _record(directory, campaign, done)
        if done.state != "submitted":
            raise _refusal(done, campaign)
    return campaign


def _left_behind(directory: Path, array: Array, user: str, means: Means) -> str:
    """Return the job that an earlier try made, also one that sbatch seemed to refuse."""
    if not array.called:
        return ""
    return search(
        directory,
        array,
        user,
        run=means.run,
        since=array.called,
        settle=means.settle,
        pause=means.pause,
    )


def _submitted(array: Array, job_id: str, means: Means) -> Array:
    stamp = utc(means.now())
    return replace(array, state="submitted", job_id=job_id, submitted=stamp, error="")


def _record(directory: Path, campaign: Campaign, array: Array) -> Campaign:
    """Put an array into the manifest; a job whose id can't be written down is named at least."""
    campaign = store.update_array(campaign, array)
    try:
        store.write_manifest(directory, campaign)
    except HpcbertError as error:
        if not array.job_id:
            raise
        raise HpcbertError(
            f"Job {array.job_id} is submitted, but that can't be written down: {error.message}",
            where=error.where,
            hint=f"Make room, then: hpcbert submit --resume {campaign.id} finds it by its name.",
        ) from error
    return campaign


def enqueue(
    directory: Path,
    *,
    start: Callable[[Campaign], str],
    find: Callable[[], str],
    means: Means,
) -> Campaign:
    """Hand all arrays that are not there yet to the local queue.

    Args:
        directory: The campaign.
        start: Starts a queue for the campaign it is given, and names it.
        find: Names the queue that runs for this campaign; empty if there is none.
        means: What it needs of the world.

    Returns:
        The manifest as it is on disk in the end.

    Raises:
        UsageError, HpcbertError: As `submit`.
    """
    store.claim(directory)
    with store.locked(directory):
        campaign = store.read_manifest(directory)
        new = tuple(
            one
            for one in campaign.arrays
            if one.state != "submitted" and not campaign.superseded(one)
        )
        if not new:
            return campaign
        for array in new:
            store.read_script(directory, array)
        job_id = _queue_left_behind(directory, new, find, means)
        if not job_id:
            new = tuple(replace(array, called=utc(means.now())) for array in new)
            for array in new:
                campaign = store.update_array(campaign, array)
            store.write_manifest(directory, campaign)
            job_id = start(replace(campaign, arrays=new))
        for array in new:
            campaign = store.update_array(campaign, _submitted(array, job_id, means))
        store.write_manifest(directory, campaign)
    return campaign


def _queue_left_behind(
    directory: Path, arrays: tuple[Array, ...], find: Callable[[], str], means: Means
) -> str:
    """Return the queue that an interrupted submission started, living or by its jobs' account."""
    if not any(array.called for array in arrays):
        return ""
    found = find()
    if not found:
        means.pause(1.0)  # It may just have been forked.
        found = find()
    return found or next(filter(None, (witnessed(directory, one) for one in arrays)), "")


def _settle(directory: Path, campaign: Campaign, array: Array, means: Means) -> Array:
    """Call sbatch until it is known what became of the array."""
    for seconds in _PAUSES:
        done, again = _call(directory, campaign, array, means)
        if not again:
            return done
        means.pause(seconds)
    return _call(directory, campaign, array, means)[0]


def _call(directory: Path, campaign: Campaign, array: Array, means: Means) -> tuple[Array, bool]:
    """Call sbatch once; return what became of the array, and whether calling again may help."""
    argv = sbatch_argv(directory, array, after=predecessor(campaign, array))
    environment = commands.submission_environment(os.environ)
    outcome = means.run(argv, cwd=directory, env=environment)
    match = _PARSABLE.fullmatch((outcome.stdout.strip().splitlines() or [""])[-1])
    # Who is killed by a signal tells nothing.
    uncertain = outcome.ok or outcome.returncode < 0 or _says(outcome, _UNCERTAIN)
    job_id = match[1] if outcome.ok and match else ""
    if not job_id and uncertain:
        job_id = _left_behind(directory, array, campaign.user, means)
    if job_id:
        return _submitted(array, job_id, means), False
    state = array.state if uncertain else "refused"
    again = uncertain or _says(outcome, _TRANSIENT)
    return replace(array, state=state, error=complaint(outcome)), again


def _says(outcome: Outcome, phrases: tuple[str, ...]) -> bool:
    return not outcome.ok and any(phrase in outcome.stderr for phrase in phrases)


def _refusal(array: Array, campaign: Campaign) -> SchedulerError:
    there = [one.job_id for one in campaign.arrays if one.state == "submitted"]
    before = f" Submitted before it: {', '.join(there)}." if there else ""
    missing = "no such program" in array.error
    hint = (
        "Run this on a login node, or use the local scheduler (--scheduler local)."
        if missing
        else f"Mend the cause and submit anew, or take up what is left: "
        f"hpcbert submit --resume {campaign.id}"
    )
    return SchedulerError(f"{array.error}.{before}", where=array.name, hint=hint)


@dataclass(frozen=True)
class Check:
    """One thing that a dry run tried.

    Attributes:
        ok: Whether it went well; None where it could not be tried.
    """

    name: str
    ok: bool | None
    detail: str


def dry_run(draft: Draft, *, run: Runner, scheduler: str) -> tuple[Check, ...]:
    """Try every script without writing anything: `bash -n`, and sbatch's own test where it is."""
    checks = []
    sbatch = scheduler == "slurm" and shutil.which("sbatch") is not None
    for array in draft.campaign.arrays:
        text = draft.scripts[array.name]
        syntax = run(["bash", "-n"], stdin=text)
        checks.append(Check(f"bash -n {array.script}", syntax.ok, syntax.stderr.strip()))
        if sbatch:
            test = run(
                ["sbatch", "--test-only"],
                stdin=text,
                env=commands.submission_environment(os.environ),
            )
            away = any(phrase in test.stderr for phrase in (*_TRANSIENT, *_NO_CLUSTER))
            ok = None if away else test.ok
            checks.append(Check(f"sbatch --test-only {array.script}", ok, complaint(test)))
    if scheduler == "slurm" and not sbatch:
        checks.append(Check("sbatch --test-only", None, "There is no sbatch on this machine."))
    return tuple(checks)
