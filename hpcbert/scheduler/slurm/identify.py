"""Which of Slurm's jobs is an array's.

An interrupted or unanswered sbatch may have made a job: squeue, sacct and the controller are
searched for it. A site may wrap sbatch, and Slurm uses job ids again, so an id that sbatch printed
counts only once the controller shows that job as the array's. If sbatch ended with status 0 and the
controller shows a job of the submitter's without any mark of the array, the wrapper changed them
all: the id stays, in doubt, until the job itself records its start.

Keys of scontrol are those of SchedMD/slurm, src/api/job_info.c, 22.05 to 26.05.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path

from hpcbert.campaign import store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.errors import HpcbertError, SchedulerError
from hpcbert.model import Array, Campaign, format_utc, parse_utc
from hpcbert.scheduler.base import Job, SchedulerContext
from hpcbert.scheduler.slurm.cluster import run_query
from hpcbert.script.request import controller_fields
from hpcbert.slurm import commands
from hpcbert.slurm.commands import JobRow
from hpcbert.system.grouping import group
from hpcbert.system.runner import MemoRunner, Outcome
from hpcbert.timelimit import TimeLimit

# These stand alone on a line or at its end, so that they may contain blanks.
_WHOLE = re.compile(r"\b(JobName|Command|WorkDir|StdOut|StdErr|Comment)=(.*)")
_PAIR = re.compile(r"(?:^|\s)([A-Z][\w:/]*)=(\S*)")
_USER = re.compile(r"(.*)\((\d{1,10})\)")
_ANSWER = re.compile(r"(?:Submitted batch job )?(\d{1,18})(?:(?:;| on cluster )([\w.-]+))?")
_IGNORED = {"", "(null)", "N/A", "Unknown"}
# Large sites answer squeue from a cache that is up to this many seconds old.
_CACHE_AGE = 60.0


def parse_job_ids(stdout: str) -> tuple[tuple[str, str], ...]:
    """Return the job ids, each with its cluster, that `sbatch --parsable` may have meant.

    A site's own sbatch may print lines before and after, or drop the option: the last line comes
    first here.
    """
    matches = (_ANSWER.fullmatch(line.strip()) for line in reversed(stdout.splitlines()))
    return tuple(dict.fromkeys((match[1], match[2] or "") for match in matches if match))


def show_argv(job_id: str = "", *, cluster: str = "") -> list[str]:
    """Return the query for a job, or for all, including those in hidden partitions."""
    words = ["scontrol", "--all", "show", "job", *filter(None, [job_id])]
    return commands.add_cluster_option(words, cluster)


def read_jobs(text: str) -> Iterator[tuple[JobRow, dict[str, str]]]:
    """Read the output of `show_argv`: each record of a job, with everything shown of it, by key."""
    for block in text.strip().split("\n\n"):
        fields: dict[str, str] = {}
        for line in block.splitlines():
            match = _WHOLE.search(line)
            fields |= dict(_PAIR.findall(line[: match.start()] if match else line))
            fields |= {match[1]: match[2].rstrip()} if match else {}
        job = commands.parse_job_id(fields.get("ArrayJobId") or fields.get("JobId", ""))
        user = _USER.fullmatch(fields.get("UserId", ""))
        submit = fields.get("SubmitTime", "")
        if not job:
            continue
        row = JobRow(
            job[0],
            ((0, 0, 1),) if "ArrayTaskId" in fields else (),
            user=user[1] if user else "",
            name=fields.get("JobName", ""),
            state=fields.get("JobState", ""),
            submit=float(submit) if submit.isdigit() else None,
            uid=int(user[2]) if user else None,
            workdir=fields.get("WorkDir", ""),
            command=fields.get("Command", ""),
            comment=fields.get("Comment", ""),
        )
        yield row, fields


def find_differences(
    request: Mapping[str, str], fields: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """Return the differences from the request: key, requested value, and the controller's value.

    Args:
        request: By the controller's keys; a key with an empty value was not requested.
    """
    changes = []
    for key, value in request.items():
        actual = fields.get(key, "")
        if not value or actual in _IGNORED or _normalize(key, actual) == _normalize(key, value):
            continue
        # A job with several partitions that has started is in one of them.
        if key != "Partition" or actual not in value.split(","):
            changes.append((key, value, actual))
    return changes


def _normalize(key: str, value: str) -> str:
    """Return a value in a form in which both sides can be compared."""
    if key == "NumNodes":
        return value.partition("-")[0]
    if key == "StdOut":
        return value.rpartition("/")[0]
    if key == "TimeLimit":
        # Slurm keeps whole minutes of it.
        with contextlib.suppress(ValueError):
            seconds = TimeLimit.parse(value).seconds
            return "UNLIMITED" if seconds is None else str(ceil(seconds / 60))
    return value


def search_job(watched: TrackedCampaign, array: Array, context: SchedulerContext) -> Job | None:
    """Return the job that an interrupted or unanswered sbatch made, or nothing if there is none.

    Raises:
        SchedulerError: Slurm can't say: it is unknown whether the job exists.
    """
    job = look_up_job(watched, array, context)
    if not job:
        context.pause(context.settle)
        watched.records.refresh(watched.directory)
        job = look_up_job(watched, array, context)
    if job:
        return job
    # squeue may answer from a cache, the controller itself does not.
    answer = run_query(context, show_argv(cluster=array.cluster))
    if answer.ok:
        return _choose_job(watched, array, [row for row, _ in read_jobs(answer.stdout)])
    age = context.now() - (parse_utc(array.called) or 0.0)
    # The clock may have been set since then.
    context.pause(min(_CACHE_AGE, max(0.0, _CACHE_AGE - age)))
    return look_up_job(watched, array, context)


def look_up_job(watched: TrackedCampaign, array: Array, context: SchedulerContext) -> Job | None:
    """Do the same as `search_job`, without waiting.

    squeue lists jobs that wait or run and, for MinJobAge, those that ended; sacct lists older ones.
    Of several, the first counts: submitting the script again by hand makes another.
    """
    if job_id := watched.find_begun_job(array):
        return Job(job_id, confirmed=job_id == array.job_id)
    owner, cluster = watched.campaign.owner, array.cluster
    queue = run_query(context, commands.squeue_argv(users=[owner], cluster=cluster))
    job = _choose_job(watched, array, commands.read_squeue(queue.stdout).rows if queue.ok else ())
    if not job:
        argv = commands.sacct_argv([], users=[owner], since=watched.since, cluster=cluster)
        history = run_query(context, argv)
        rows = commands.read_sacct(history.stdout).rows if history.ok else ()
        job = _choose_job(watched, array, rows)
    if not job and not queue.ok:
        name = watched.campaign.id
        raise SchedulerError(
            f"It is unknown whether {array.name} is queued: {format_complaint(queue)}",
            where=name,
            hint=f"Once Slurm answers: {context.again} {name}; hpcbert submits nothing twice.",
        )
    return job


def adopt_jobs(
    watched: TrackedCampaign, arrays: Iterable[Array], context: SchedulerContext, *, strict: bool
) -> Iterator[Array]:
    """Yield those of some arrays whose jobs were found, as submitted.

    Raises:
        SchedulerError: If `strict`, Slurm can't say which jobs there are.
    """
    context = context._replace(run=MemoRunner(context.run))
    for array in arrays:
        with contextlib.nullcontext() if strict else contextlib.suppress(HpcbertError):
            job = look_up_job(watched, array, context)
            submitted = job.of(array, format_utc(context.now())) if job else array
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


def _choose_job(watched: TrackedCampaign, array: Array, rows: Iterable[JobRow]) -> Job | None:
    """Return the first job that belongs to an array by its marks, or by its directory."""
    job_ids = {other.job_id for other in watched.campaign.arrays if other.name != array.name}
    free_rows = [row for row in rows if row.job not in job_ids]
    unnumbered = replace(array, job_id="")
    candidates = [row for row in free_rows if watched.is_job_of(row, unnumbered)]
    if not candidates and array.called:
        candidates = [row for row in free_rows if _may_be_renamed(watched, array, row)]
    if not candidates:
        return None
    first_row = min(candidates, key=lambda row: int(row.job))
    # squeue shows when a requeued job was submitted last.
    time = first_row.submit if (first_row.submit or watched.since) < watched.since else None
    changed = compare_identity(watched, array, first_row)
    return Job(first_row.job, first_row.cluster, changed=changed, submit_time=time)


def _may_be_renamed(watched: TrackedCampaign, array: Array, row: JobRow) -> bool:
    """Return whether a job may be the array's under any name, if its script is unknown.

    Only the campaign's jobs are submitted from its directory.
    """
    from_there = row.workdir in watched.places and not row.command
    same_form = bool(row.tasks) != array.together
    return from_there and same_form and watched.find_labelled_array(row) is None


def compare_identity(
    watched: TrackedCampaign, array: Array, row: JobRow
) -> tuple[tuple[str, str, str], ...]:
    """Return the differences of name and directory from the request: field, requested, actual."""
    name = () if row.name in {"", array.name} else (("JobName", array.name, row.name),)
    if row.workdir in {"", *watched.places}:
        return name
    return (*name, ("WorkDir", array.workdir or str(watched.directory), row.workdir))


def format_complaint(outcome: Outcome) -> str:
    """Return a failed command's message, as one line."""
    lines = [line.strip() for line in outcome.stderr.splitlines() if line.strip()]
    silent = f"{outcome.argv[0]} ended with status {outcome.returncode} and printed nothing"
    return " ".join(lines) or silent


