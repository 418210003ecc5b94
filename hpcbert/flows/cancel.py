"""Cancelling exactly the jobs of one campaign."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcbert.campaign import store
from hpcbert.campaign.repeats import Repeat
from hpcbert.errors import SchedulerError
from hpcbert.scheduler.local import queue as local
from hpcbert.scheduler.slurm import questions
from hpcbert.slurm import commands
from hpcbert.slurm.states import parse
from hpcbert.system import ownership

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcbert.campaign.repeats import TrackedCampaign
    from hpcbert.slurm.commands import JobRow
    from hpcbert.system.runner import Runner

# What scancel says of a job that is over (SchedMD/slurm, src/common/slurm_errno.c).
_ENDED = ("Invalid job id specified", "Job/step already completing or completed")
_LEFT = "Not cancelled: {}."


@dataclass(frozen=True)
class Target:
    """What of a campaign there is to cancel.

    Attributes:
        jobs: Ids for scancel; for a local campaign its queue's.
        repeats: Repeats that wait or run in them.
        clusters: Of each job; empty for the one of Slurm's configuration.
        left: What the manifest names and is not this campaign's: left alone, a sentence each.
    """

    jobs: tuple[str, ...]
    repeats: tuple[Repeat, ...]
    clusters: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


def find(
    watched: TrackedCampaign, *, run: Runner, environ: Mapping[str, str] = os.environ
) -> Target:
    """Return what of a campaign waits or runs.

    Job ids are used again, so the id alone says nothing: `TrackedCampaign.array_of` says which jobs
    are the campaign's, whatever they are called by now. A script that somebody submitted again by
    hand, or an attempt that a retry took over and somebody requeued, is the campaign's job too.
    What a manifest says is not enough, for it may be a copy's, or have been written by anybody:
    jobs of others are left alone, and those of a campaign that lies elsewhere.

    Raises:
        SchedulerError: squeue does not answer, so nothing can be told for certain.
        UsageError: The campaign is not the caller's alone: others could have named the jobs.
    """
    store.claim(watched.directory)
    place = watched.directory
    if watched.campaign.scheduler == "local":
        states = local.states(watched)
        alive = {key for key, state in states.items() if state.kind.alive}
        repeats = tuple(repeat for repeat in watched.repeats if repeat.key in alive)
        queues = dict.fromkeys(one.array.job_id for one in repeats)
        foreign = {job: where for job in queues if (where := local.elsewhere(place, job))}
        left = tuple(_LEFT.format(f"{job} runs {where}") for job, where in foreign.items())
        repeats = tuple(one for one in repeats if one.array.job_id not in foreign)
        return Target(tuple(one for one in queues if one not in foreign), repeats, left=left)
    asked = questions.squeue(watched.repeats)
    outcome, _ = questions.ask(run, asked, commands.environment(environ))
    if not outcome.ok:
        raise SchedulerError(
            f"squeue does not say what is queued: {outcome.stderr.strip()}",
            hint=f"Nothing was cancelled. Once Slurm answers: hpcbert cancel {watched.campaign.id}",
        )
    rows = commands.read_squeue(outcome.stdout).rows
    going_on = [row for row in rows if parse(row.state).kind.alive]
    named = [(row, array) for row in going_on if (array := watched.array_of(row))]
    foreign = {row.job: why for row, _ in named if (why := _foreign(watched, row))}
    found = [(row, array) for row, array in named if row.job not in foreign]
    jobs = dict.fromkeys((row.job, row.cluster if one.cluster else "") for row, one in found)
    meant = dict.fromkeys(
        repeat
        for row, array in found
        for repeat in (Repeat(watched, array, number) for number in array.repeats)
        if repeat.is_in(row)
    )
    return Target(
        tuple(job for job, _ in jobs),
        tuple(meant),
        tuple(one for _, one in jobs),
        tuple(_LEFT.format(why) for why in foreign.values()),
    )


def _foreign(watched: TrackedCampaign, row: JobRow) -> str:
    """Say how a job is none of this campaign's although its manifest names it; empty: it is one.

    A job was submitted in its campaign's directory, or by hand and with a script from there. Only
    where that directory is gone may the campaign have been moved.
    """
    if row.uid is not None and row.uid != os.geteuid():
        return f"job {row.job} belongs to {ownership.name(row.uid)}"
    here = watched.directory
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        own = {str(here.absolute()), str(here.resolve())}
        by_hand = any(f"{place}/scripts/" in row.command for place in own)
        if row.workdir and not by_hand and not here.samefile(row.workdir):
            return f"job {row.job} was submitted in {row.workdir}, not in {here}"
    return ""


def cancel(
    watched: TrackedCampaign,
    target: Target,
    *,
    run: Runner,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Cancel what `find` found.

    Raises:
        SchedulerError: Slurm refused, or the local queue is gone.
    """
    if not target.jobs:
        return
    if watched.campaign.scheduler == "local":
        if not local.cancel(watched.directory, watched.campaign):
            raise SchedulerError("The local queue has ended already; there is nothing to cancel.")
        return
    for cluster in dict.fromkeys(target.clusters):
        known = zip(target.jobs, target.clusters, strict=True)
        argv = commands.scancel_argv([job for job, one in known if one == cluster], cluster=cluster)
        outcome = run(argv, env=commands.environment(environ))
        if not outcome.ok and not _over(outcome.stderr):
            raise SchedulerError(
                f"scancel: {outcome.stderr.strip() or f'status {outcome.returncode}'}",
                hint=f"See what is left: squeue -j {','.join(target.jobs)}; then again: "
                f"hpcbert cancel {watched.campaign.id}",
            )


def _over(complaint: str) -> bool:
    """Say whether scancel only complains of jobs that ended before it reached them."""
    lines = [line for line in complaint.splitlines() if line.strip()]
    return bool(lines) and all(any(words in line for words in _ENDED) for line in lines)
