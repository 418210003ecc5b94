"""Adopting: finding the job of an array whose submission was interrupted, or not confirmed.

Slurm is asked for all that the submitter has; `TrackedCampaign.lists` says which of its jobs is the
array's.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpcbert.campaign import store
from hpcbert.errors import HpcbertError, SchedulerError
from hpcbert.model import utc
from hpcbert.slurm import commands

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from hpcbert.campaign.repeats import TrackedCampaign
    from hpcbert.model import Array
    from hpcbert.slurm.commands import JobRow
    from hpcbert.system.runner import Outcome, Runner

# Seconds between two looks at the queue. sbatch dies with hpcbert, but what it had sent may still
# lie before slurmctld, which answers a query first at times.
SETTLE = 10.0


class UnansweredError(SchedulerError):
    """Slurm can't say what it has, so nothing may be submitted; `where` is the campaign's id."""


@contextlib.contextmanager
def advising(command: str) -> Iterator[None]:
    """Name, where Slurm can't say what it has, the command that goes on once it can.

    Args:
        command: What was asked for, without the campaign: `hpcbert retry`.

    Raises:
        UnansweredError: As what is done raises it, with the command in its hint.
    """
    try:
        yield
    except UnansweredError as error:
        hint = f"Once Slurm answers: {command} {error.where}; nothing is submitted twice."
        raise error.advising(hint) from error


@dataclass(frozen=True)
class Job:
    """A job that was found.

    Attributes:
        cluster: Empty where it was not told.
        seen: Whether Slurm showed it; else the job itself told of it.
    """

    job_id: str
    cluster: str = ""
    seen: bool = True

    def of(self, array: Array, stamp: str) -> Array:
        """Return its array as submitted; `stamp` is the time, ISO 8601 UTC."""
        return replace(
            array,
            state="submitted",
            job_id=self.job_id,
            cluster=(self.cluster or array.cluster) if array.cluster else "",
            submitted=array.submitted or stamp,
            seen=stamp if self.seen else array.seen,
            error="",
        )


def search(
    watched: TrackedCampaign,
    array: Array,
    *,
    run: Runner,
    settle: float = SETTLE,
    pause: Callable[[float], None] = time.sleep,
) -> Job | None:
    """Return the job that an interrupted or unanswered sbatch made, or nothing if there is none.

    Args:
        watched: The campaign.
        array: Whose job it is.
        run: Starts squeue and sacct.
        settle: Seconds to wait before nothing is believed to be nothing.
        pause: Waits a number of seconds.

    Raises:
        UnansweredError: Slurm can't say: whether the job exists is unknown.
    """
    found = look(watched, array, run=run)
    if not found:
        pause(settle)
        watched.records.refresh()
        found = look(watched, array, run=run)
    return found


def look(watched: TrackedCampaign, array: Array, *, run: Runner) -> Job | None:
    """Do what `search` does, without waiting."""
    told = witnessed(watched, array)
    return Job(told, seen=False) if told else find_job(watched, array, run=run)


def adopted(watched: TrackedCampaign, *, run: Runner, strict: bool = False) -> TrackedCampaign:
    """Return a campaign in which interrupted submissions have the jobs that they made.

    Who watches or collects looks for them too. It is written down if that can be done.

    Args:
        watched: The campaign.
        run: Starts squeue and sacct.
        strict: Whether it is an error if Slurm can't say or the manifest can't be written; else
            what is not told at this moment stays as it is.

    Raises:
        HpcbertError: As `strict` says.
    """
    if watched.campaign.scheduler == "local":
        return watched
    for array in watched.campaign.arrays:
        if not array.unsettled or watched.campaign.superseded(array):
            continue
        with contextlib.nullcontext() if strict else contextlib.suppress(HpcbertError):
            job = look(watched, array, run=run)
            done = job.of(array, utc(time.time())) if job else array
            if done != array:
                watched = replace(watched, campaign=store.update_array(watched.campaign, done))
                _note(watched.directory, done)
    return watched


def _note(directory: Path, array: Array) -> None:
    with store.locked(directory):
        campaign = store.read_manifest(directory)
        store.write_manifest(directory, store.update_array(campaign, array))


def witnessed(watched: TrackedCampaign, array: Array) -> str:
    """Return the job that has begun one of an array's repeats by its own account, or nothing."""
    for number in array.repeats:
        record = watched.record(array, number)
        for attempt in sorted(one for one in record.attempts if one >= array.first_attempt):
            if jobs := record.attempt(attempt).jobs:
                return jobs[0].rpartition("_")[0]
    return ""


def find_job(watched: TrackedCampaign, array: Array, *, run: Runner) -> Job | None:
    """Return the job that Slurm has for an array, or nothing.

    squeue knows jobs that wait or run and, for MinJobAge, those that ended; sacct the older ones.
    Of several the first one is it: who submits the script again by hand makes another.

    Raises:
        UnansweredError: squeue does not answer: whether the job exists is unknown.
    """
    environment = commands.environment(os.environ)
    owner, cluster = watched.campaign.owner, array.cluster
    queue = run(commands.squeue_argv(users=[owner], cluster=cluster), env=environment)
    rows = commands.read_squeue(queue.stdout).rows if queue.ok else ()
    found = _jobs(watched, array, rows)
    if not found:
        argv = commands.sacct_argv([], users=[owner], since=watched.since, cluster=cluster)
        history = run(argv, env=environment)
        rows = commands.read_sacct(history.stdout).rows if history.ok else ()
        found = _jobs(watched, array, rows)
    if not found and not queue.ok:
        raise UnansweredError(
            f"Whether {array.name} is queued can't be told: {complaint(queue)}",
            where=watched.campaign.id,
        )
    return min(found, key=lambda job: int(job.job_id), default=None)


def _jobs(watched: TrackedCampaign, array: Array, rows: Iterable[JobRow]) -> list[Job]:
    """Return the jobs that are an array's by what they are called, or by where they are."""
    others = {one.job_id for one in watched.campaign.arrays if one.name != array.name}
    free = [row for row in rows if row.job not in others]
    unknown = replace(array, job_id="")
    named = [row for row in free if watched.lists(row, unknown)]
    # Renamed beyond recognition, and its script not told: nothing else is submitted in there.
    there = [row for row in free if row.workdir in watched.places and not row.command]
    there = [row for row in there if bool(row.tasks) != array.together]
    lines = named or [row for row in there if watched.labelled(row) is None]
    return [Job(row.job, row.cluster) for row in lines]


def complaint(outcome: Outcome) -> str:
    """Return what a command said when it failed, as one line."""
    lines = [line.strip() for line in outcome.stderr.splitlines() if line.strip()]
    silent = f"{outcome.argv[0]} ended with status {outcome.returncode} and said nothing"
    return " ".join(lines) or silent