@dataclass(frozen=True)
class PrintedId:
    """An id that sbatch printed.

    Attributes:
        is_ours: Whether the controller shows that job as the array's; None if it does not say.
        unknown: Whether the controller has no job with that id.
        row, fields: The job as the controller shows it.
    """

    job: Job
    is_ours: bool | None = None
    unknown: bool = False
    row: JobRow | None = None
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def unanswered(self) -> bool:
        """Whether the controller gives no information about it at this moment."""
        return self.is_ours is None and not self.unknown

    def __str__(self) -> str:
        if self.row is None:
            return f"{self.job.job_id}, which Slurm does not describe"
        return f"{self.job.job_id}, {self.row.name!r} of {self.row.user} in {self.row.workdir}"


def check_printed_ids(
    watched: TrackedCampaign, array: Array, outcome: Outcome, context: SchedulerContext
) -> list[PrintedId]:
    """Ask the controller about the ids that sbatch printed, the last one first, until one fits."""
    printed_ids: list[PrintedId] = []
    for job_id, cluster in parse_job_ids(outcome.stdout):
        job = Job(job_id, cluster)
        answer = run_query(context, show_argv(job_id, cluster=cluster))
        row, fields = next(read_jobs(answer.stdout if answer.ok else ""), (None, {}))
        if row is None:
            unknown = not answer.ok and commands.is_unknown_job(answer.stderr)
            printed_ids.append(PrintedId(job, unknown=unknown))
            continue
        numbered = replace(array, job_id=job_id, cluster=cluster, submit_time=row.submit)
        is_ours = row.job == job_id and _is_own_job(watched, numbered, row)
        printed_ids.append(PrintedId(job, is_ours=is_ours, row=row, fields=fields))
        if is_ours:
            break
    return printed_ids


