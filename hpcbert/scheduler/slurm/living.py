"""Which campaigns and repeats have living jobs, be it although they are believed to be over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcbert.campaign.repeats import Lines, Repeat
from hpcbert.errors import SchedulerError
from hpcbert.scheduler.slurm import questions
from hpcbert.slurm import commands
from hpcbert.slurm.states import parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcbert.campaign.repeats import TrackedCampaign
    from hpcbert.model import Array
    from hpcbert.scheduler.base import World
    from hpcbert.slurm.commands import JobRow
    from hpcbert.slurm.ladder import Answer


def living(campaigns: Sequence[TrackedCampaign], world: World) -> Sequence[TrackedCampaign]:
    """Return the campaigns that are not over for certain.

    squeue is asked once, about all of them: a job whose attempt wrote its end may wait again.
    Where it does not answer, an attempt that a signal ended may go on too; where there is no
    squeue, the jobs' own account has to do.
    """
    answer = _queue(campaigns, world)
    return [one for one in campaigns if _lives(one, answer)]


def _queue(campaigns: Sequence[TrackedCampaign], world: World) -> Lines | Answer:
    """Return what squeue lists as alive, or how it failed."""
    repeats = [repeat for one in campaigns for repeat in one.repeats]
    outcome, answer = questions.ask(
        world.run, questions.squeue(repeats), commands.environment(world.environ)
    )
    rows = [row for row in commands.read_squeue(outcome.stdout).rows if parse(row.state).kind.alive]
    return Lines(rows) if outcome.ok else answer


def _lives(one: TrackedCampaign, queue: Lines | Answer) -> bool:
    if isinstance(queue, Lines):
        return any(queue.newest(repeat)[0] for repeat in one.repeats)
    return any(_may_go_on(repeat, certain=queue == "absent") for repeat in one.repeats)


def _may_go_on(repeat: Repeat, *, certain: bool) -> bool:
    """Say whether a repeat may wait or run by the account of its newest attempt alone.

    Args:
        repeat: Which one.
        certain: Whether nobody can have requeued an attempt that a signal ended.
    """
    return repeat.newest.end_state is None or (bool(repeat.newest.signal) and not certain)


def refuse(watched: TrackedCampaign, missing: Sequence[tuple[Array, int]], world: World) -> None:
    """Raise an error if Slurm lists a job of a repeat without a number as alive.

    The submitter's jobs are looked through for what the campaign calls its own, and its job ids
    for any name and owner: what waits or runs under one of them is taken for the campaign's,
    unless it was submitted in another directory and is called otherwise too.
    """
    if not missing:
        return
    rows = [row for row in _listed(watched, world) if not parse(row.state).kind.over]
    for array, number in missing:
        for row in rows:
            if _is_of(watched, array, number, row):
                where = f"{row.job}_{number}" if row.tasks else row.job
                raise SchedulerError(
                    f"Repeat {number} of {array.point.key} is not over: Slurm lists job {where} "
                    f"as {row.state}, under the name {row.name!r} of user {row.user}.",
                    where=watched.campaign.id,
                    hint=f"Nothing was submitted. Wait for it, or end it: scancel {where}",
                )


def _listed(watched: TrackedCampaign, world: World) -> list[JobRow]:
    """Return the submitter's jobs, and those that have the campaign's ids, whoever they are."""
    environment = commands.environment(world.environ)
    text = ""
    for cluster in questions.by_cluster(watched.repeats):
        arrays = [one for one in watched.campaign.arrays if one.cluster == cluster and one.job_id]
        ids = [one.job_id for one in arrays]
        wanted = [commands.squeue_argv(users=[watched.campaign.owner], cluster=cluster)]
        wanted += [commands.squeue_argv(ids=ids, cluster=cluster)] if ids else []
        for argv in wanted:
            outcome = world.run(argv, env=environment)
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
