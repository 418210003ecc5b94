"""Cancelling exactly the jobs of one campaign."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcbert.errors import SchedulerError
from hpcbert.slurm import commands, local
from hpcbert.slurm.repeats import Lines
from hpcbert.slurm.states import parse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcbert.slurm.repeats import Repeat, Watched
    from hpcbert.slurm.runner import Runner


@dataclass(frozen=True)
class Target:
    """What of a campaign there is to cancel.

    Attributes:
        jobs: Ids for scancel; for a local campaign its queue's.
        repeats: Repeats that wait or run in them.
    """

    jobs: tuple[str, ...]
    repeats: tuple[Repeat, ...]


def find(watched: Watched, *, run: Runner, environ: Mapping[str, str] = os.environ) -> Target:
    """Return what of a campaign waits or runs.

    Job ids are used again: an id counts only if squeue shows it with the array's name, the
    campaign's user and a time of submission that fits.

    Raises:
        SchedulerError: squeue does not answer, so nothing can be told for certain.
    """
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
    rows = commands.read_squeue(outcome.stdout).rows
    lines = Lines(row for row in rows if parse(row.state).kind in {"waiting", "running", "again"})
    found = [(one, row) for one in watched.repeats if (row := lines.newest(one)[0])]
    jobs = dict.fromkeys(row.job for _, row in found)
    return Target(tuple(jobs), tuple(repeat for repeat, _ in found))


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
    outcome = run(commands.scancel_argv(target.jobs), env=commands.environment(environ))
    if not outcome.ok:
        raise SchedulerError(
            f"scancel: {outcome.stderr.strip() or f'status {outcome.returncode}'}",
            hint=f"See what is left: squeue -j {','.join(target.jobs)}",
        )
