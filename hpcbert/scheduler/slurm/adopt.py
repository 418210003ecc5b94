"""Adopt: find the job of an array whose submission was interrupted, or not confirmed.

Slurm lists all of the submitter's jobs; `TrackedCampaign.lists` decides which of them belongs to
the array.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from hpcbert.campaign import store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.errors import HpcbertError, SchedulerError
from hpcbert.model import Array, Campaign, format_utc, parse_utc
from hpcbert.scheduler.base import Job, World
from hpcbert.scheduler.slurm import control
from hpcbert.scheduler.slurm.questions import run_query
from hpcbert.slurm import commands
from hpcbert.slurm.commands import JobRow
from hpcbert.system.runner import Outcome

# Large sites answer squeue from a cache that is up to this many seconds old.
_CACHE_AGE = 60.0


class Listings:
    """The submitter's jobs, as squeue and sacct list them: each is asked once per cluster.

    Args:
        watched: The campaign.
        world: Asks Slurm.
    """

    def __init__(self, watched: TrackedCampaign, world: World) -> None:
        self._owner, self._since, self._world = watched.campaign.owner, watched.since, world
        self._queues: dict[str, Outcome] = {}
        self._histories: dict[str, tuple[JobRow, ...]] = {}

    def queue(self, cluster: str) -> Outcome:
        """Return the answer of squeue: jobs that wait or run, or ended within MinJobAge."""
        if cluster not in self._queues:
            argv = commands.squeue_argv(users=[self._owner], cluster=cluster)
            self._queues[cluster] = run_query(self._world, argv)
        return self._queues[cluster]

    def history(self, cluster: str) -> tuple[JobRow, ...]:
        """Return the lines of sacct; none if it does not answer."""
        if cluster not in self._histories:
            argv = commands.sacct_argv([], users=[self._owner], since=self._since, cluster=cluster)
            answer = run_query(self._world, argv)
            rows = commands.read_sacct(answer.stdout).rows if answer.ok else ()
            self._histories[cluster] = rows
        return self._histories[cluster]


def search_job(watched: TrackedCampaign, array: Array, world: World) -> Job | None:
    """Return the job that an interrupted or unanswered sbatch made, or nothing if there is none.

    Raises:
        SchedulerError: Slurm can't say: it is unknown whether the job exists.
    """
    job = look_up_job(watched, array, world)
    if not job:
        world.pause(world.settle)
        watched.records.refresh(watched.directory)
        job = look_up_job(watched, array, world)
    return job or _ask_controller_for_job(watched, array, world)


def _ask_controller_for_job(watched: TrackedCampaign, array: Array, world: World) -> Job | None:
    """Return an array's job as the controller itself has it; squeue may answer from a cache."""
    answer = run_query(world, control.show_argv(cluster=array.cluster))
    if answer.ok:
        rows = (controller_job.row for controller_job in control.read_jobs(answer.stdout))
        return _choose_job(watched, array, rows)
    age = world.now() - (parse_utc(array.called) or 0.0)
    # The clock may have been set since then.
    world.pause(min(_CACHE_AGE, max(0.0, _CACHE_AGE - age)))
    return look_up_job(watched, array, world)


def look_up_job(
    watched: TrackedCampaign, array: Array, world: World, listings: Listings | None = None
) -> Job | None:
    """Do the same as `search_job`, without waiting."""
    if job_id := watched.find_begun_job(array):
        return Job(job_id, seen=job_id == array.job_id)
    return find_listed_job(watched, array, listings or Listings(watched, world), again=world.again)


def adopt_jobs(
    watched: TrackedCampaign, arrays: Iterable[Array], world: World, *, strict: bool
) -> Iterator[Array]:
    """Yield those of some arrays whose jobs were found, as submitted.

    Raises:
        SchedulerError: If `strict`, Slurm can't say which jobs there are.
    """
    listings = Listings(watched, world)
    for array in arrays:
        with contextlib.nullcontext() if strict else contextlib.suppress(HpcbertError):
            job = look_up_job(watched, array, world, listings)
            submitted = job.of(array, format_utc(world.now())) if job else array
            if submitted != array:
                # One array's job can't be another's.
                campaign = replace_arrays(watched.campaign, {array.name: submitted})
                watched = replace(watched, campaign=campaign)
                yield submitted


