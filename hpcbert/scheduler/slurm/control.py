"""What the controller has of a job: `scontrol show job`, read and compared with what was asked.

Keys are those of SchedMD/slurm, src/api/job_info.c, 22.05 to 26.05.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from hpcbert.slurm import commands
from hpcbert.slurm.commands import JobRow
from hpcbert.timelimit import TimeLimit

if TYPE_CHECKING:
    from collections.abc import Mapping

# These are alone on a line or end it, so that they may hold blanks.
_WHOLE = re.compile(r"\b(JobName|Command|WorkDir|StdOut|StdErr|Comment)=(.*)")
_PAIR = re.compile(r"(?:^|\s)([A-Z][\w:/]*)=(\S*)")
_USER = re.compile(r"(.*)\((\d{1,10})\)")
_ANSWER = re.compile(r"(\d{1,18})(?:;([\w.-]+))?")
_IGNORED = {"", "(null)", "N/A", "Unknown"}


@dataclass(frozen=True)
class Shown:
    """A job as the controller has it.

    Attributes:
        row: What it is known by.
        fields: All that is shown, by key.
    """

    row: JobRow
    fields: Mapping[str, str]


def answers(stdout: str) -> tuple[tuple[str, str], ...]:
    """Return the job ids, each with its cluster, that `sbatch --parsable` may have meant.

    A site's own sbatch may print lines before and after: the last one comes first here.
    """
    matches = (_ANSWER.fullmatch(line.strip()) for line in reversed(stdout.splitlines()))
    return tuple(dict.fromkeys((one[1], one[2] or "") for one in matches if one))


def show_argv(job_id: str, *, cluster: str = "") -> list[str]:
    """Return the query for one job, be it in a hidden partition."""
    return commands.of_clusters(["scontrol", "--all", "show", "job", job_id], cluster)


def read(text: str) -> Shown | None:
    """Read the first job that `show_argv` prints; None if there is none."""
    fields: dict[str, str] = {}
    for line in text.strip().split("\n\n")[0].splitlines():
        whole = _WHOLE.search(line)
        plain = line[: whole.start()] if whole else line
        fields |= dict(_PAIR.findall(plain))
        fields |= {whole[1]: whole[2].rstrip()} if whole else {}
    job = commands.job_id(fields.get("ArrayJobId") or fields.get("JobId", ""))
    if job is None:
        return None
    user = _USER.fullmatch(fields.get("UserId", ""))
    submit = fields.get("SubmitTime", "")
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
    )
    return Shown(row, fields)


def differences(asked: Mapping[str, str], shown: Shown) -> tuple[tuple[str, str, str], ...]:
    """Return what differs from what was asked for: the key, that, and what the controller has.

    Args:
        asked: By the controller's keys; an empty value is asked of no key.
        shown: The job.
    """
    found = []
    for key, value in asked.items():
        has = shown.fields.get(key, "")
        if not value or has in _IGNORED or _plain(key, has) == _plain(key, value):
            continue
        # Of several partitions a job that has started is in one.
        if key != "Partition" or has not in value.split(","):
            found.append((key, value, has))
    return tuple(found)


def _plain(key: str, value: str) -> str:
    """Return a value in the form that both sides can be compared in."""
    if key == "NumNodes":
        return value.partition("-")[0]
    if key == "StdOut":
        return value.rpartition("/")[0]
    if key == "TimeLimit":
        # Whole minutes are what Slurm keeps of it.
        with contextlib.suppress(ValueError):
            seconds = TimeLimit.parse(value).seconds
            return "UNLIMITED" if seconds is None else str(ceil(seconds / 60))
    return value
