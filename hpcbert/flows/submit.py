"""Submitting: write a drafted campaign down, hand its arrays to the scheduler, remember the ids.

The order is what makes it safe: every script and the manifest with all arrays `intended` are on
disk before sbatch is called first; that it is about to be called for an array, and what it
answered, are on disk before it is called for the next one. A crash in between leaves a job that
was submitted in the campaign, which the next `submit` of the campaign finds and adopts.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpcbert.campaign import store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.errors import HpcbertError, IncompleteError, SchedulerError
from hpcbert.model import utc
from hpcbert.scheduler.slurm.adopt import Job, advising, complaint, witnessed
from hpcbert.scheduler.slurm.calls import RESUME, TRANSIENT, Means, left_behind, settled
from hpcbert.slurm import commands

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hpcbert.model import Array, Campaign
    from hpcbert.script.draft import Draft
    from hpcbert.system.runner import Runner

# Where there is no configuration, there is no cluster to ask.
_NO_CLUSTER = ("Could not establish a configuration source",)


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
    with store.locked(directory), advising(means.again):
        return hand_over(directory, store.read_manifest(directory), means)


def hand_over(directory: Path, campaign: Campaign, means: Means) -> Campaign:
    """Do what `submit` does, for who holds the campaign's lock."""
    while array := _next(campaign):
        means.check()
        store.read_script(directory, array)
        found = left_behind(TrackedCampaign(directory, campaign), array, means)
        if found:
            campaign = _record(directory, campaign, found.of(array, utc(means.now())))
            continue
        tried = replace(array, called=utc(means.now()), workdir=os.path.realpath(directory))
        campaign = _record(directory, campaign, tried)
        done, verdict = settled(TrackedCampaign(directory, campaign), tried, means)
        if verdict == "full" and len(done.repeats) > 1 and not done.together:
            campaign = _halved(campaign, done)
            store.write_manifest(directory, campaign)
            continue
        campaign = _record(directory, campaign, done)
        if verdict == "full":
            raise _full(done, campaign)
        if done.state != "submitted":
            raise _refusal(done, campaign, means.again)
    return campaign


def _next(campaign: Campaign) -> Array | None:
    """Return the first array that is not in Slurm's hands yet."""
    open_ = (one for one in campaign.arrays if one.state != "submitted")
    return next((one for one in open_ if not campaign.superseded(one)), None)


def _halved(campaign: Campaign, array: Array) -> Campaign:
    """Return a campaign with an array made two, for a limit on how many jobs one may have."""
    middle = (len(array.repeats) + 1) // 2
    first = _part(array, array.repeats[:middle], array.name)
    rest = _part(array, array.repeats[middle:], f"{array.name}.p{array.repeats[middle]}")
    names = [one.name for one in campaign.arrays]
    at = names.index(array.name)
    return replace(
        campaign, arrays=(*campaign.arrays[:at], first, rest, *campaign.arrays[at + 1 :])
    )


def _part(array: Array, repeats: tuple[int, ...], name: str) -> Array:
    why = tuple(one for one in array.why if one[0] in repeats)
    return replace(array, name=name, repeats=repeats, why=why, error="")


class NoRoomError(IncompleteError):
    """The person has as many jobs as the cluster allows; the rest can be submitted later."""


def _full(array: Array, campaign: Campaign) -> NoRoomError:
    left = sum(not one.job_id for one, _ in campaign.current)
    there = len(campaign.current) - left
    return NoRoomError(
        f"Slurm takes no more jobs of yours now: {there} repeats are submitted, {left} are left. "
        f"It says: {array.error}",
        where=campaign.id,
        hint=f"When some have ended: {RESUME} {campaign.id}; with --wait it goes on by itself.",
    )


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
            hint=f"Make room, then: {RESUME} {campaign.id} finds it.",
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
        job_id = _queue_left_behind(TrackedCampaign(directory, campaign), new, find, means)
        if not job_id:
            new = tuple(replace(array, called=utc(means.now())) for array in new)
            for array in new:
                campaign = store.update_array(campaign, array)
            store.write_manifest(directory, campaign)
            job_id = start(replace(campaign, arrays=new))
        for array in new:
            campaign = store.update_array(
                campaign, Job(job_id, seen=False).of(array, utc(means.now()))
            )
        store.write_manifest(directory, campaign)
    return campaign


def _queue_left_behind(
    watched: TrackedCampaign, arrays: tuple[Array, ...], find: Callable[[], str], means: Means
) -> str:
    """Return the queue that an interrupted submission started, living or by its jobs' account."""
    if not any(array.called for array in arrays):
        return ""
    found = find()
    if not found:
        means.pause(1.0)  # It may just have been forked.
        found = find()
    return found or next(filter(None, (witnessed(watched, one) for one in arrays)), "")


def _refusal(array: Array, campaign: Campaign, again: str) -> SchedulerError:
    """Return the error about an array that Slurm refused, or may not have heard of.

    Args:
        array: As it is now.
        campaign: Its own.
        again: The command that goes on with one that was not refused.
    """
    there = [one.job_id for one in campaign.arrays if one.state == "submitted"]
    before = f" Submitted before it: {', '.join(there)}." if there else ""
    if "no such program" in array.error:
        hint = "Run this on a login node, or use the local scheduler (--scheduler local)."
    elif array.state == "refused":
        hint = f"Fix the cause, then submit what is left: {RESUME} {campaign.id}"
    else:
        hint = f"Once Slurm answers: {again} {campaign.id}; nothing is submitted twice."
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
            away = any(phrase in test.stderr for phrase in (*TRANSIENT, *_NO_CLUSTER))
            ok = None if away else test.ok
            checks.append(Check(f"sbatch --test-only {array.script}", ok, complaint(test)))
    if scheduler == "slurm" and not sbatch:
        checks.append(Check("sbatch --test-only", None, "There is no sbatch on this machine."))
    return tuple(checks)
