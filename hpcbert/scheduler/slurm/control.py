"""What the controller has about jobs, read and compared with the request.

`scontrol show job` answers about one job, squeue about many. Keys are those of SchedMD/slurm,
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

# These stand alone on a line or at its end, so that they may contain blanks.
_WHOLE = regex(r"\b(JobName|Command|WorkDir|StdOut|StdErr|Comment)=(.*)")
_PAIR = regex(r"(?:^|\s)([A-Z][\w:/]*)=(\S*)")
_USER = regex(r"(.*)\((\d{1,10})\)")
_ANSWER = regex(r"(\d{1,18})(?:;([\w.-]+))?")
_IGNORED = {"", "(null)", "N/A", "Unknown"}
# squeue's names of fields (SchedMD/slurm, src/squeue/opts.c) by the controller's keys, and how many
# bytes of each are shown: a value of full length may have been cut. What no path and no name holds
# ends each.
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
        row: Its identity.
        fields: Everything shown, by key.
    """

    row: JobRow
    fields: Mapping[str, str]


def answers(stdout: str) -> tuple[tuple[str, str], ...]:
    """Return the job ids, each with its cluster, that `sbatch --parsable` may have meant.

    A site's own sbatch may print lines before and after: the last line comes first here.
    """
    matches = (_ANSWER.fullmatch(line.strip()) for line in reversed(stdout.splitlines()))
    return tuple(dict.fromkeys((one[1], one[2] or "") for one in matches if one))


def show_argv(job_id: str, *, cluster: str = "") -> list[str]:
    """Return the query for one job, including those in hidden partitions."""
    return commands.of_clusters(["scontrol", "--all", "show", "job", job_id], cluster)


def list_argv(ids: Iterable[str], *, cluster: str = "") -> list[str]:
    """Return the one query for many jobs, including those in hidden partitions."""
    form = ",".join(f"{name}:{width}{_END}" for name, width in _FIELDS.values())
    words = ["squeue", "-h", "-a", "-t", "all", "-j", ",".join(ids), "-O", form]
    return commands.of_clusters(words, cluster)


def read_list(text: str) -> dict[str, Shown]:
    """Read the output of `list_argv`: the first line of each job, by its id."""
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
    """Read the first job in the output of `show_argv`; None if there is none."""
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
    """Return the differences from the request: key, requested value, and the controller's value.

    Args:
        asked: By the controller's keys; a key with an empty value was not requested.
        shown: The job.
    """
    found = []
    for key, value in asked.items():
        has = shown.fields.get(key, "")
        if not value or has in _IGNORED or _plain(key, has) == _plain(key, value):
            continue
        # A job with several partitions that has started is in one of them.
        if key != "Partition" or has not in value.split(","):
            found.append((key, value, has))
    return tuple(found)


def _plain(key: str, value: str) -> str:
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
