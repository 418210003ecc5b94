"""Cancelling exactly the jobs of one campaign."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpcbert import store
from hpcbert.errors import SchedulerError
from hpcbert.slurm import commands, local
from hpcbert.slurm.repeats import Repeat
from hpcbert.slurm.states import parse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcbert.model import Array
    from hpcbert.slurm.repeats import Watched
    from hpcbert.slurm.runner import Runner

# What scancel says of a job that is over (SchedMD/slurm, src/common/slurm_errno.c).
_ENDED = ("Invalid job id specified", "Job/step already completing or completed")


@dataclass(frozen=True)
class Target:
    """What of a campaign there is to cancel.

    Attributes:
        jobs: Ids for scancel; for a local campaign its queue's.
        repeats: Repeats that wait or run in them.
        names: Name of each job.
    """

    jobs: tuple[str, ...]
    repeats: tuple[Repeat, ...]
    names: tuple[str, ...] = ()


def find(watched: Watched, *, run: Runner, environ: Mapping[str, str] = os.environ) -> Target:
    """Return what of a campaign waits or runs.

    Job ids are used again: a job is meant only if squeue shows it with an array's name, the
    campaign's user and a time of submission that fits; scancel is told name and user too. The
    name is what counts, not the id in the manifest: also a script that somebody submitted again
    by hand, or an attempt that a retry took over and somebody requeued, is the campaign's job.

    Raises:
        SchedulerError: squeue does not answer, so nothing can be told for certain.
        UsageError: The campaign is not the caller's alone: others could have named the jobs.
    """
    store.claim(watched.directory)
    store.claim(watched.directory)
    if watched.campaign.scheduler == "local":
        states = local.states(watched.directory, watched.campaign)
        alive = {key for key, state in states.items() if state.kind in {"waiting", "running"}}
        repeats = tuple(repeat for repeat in watched.repeats if repeat.key in alive)
        return Target(tuple(dict.fromkeys(one.array.job_id for one in repeats)), repeats)
    outcome = run(
        commands.squeue_argv(users=[watched.campaign.user]), env=commands.environment(environ)
    )
    if not outcome.ok:
        raise SchedulerError(
            f"squeue does not say what is queued: {outcome.stderr.strip()}",
            hint="Nothing was cancelled. Repeat when Slurm answers.",
        )
    known = {array.name for array in watched.campaign.arrays}
    rows = [row for row in commands.read_squeue(outcome.stdout).rows if row.name in known]
    jobs = [row for row in rows if parse(row.state).kind in {"waiting", "running", "again"}]
    found = [(repeat, row) for repeat in _all(watched) for row in jobs if repeat.owns(row)]
    names = {row.job: row.name for _, row in found}
    meant = dict.fromkeys(replace(one, array=_submitted(watched, one)) for one, _ in found)
    return Target(tuple(names), tuple(meant), tuple(names.values()))


def _all(watched: Watched) -> tuple[Repeat, ...]:
    """Return all repeats of all arrays, to be known by their names alone."""
    return tuple(
        Repeat(watched, replace(array, job_id=""), number)
        for array in watched.campaign.arrays
        for number in array.repeats
    )


def _submitted(watched: Watched, repeat: Repeat) -> Array:
    return next(one for one in watched.campaign.arrays if one.name == repeat.array.name)


def cancel(
    watched: Watched, target: Target, *, run: Runner, environ: Mapping[str, str] = os.environ
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
    for name in dict.fromkeys(target.names):
        ids = [job for job, one in zip(target.jobs, target.names, strict=True) if one == name]
        argv = commands.scancel_argv(ids, user=watched.campaign.user, name=name)
        outcome = run(argv, env=commands.environment(environ))
        if not outcome.ok and not _over(outcome.stderr):
            raise SchedulerError(
                f"scancel: {outcome.stderr.strip() or f'status {outcome.returncode}'}",
                hint=f"See what is left: squeue -j {','.join(target.jobs)}",
            )


def _over(complaint: str) -> bool:
    """Say whether scancel only complains of jobs that ended before it reached them."""
    lines = [line for line in complaint.splitlines() if line.strip()]
    return bool(lines) and all(any(words in line for words in _ENDED) for line in lines)
