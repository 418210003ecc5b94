"""Adopt: find the job of an array whose submission was interrupted, or not confirmed.

Slurm lists all of the submitter's jobs; `TrackedCampaign.lists` decides which of them belongs to
the array.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from hpcbert.campaign import store
from hpcbert.errors import HpcbertError, SchedulerError
from hpcbert.model import utc
from hpcbert.scheduler.base import Job, begun_by
from hpcbert.scheduler.slurm.questions import query
from hpcbert.slurm import commands

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from hpcbert.campaign.repeats import TrackedCampaign
    from hpcbert.model import Array, Campaign
    from hpcbert.scheduler.base import World
    from hpcbert.slurm.commands import JobRow
    from hpcbert.system.runner import Outcome


def search(watched: TrackedCampaign, array: Array, world: World) -> Job | None:
    """Return the job that an interrupted or unanswered sbatch made, or nothing if there is none.

    Raises:
        SchedulerError: Slurm can't say: it is unknown whether the job exists.
    """
    found = look(watched, array, world)
    if not found:
        world.pause(world.settle)
        watched.records.refresh(watched.directory)
        found = look(watched, array, world)
    return found


def look(watched: TrackedCampaign, array: Array, world: World) -> Job | None:
    """Do the same as `search`, without waiting."""
    told = begun_by(watched, array)
    return Job(told, seen=False) if told else find_job(watched, array, world)


def adopted(
    watched: TrackedCampaign, world: World, *, strict: bool, known: Mapping[str, Array]
) -> TrackedCampaign:
    """Implement `Scheduler.adopted`.

    Args:
        watched: The campaign.
        world: Asks Slurm.
        strict: As there.
        known: Arrays that were found before, by name.
    """
    found = dict(known)
    watched = replace(watched, campaign=_updated(watched.campaign, found))
    campaign = watched.campaign
    try:
        for array in campaign.arrays:
            if not array.unsettled or campaign.superseded(array):
                continue
            with contextlib.nullcontext() if strict else contextlib.suppress(HpcbertError):
                job = look(watched, array, world)
                done = job.of(array, utc(world.now())) if job else array
                if done != array:
                    found[array.name] = done
                    # One array's job can't be another's.
                    watched = replace(watched, campaign=_updated(watched.campaign, found))
    finally:
        if found and (strict or not store.stranger(watched.directory)):
            with contextlib.nullcontext() if strict else contextlib.suppress(HpcbertError):
                _write_down(watched.directory, found)
    return watched


def _write_down(directory: Path, found: Mapping[str, Array]) -> None:
    with store.locked(directory):
        campaign = store.read_manifest(directory)
        store.write_manifest(directory, _updated(campaign, found))


def _updated(campaign: Campaign, found: Mapping[str, Array]) -> Campaign:
    return replace(campaign, arrays=tuple(found.get(one.name, one) for one in campaign.arrays))


def find_job(watched: TrackedCampaign, array: Array, world: World) -> Job | None:
    """Return the job that Slurm has for an array, or nothing.

    squeue lists jobs that wait or run and, for MinJobAge, those that ended; sacct lists older ones.
    Of several, the first counts: submitting the script again by hand makes another.

    Raises:
        SchedulerError: squeue does not answer: it is unknown whether the job exists.
    """
    owner, cluster = watched.campaign.owner, array.cluster
    queue = query(world, commands.squeue_argv(users=[owner], cluster=cluster))
    rows = commands.read_squeue(queue.stdout).rows if queue.ok else ()
    found = _jobs(watched, array, rows)
    if not found:
        argv = commands.sacct_argv([], users=[owner], since=watched.since, cluster=cluster)
        history = query(world, argv)
        rows = commands.read_sacct(history.stdout).rows if history.ok else ()
        found = _jobs(watched, array, rows)
    if not found and not queue.ok:
        name = watched.campaign.id
        raise SchedulerError(
            f"It is unknown whether {array.name} is queued: {complaint(queue)}",
            where=name,
            hint=f"Once Slurm answers: {world.again} {name}; hpcbert submits nothing twice.",
        )
    return min(found, key=lambda job: int(job.job_id), default=None)


def _jobs(watched: TrackedCampaign, array: Array, rows: Iterable[JobRow]) -> list[Job]:
    """Return the jobs that belong to an array by their names, or by their directories."""
    others = {one.job_id for one in watched.campaign.arrays if one.name != array.name}
    free = [row for row in rows if row.job not in others]
    unknown = replace(array, job_id="")
    named = [row for row in free if watched.lists(row, unknown)]
    # Renamed beyond recognition, with unknown script: nothing else is submitted from that
    # directory.
    there = [row for row in free if row.workdir in watched.places and not row.command]
    there = [row for row in there if bool(row.tasks) != array.together]
    lines = named or [row for row in there if watched.labelled(row) is None]
    return [Job(row.job, row.cluster) for row in lines]


def complaint(outcome: Outcome) -> str:
    """Return a failed command's message, as one line."""
    lines = [line.strip() for line in outcome.stderr.splitlines() if line.strip()]
    silent = f"{outcome.argv[0]} ended with status {outcome.returncode} and printed nothing"
    return " ".join(lines) or silent
