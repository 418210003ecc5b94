"""Jobs that still live although their repeats are believed to be over: they are not doubled."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hpcbert.campaign.repeats import Repeat
from hpcbert.errors import SchedulerError
from hpcbert.scheduler.slurm import questions
from hpcbert.slurm import commands
from hpcbert.slurm.states import parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcbert.campaign.repeats import TrackedCampaign
    from hpcbert.model import Array
    from hpcbert.slurm.commands import JobRow
    from hpcbert.system.runner import Runner


def refuse(watched: TrackedCampaign, lacks: Sequence[tuple[Array, int]], *, run: Runner) -> None:
    """Raise an error if Slurm lists a job of a repeat that lacks a number as alive.

    The submitter's jobs are looked through for what the campaign calls its own, and its job ids
    for any name and owner: what waits or runs under one of them is taken for the campaign's,
    unless it was submitted in another directory and is called otherwise too.

    Args:
        watched: The campaign.
        lacks: Arrays and numbers of repeats.
        run: Starts squeue.

    Raises:
        SchedulerError: There is such a job, or squeue does not answer.
    """
    if not lacks or watched.campaign.scheduler == "local":
        return
    rows = [row for row in _listed(watched, run) if not parse(row.state).kind.over]
    for array, number in lacks:
        for row in rows:
            if _is_of(watched, array, number, row):
                where = f"{row.job}_{number}" if row.tasks else row.job
                raise SchedulerError(
                    f"Repeat {number} of {array.point.key} is not over: Slurm lists job {where} "
                    f"as {row.state}, under the name {row.name!r} of user {row.user}.",
                    where=watched.campaign.id,
                    hint=f"Nothing was submitted. Wait for it, or end it: scancel {where}",
                )


def _listed(watched: TrackedCampaign, run: Runner) -> list[JobRow]:
    """Return the submitter's jobs, and those that have the campaign's ids, whoever they are."""
    environment = commands.environment(os.environ)
    text = ""
    for cluster in questions.by_cluster(watched.repeats):
        arrays = [one for one in watched.campaign.arrays if one.cluster == cluster and one.job_id]
        ids = [one.job_id for one in arrays]
        wanted = [commands.squeue_argv(users=[watched.campaign.owner], cluster=cluster)]
        wanted += [commands.squeue_argv(ids=ids, cluster=cluster)] if ids else []
        for argv in wanted:
            outcome = run(argv, env=environment)
            if not outcome.ok and not commands.unknown_to_slurm(outcome.stderr):
                raise SchedulerError(
                    f"Slurm does not say what waits or runs: {outcome.stderr.strip()}",
                    where=watched.campaign.id,
                    hint="Nothing was submitted. Once Slurm answers: "
                    f"hpcbert retry {watched.campaign.id}",
                )
            text += f"{outcome.stdout}\n" if outcome.ok else ""
    return list(commands.read_squeue(text).rows)


def _is_of(watched: TrackedCampaign, array: Array, number: int, row: JobRow) -> bool:
    """Say whether a living job may be that of one of a point's repeats."""
    same = [
        one for one in watched.campaign.arrays if one.point == array.point and number in one.repeats
    ]
    owner = watched.array_of(row)
    if owner is not None:
        return owner in same and Repeat(watched, owner, number).is_in(row)
    elsewhere = bool(row.workdir) and row.workdir not in watched.places
    by_id = [one for one in same if one.job_id == row.job and not elsewhere]
    return any(Repeat(watched, one, number).is_in(row) for one in by_id)
