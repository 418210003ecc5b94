"""What the controller has about jobs, read and compared with the request.

Keys are those of SchedMD/slurm, src/api/job_info.c, 22.05 to 26.05.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil

from hpcbert.slurm import commands
from hpcbert.slurm.commands import JobRow
from hpcbert.timelimit import TimeLimit

# These stand alone on a line or at its end, so that they may contain blanks.
_WHOLE = re.compile(r"\b(JobName|Command|WorkDir|StdOut|StdErr|Comment)=(.*)")
_PAIR = re.compile(r"(?:^|\s)([A-Z][\w:/]*)=(\S*)")
_USER = re.compile(r"(.*)\((\d{1,10})\)")
_ANSWER = re.compile(r"(?:Submitted batch job )?(\d{1,18})(?:(?:;| on cluster )([\w.-]+))?")
_IGNORED = {"", "(null)", "N/A", "Unknown"}


@dataclass(frozen=True)
class ControllerJob:
    """A job as the controller has it.

    Attributes:
        row: Its identity.
        fields: Everything shown, by key.
    """

    row: JobRow
    fields: Mapping[str, str]


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


def read_job(text: str) -> ControllerJob | None:
    """Read the first job in the output of `show_argv`; None if there is none."""
    return next(iter(read_jobs(text)), None)


def read_jobs(text: str) -> Iterator[ControllerJob]:
    """Read the jobs in the output of `show_argv`, arrays once for each of their records."""
    for block in text.strip().split("\n\n"):
        fields: dict[str, str] = {}
        for line in block.splitlines():
            match = _WHOLE.search(line)
            plain = line[: match.start()] if match else line
            fields |= dict(_PAIR.findall(plain))
            fields |= {match[1]: match[2].rstrip()} if match else {}
        if job := commands.parse_job_id(fields.get("ArrayJobId") or fields.get("JobId", "")):
            yield _build_job(job[0], fields)


def _build_job(job_id: str, fields: Mapping[str, str]) -> ControllerJob:
    user_match = _USER.fullmatch(fields.get("UserId", ""))
    submit = fields.get("SubmitTime", "")
    row = JobRow(
        job_id,
        ((0, 0, 1),) if "ArrayTaskId" in fields else (),
        user=user_match[1] if user_match else "",
        name=fields.get("JobName", ""),
        state=fields.get("JobState", ""),
        submit=float(submit) if submit.isdigit() else None,
        uid=int(user_match[2]) if user_match else None,
        workdir=fields.get("WorkDir", ""),
        command=fields.get("Command", ""),
        comment=fields.get("Comment", ""),
    )
    return ControllerJob(row, fields)


def find_differences(
    request: Mapping[str, str], controller_job: ControllerJob
) -> tuple[tuple[str, str, str], ...]:
    """Return the differences from the request: key, requested value, and the controller's value.

    Args:
        request: By the controller's keys; a key with an empty value was not requested.
        controller_job: The job.
    """
    changes = []
    for key, value in request.items():
        actual = controller_job.fields.get(key, "")
        if not value or actual in _IGNORED or _normalize(key, actual) == _normalize(key, value):
            continue
        # A job with several partitions that has started is in one of them.
        if key != "Partition" or actual not in value.split(","):
            changes.append((key, value, actual))
    return tuple(changes)


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
