"""Submitting: write a drafted campaign down, hand its arrays to the scheduler, remember the ids.

The order is what makes it safe: every script and the manifest with all arrays `intended` are on
disk before sbatch is called first; each job id is on disk before sbatch is called again. A crash in
between leaves a job whose name carries campaign and point, which `resume` finds and adopts.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpcbert import store
from hpcbert.errors import SchedulerError, UsageError
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
    "Unable to contact slurm controller",
    "Slurm temporarily unable to accept job",
    "Resource temporarily unavailable",
    "Zero Bytes were transmitted or received",
)
_NO_CLUSTER = ("Could not establish a configuration source",)
# What it says when the request may or may not have arrived.
_UNCERTAIN = ("Socket timed out", "Unexpected message received", "gave no answer within")
_PAUSES = (1.0, 2.0, 4.0)
_PARSABLE = re.compile(r"(\d+)(?:;\S+)?")


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
    """Return the job that an array waits for: that of the array before it, if it must wait."""
    before = campaign.arrays[: campaign.arrays.index(array)]
    ids = [one.job_id for one in before if one.job_id]
    return ids[-1] if ids and not campaign.concurrent_points else ""


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


def submit(
    directory: Path,
    campaign: Campaign,
    *,
    run: Runner,
    now: Callable[[], float] = time.time,
    pause: Callable[[float], None] = time.sleep,
) -> Campaign:
    """Hand every array that is not submitted yet to Slurm, adopting what is there already.

    Args:
        directory: The campaign.
        campaign: Its manifest as on disk.
        run: Starts sbatch and squeue.
        now: Clock, seconds since the epoch.
        pause: Waits a number of seconds between attempts.

    Returns:
        The manifest as it is on disk in the end.

    Raises:
        SchedulerError: Slurm refused an array or can't be reached. Everything submitted so far
            is in the manifest.
        UsageError: Somebody else is submitting this campaign at this moment.
    """
    with store.locked(directory):
        for array in campaign.arrays:
            if array.state == "submitted":
                continue
            _verify(directory, array)
            argv = sbatch_argv(directory, array, after=predecessor(campaign, array))
            done = _settle(argv, directory, array, campaign.user, run, now=now, pause=pause)
            campaign = store.update_array(campaign, done)
            store.write_manifest(directory, campaign)
            if done.state != "submitted":
                raise _refusal(done, campaign)
    return campaign


def enqueue(
    directory: Path,
    campaign: Campaign,
    *,
    start: Callable[[], str],
    now: Callable[[], float] = time.time,
) -> Campaign:
    """Hand all arrays to the local queue, which `start` starts and names.

    Returns:
        The manifest as it is on disk in the end.
    """
    with store.locked(directory):
        job_id, stamp = start(), utc(now())
        for array in campaign.arrays:
            done = replace(array, state="submitted", job_id=job_id, submitted=stamp)
            campaign = store.update_array(campaign, done)
        store.write_manifest(directory, campaign)
    return campaign


def resume(
    directory: Path,
    *,
    run: Runner,
    now: Callable[[], float] = time.time,
    pause: Callable[[float], None] = time.sleep,
) -> Campaign:
    """Take up an interrupted submission: adopt what Slurm has, submit the rest.

    Raises:
        SchedulerError: As `submit`, or Slurm can't say what it has.
        UsageError: There is no such campaign, or its scripts were changed.
    """
    campaign = store.read_manifest(directory)
    with store.locked(directory):
        for array in campaign.arrays:
            if array.state == "submitted":
                continue
            job_id = find_job(array, campaign.user, run=run, since=campaign.created)
            if job_id:
                found = replace(
                    array, state="submitted", job_id=job_id, submitted=utc(now()), error=""
                )
                campaign = store.update_array(campaign, found)
                store.write_manifest(directory, campaign)
    return submit(directory, campaign, run=run, now=now, pause=pause)


def _verify(directory: Path, array: Array) -> None:
    """Refuse a script that is no longer what the manifest says was rendered."""
    path = directory / array.script
    text = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(text).hexdigest() != array.script_sha256:
        raise UsageError(
            "The script is not the one that was rendered for this campaign.",
            where=str(path),
            hint="Submit anew, so that manifest and script agree.",
        )


def _settle(
    argv: list[str],
    directory: Path,
    array: Array,
    user: str,
    run: Runner,
    *,
    now: Callable[[], float],
    pause: Callable[[float], None],
) -> Array:
    """Call sbatch until it is known what became of the array."""
    started = now()
    outcome = _sbatch(argv, directory, run, pause)
    match = _PARSABLE.fullmatch((outcome.stdout.strip().splitlines() or [""])[-1])
    job_id = match[1] if outcome.ok and match else ""
    uncertain = outcome.ok or _says(outcome, _UNCERTAIN)
    if not job_id and uncertain:
        job_id = find_job(array, user, run=run, since=utc(started))
    if job_id:
        return replace(array, state="submitted", job_id=job_id, submitted=utc(now()), error="")
    state = array.state if uncertain else "refused"
    return replace(array, state=state, error=_complaint(outcome))


def _sbatch(
    argv: list[str], directory: Path, run: Runner, pause: Callable[[float], None]
) -> Outcome:
    environment = commands.submission_environment(os.environ)
    outcome = run(argv, cwd=directory, env=environment)
    for seconds in _PAUSES:
        if not _says(outcome, _TRANSIENT):
            break
        pause(seconds)
        outcome = run(argv, cwd=directory, env=environment)
    return outcome


def _says(outcome: Outcome, phrases: tuple[str, ...]) -> bool:
    return not outcome.ok and any(phrase in outcome.stderr for phrase in phrases)


def _complaint(outcome: Outcome) -> str:
    lines = [line.strip() for line in outcome.stderr.splitlines() if line.strip()]
    return " ".join(lines) or f"sbatch ended with status {outcome.returncode} and said nothing"


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


def find_job(array: Array, user: str, *, run: Runner, since: str) -> str:
    """Return the id of the job that carries this array's name, or nothing.

    squeue knows jobs that wait or run and, for MinJobAge, those that ended; sacct the older ones.

    Raises:
        SchedulerError: Neither could be asked: whether the job exists is unknown.
    """
    environment = commands.environment(os.environ)
    queue = run(
        ["squeue", "--noheader", "--states=all", f"--user={user}", f"--name={array.name}", "-o%F"],
        env=environment,
    )
    ids = queue.stdout.split() if queue.ok else []
    if not ids:
        words = ["sacct", "-X", "-P", "-n", "-o", "JobIDRaw,JobID", f"--user={user}"]
        history = run(
            [*words, f"--name={array.name}", f"--starttime={since[:19]}"],
            env={**environment, "TZ": "UTC"},
        )
        if not queue.ok and not history.ok:
            raise SchedulerError(
                f"Whether {array.name} is queued can't be told: {_complaint(queue)}",
                hint="Repeat once Slurm answers; nothing is submitted twice.",
            )
        lines = history.stdout.splitlines() if history.ok else []
        ids = [line.partition("|")[2].partition("_")[0] for line in lines]
    numbers = sorted({int(one) for one in ids if one.isdigit()})
    return str(numbers[-1]) if numbers else ""


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
            checks.append(Check(f"sbatch --test-only {array.script}", ok, _complaint(test)))
    if scheduler == "slurm" and not sbatch:
        checks.append(Check("sbatch --test-only", None, "There is no sbatch on this machine."))
    return tuple(checks)
