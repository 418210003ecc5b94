"""Adopting: finding the job of an array whose submission was interrupted.

The job's name carries campaign, point and retry, so that it can be found without its id.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from hpcbert import store
from hpcbert.errors import HpcbertError, SchedulerError
from hpcbert.slurm import commands

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hpcbert.model import Array, Campaign
    from hpcbert.slurm.runner import Outcome, Runner

# Seconds between two looks at the queue. sbatch dies with hpcbert, but what it had sent may still
# lie before slurmctld, which answers a query first at times.
SETTLE = 10.0


def search(
    directory: Path,
    array: Array,
    user: str,
    *,
    run: Runner,
    since: str,
    settle: float = SETTLE,
    pause: Callable[[float], None] = time.sleep,
) -> str:
    """Return the job that an interrupted or unanswered sbatch made, or nothing if there is none.

    Args:
        directory: The campaign.
        array: Whose job it is.
        user: Its owner.
        run: Starts squeue and sacct.
        since: When sbatch was called, ISO 8601 UTC.
        settle: Seconds to wait before nothing is believed to be nothing.
        pause: Waits a number of seconds.

    Raises:
        SchedulerError: Slurm can't say: whether the job exists is unknown.
    """
    found = witnessed(directory, array) or find_job(array, user, run=run, since=since)
    if not found:
        pause(settle)
        found = find_job(array, user, run=run, since=since)
    return found


def adopted(directory: Path, campaign: Campaign, *, run: Runner) -> Campaign:
    """Return a campaign in which interrupted submissions have the jobs that they made.

    Who watches or collects looks for them too. It is written down if that can be done; what Slurm
    does not tell at this moment stays as it is.
    """
    if campaign.scheduler == "local":
        return campaign
    for array in campaign.arrays:
        if array.state != "intended" or not array.called or campaign.superseded(array):
            continue
        with contextlib.suppress(HpcbertError):
            since = array.called
            job_id = witnessed(directory, array) or find_job(
                array, campaign.user, run=run, since=since
            )
            if job_id:
                done = replace(array, state="submitted", job_id=job_id, submitted=since)
                campaign = store.update_array(campaign, done)
                _note(directory, done)
    return campaign


def _note(directory: Path, array: Array) -> None:
    with store.locked(directory):
        campaign = store.read_manifest(directory)
        store.write_manifest(directory, store.update_array(campaign, array))


def witnessed(directory: Path, array: Array) -> str:
    """Return the job that has begun one of an array's repeats by its own account, or nothing."""
    for number in array.repeats:
        for event in store.read_status(directory, array, number):
            attempt, job = event.get("attempt"), event.get("job")
            own = isinstance(attempt, int) and attempt >= array.first_attempt
            if own and isinstance(job, str) and event.get("event") == "start":
                return job.rpartition("_")[0]
    return ""


def find_job(array: Array, user: str, *, run: Runner, since: str) -> str:
    """Return the id of the job that carries this array's name, or nothing.

    squeue knows jobs that wait or run and, for MinJobAge, those that ended; sacct the older ones.
    Of several the first one is it: who submits the script again by hand makes another.

    Raises:
        SchedulerError: squeue does not answer: whether the job exists is unknown.
    """
    environment = commands.environment(os.environ)
    queue = run(
        [
            "squeue",
            "--noheader",
            "--all",
            "--states=all",
            f"--user={user}",
            f"--name={array.name}",
            "-o%F",
        ],
        env=environment,
    )
    ids = queue.stdout.split() if queue.ok else []
    if not ids:
        words = ["sacct", "-X", "-P", "-n", "-o", "JobIDRaw,JobID", f"--user={user}"]
        history = run(
            [*words, f"--name={array.name}", f"--starttime={since[:19]}"],
            env={**environment, "TZ": "UTC"},
        )
        lines = history.stdout.splitlines() if history.ok else []
        ids = [line.partition("|")[2].partition("_")[0] for line in lines]
    numbers = sorted({int(one) for one in ids if one.isascii() and one.isdigit()})
    if not numbers and not queue.ok:
        raise SchedulerError(
            f"Whether {array.name} is queued can't be told: {complaint(queue)}",
            hint="Repeat once Slurm answers; nothing is submitted twice.",
        )
    return str(numbers[0]) if numbers else ""


def complaint(outcome: Outcome) -> str:
    """Return what a command said when it failed, as one line."""
    lines = [line.strip() for line in outcome.stderr.splitlines() if line.strip()]
    silent = f"{outcome.argv[0]} ended with status {outcome.returncode} and said nothing"
    return " ".join(lines) or silent