def _is_own_job(watched: TrackedCampaign, array: Array, row: JobRow) -> bool:
    """Return whether a job is an array's by its directory, or by name, comment or script."""
    label = watched.find_labelled_array(row)
    return (label is None or label.name == array.name) and watched.is_job_of(row, array)


def confirm_jobs(
    watched: TrackedCampaign, arrays: Iterable[Array], context: SchedulerContext
) -> Iterator[Array]:
    """Ask squeue once about submitted arrays; yield them, confirmed if their jobs are theirs.

    Those of a cluster whose squeue does not answer are left out.
    """
    owner = watched.campaign.owner
    for cluster, members in group((array.cluster, array) for array in arrays).items():
        queue = run_query(context, commands.squeue_argv(users=[owner], cluster=cluster))
        rows = {row.job: row for row in commands.read_squeue(queue.stdout).rows}
        for array in members if queue.ok else ():
            row = rows.get(array.job_id)
            if row and _is_own_job(watched, array, row):
                job = Job(array.job_id, array.cluster, submit_time=row.submit)
            else:
                job = Job(array.job_id, array.cluster, confirmed=False)
            yield job.of(array, format_utc(context.now()))


def find_unmarked(watched: TrackedCampaign, printed_ids: Sequence[PrintedId]) -> PrintedId | None:
    """Return the submitter's newest job without the mark of any array; None if there is none.

    The controller's own times and ids say which is the newest. Another array's job stays its own.
    """
    candidates = [
        printed
        for printed in printed_ids
        if printed.row
        and printed.row.job == printed.job.job_id
        and printed.row.job not in watched.arrays_of_job
        and watched.owner_fits(printed.row)
        and watched.find_labelled_array(printed.row) is None
    ]
    return max(
        candidates,
        key=lambda printed: ((printed.row and printed.row.submit) or 0.0, int(printed.job.job_id)),
        default=None,
    )


def complete_array(
    watched: TrackedCampaign, array: Array, printed: PrintedId, stamp: str, *, awaited: list[str]
) -> Array:
    """Return an array with its job, and the differences from its request.

    Args:
        awaited: The jobs that it was submitted to wait for.
    """
    job = replace(printed.job, confirmed=printed.is_ours is True)
    if printed.row:
        changes = find_differences(controller_fields(array), printed.fields)
        dependency = printed.fields.get("Dependency", "")
        if dependency not in {"", "(null)"} and not any(f":{job}" in dependency for job in awaited):
            changes.append(("Dependency", ",".join(awaited), dependency))
        identities = compare_identity(watched, array, printed.row)
        changes += [entry for entry in identities if entry[0] == "WorkDir"]
        job = replace(job, changed=tuple(changes), submit_time=printed.row.submit)
    return job.of(array, stamp)
