"""What the controller has of jobs, read and compared with what was asked.

Of one it is `scontrol show job` that tells, of many one squeue. Keys are those of SchedMD/slurm,
src/api/job_info.c, 22.05 to 26.05; squeue's are translated.
"""

from __future__ import annotations

import contextlib
from math import ceil
from typing import TYPE_CHECKING

from hpcbert.slurm import commands
from hpcbert.slurm.commands import JobRow
from hpcbert.system.lazy import dataclass, regex
from hpcbert.timelimit import TimeLimit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# These are alone on a line or end it, so that they may hold blanks.
_WHOLE = regex(r"\b(JobName|Command|WorkDir|StdOut|StdErr|Comment)=(.*)")
_PAIR = regex(r"(?:^|\s)([A-Z][\w:/]*)=(\S*)")
_USER = regex(r"(.*)\((\d{1,10})\)")
_ANSWER = regex(r"(\d{1,18})(?:;([\w.-]+))?")
_IGNORED = {"", "(null)", "N/A", "Unknown"}
# squeue's names of fields (SchedMD/slurm, src/squeue/opts.c) by the controller's keys, and how many
# bytes of each are shown: what fills them may have been cut. What no path and no name holds ends
# each.
_FIELDS = {
    "JobArrayID": ("JobArrayID", 256),
    "JobName": ("Name", 256),
    "User": ("UserName", 64),
    "Uid": ("UserID", 16),
    "JobState": ("State", 24),
    "SubmitTime": ("SubmitTime", 24),
    "Dependency": ("Dependency", 256),
    "NumNodes": ("NumNodes", 24),
    "NumTasks": ("NumTasks", 16),
    "TimeLimit": ("TimeLimit", 24),
    "Partition": ("Partition", 256),
    "Account": ("Account", 256),
    "QOS": ("QOS", 256),
    "Requeue": ("Requeue", 8),
    "StdOut": ("StdOut", 1024),
    "Command": ("Command", 1024),
    "WorkDir": ("WorkDir", 1024),
}
_END = "\x1f"
_THROTTLE = regex(r"%(\d+)\]")


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


def list_argv(ids: Iterable[str], *, cluster: str = "") -> list[str]:
    """Return the one query for many jobs, be they in hidden partitions."""
    form = ",".join(f"{name}:{width}{_END}" for name, width in _FIELDS.values())
    words = ["squeue", "-h", "-a", "-t", "all", "-j", ",".join(ids), "-O", form]
    return commands.of_clusters(words, cluster)


def read_list(text: str) -> dict[str, Shown]:
    """Read what `list_argv` prints: of each job, by its id, the first line."""
    found: dict[str, Shown] = {}
    for line in text.split("\n"):
        words = [word.rstrip() for word in line.split(_END)]
        known = zip(_FIELDS.items(), words, strict=False)
        fields = {key: word if len(word) < most else "" for (key, (_, most)), word in known}
        if len(words) > len(_FIELDS) and (job := commands.job_id(fields["JobArrayID"])):
            throttle = _THROTTLE.search(fields["JobArrayID"])
            fields |= {"JobId": job[0], "UserId": f"{fields['User']}({fields['Uid']})"}
            fields |= {"ArrayTaskId": "0"} if job[1] else {}
            fields |= {"ArrayTaskThrottle": throttle[1]} if throttle else {}
            found.setdefault(job[0], _shown(job[0], fields))
    return found


def read(text: str) -> Shown | None:
    """Read the first job that `show_argv` prints; None if there is none."""
    fields: dict[str, str] = {}
    for line in text.strip().split("\n\n")[0].splitlines():
        whole = _WHOLE.search(line)
        plain = line[: whole.start()] if whole else line
        fields |= dict(_PAIR.findall(plain))
        fields |= {whole[1]: whole[2].rstrip()} if whole else {}
    job = commands.job_id(fields.get("ArrayJobId") or fields.get("JobId", ""))
    return _shown(job[0], fields) if job else None


def _shown(job_id: str, fields: Mapping[str, str]) -> Shown:
    user = _USER.fullmatch(fields.get("UserId", ""))
    submit = fields.get("SubmitTime", "")
    row = JobRow(
        job_id,
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
