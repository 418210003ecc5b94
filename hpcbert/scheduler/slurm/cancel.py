"""The jobs of exactly one campaign: which of them live, and ending them."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from hpcbert.campaign.repeats import Repeat
from hpcbert.errors import SchedulerError
from hpcbert.scheduler.base import Target
from hpcbert.scheduler.slurm import questions
from hpcbert.slurm import commands
from hpcbert.slurm.states import parse
from hpcbert.system import ownership

if TYPE_CHECKING:
    from hpcbert.campaign.repeats import TrackedCampaign
    from hpcbert.scheduler.base import World
    from hpcbert.slurm.commands import JobRow

# What scancel says of a job that is over (SchedMD/slurm, src/common/slurm_errno.c).
_ENDED = ("Invalid job id specified", "Job/step already completing or completed")
_LEFT = "Not cancelled: {}."


def find(watched: TrackedCampaign, world: World) -> Target:
    """Return what of a campaign waits or runs.

    Job ids are used again, so the id alone says nothing: `TrackedCampaign.array_of` says which jobs
    are the campaign's, whatever they are called by now. A script that somebody submitted again by
    hand, or an attempt that a retry took over and somebody requeued, is the campaign's job too.
    What a manifest says is not enough, for it may be a copy's, or have been written by anybody:
    jobs of others are left alone, and those of a campaign that lies elsewhere.

    Raises:
        SchedulerError: squeue does not answer, so nothing can be told for certain.
    """
    asked = questions.squeue(watched.repeats)
    outcome, _ = questions.ask(world.run, asked, commands.environment(world.environ))
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


def cancel(watched: TrackedCampaign, target: Target, world: World) -> None:
    """Cancel what `find` found.

    Raises:
        SchedulerError: Slurm refused.
    """
    for cluster in dict.fromkeys(target.clusters):
        known = zip(target.jobs, target.clusters, strict=True)
        argv = commands.scancel_argv([job for job, one in known if one == cluster], cluster=cluster)
        outcome = world.run(argv, env=commands.environment(world.environ))
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