def write_arrays(directory: Path, arrays: Mapping[str, Array]) -> None:
    """Record arrays in the manifest on disk.

    Raises:
        HpcbertError: Another process holds the campaign, or the file system refused.
    """
    with store.locked(directory):
        store.write_manifest(directory, replace_arrays(store.read_manifest(directory), arrays))


def replace_arrays(campaign: Campaign, replacements: Mapping[str, Array]) -> Campaign:
    """Return a campaign with arrays replaced by those of the same names."""
    arrays = tuple(replacements.get(array.name, array) for array in campaign.arrays)
    return replace(campaign, arrays=arrays)


def find_listed_job(
    watched: TrackedCampaign, array: Array, listings: Listings, *, again: str
) -> Job | None:
    """Return the job that Slurm has for an array, or nothing.

    squeue lists jobs that wait or run and, for MinJobAge, those that ended; sacct lists older ones.
    Of several, the first counts: submitting the script again by hand makes another.

    Raises:
        SchedulerError: squeue does not answer: it is unknown whether the job exists.
    """
    queue = listings.queue(array.cluster)
    rows = commands.read_squeue(queue.stdout).rows if queue.ok else ()
    job = _choose_job(watched, array, rows)
    job = job or _choose_job(watched, array, listings.history(array.cluster))
    if not job and not queue.ok:
        name = watched.campaign.id
        raise SchedulerError(
            f"It is unknown whether {array.name} is queued: {format_complaint(queue)}",
            where=name,
            hint=f"Once Slurm answers: {again} {name}; hpcbert submits nothing twice.",
        )
    return job


def _choose_job(watched: TrackedCampaign, array: Array, rows: Iterable[JobRow]) -> Job | None:
    """Return the first job that belongs to an array by its marks, or by its directory."""
    job_ids = {
        other_array.job_id
        for other_array in watched.campaign.arrays
        if other_array.name != array.name
    }
    unclaimed_rows = [row for row in rows if row.job not in job_ids]
    unnumbered = replace(array, job_id="")
    matching_rows = [row for row in unclaimed_rows if watched.lists(row, unnumbered)]
    # Renamed beyond recognition, with unknown script: nothing else is submitted from that
    # directory.
    job_rows = [row for row in unclaimed_rows if row.workdir in watched.places and not row.command]
    job_rows = [row for row in job_rows if array.called and bool(row.tasks) != array.together]
    candidates = matching_rows or [
        row for row in job_rows if watched.find_labelled_array(row) is None
    ]
    if not candidates:
        return None
    first_row = min(candidates, key=lambda row: int(row.job))
    # squeue shows when a requeued job was submitted last.
    time = first_row.submit if (first_row.submit or watched.since) < watched.since else None
    changed = compare_identity(watched, array, first_row)
    return Job(first_row.job, first_row.cluster, changed=changed, submit_time=time)


def compare_identity(
    watched: TrackedCampaign, array: Array, row: JobRow
) -> tuple[tuple[str, str, str], ...]:
    """Return where a job's name and directory differ from the request: what, asked, has."""
    name = () if row.name in {"", array.name} else (("JobName", array.name, row.name),)
    if row.workdir in {"", *watched.places}:
        return name
    return (*name, ("WorkDir", array.workdir or str(watched.directory), row.workdir))


def format_complaint(outcome: Outcome) -> str:
    """Return a failed command's message, as one line."""
    lines = [line.strip() for line in outcome.stderr.splitlines() if line.strip()]
    silent = f"{outcome.argv[0]} ended with status {outcome.returncode} and printed nothing"
    return " ".join(lines) or silent
