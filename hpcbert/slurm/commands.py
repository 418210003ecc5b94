"""Slurm's query commands: their argv, and reading what they print. No processes are started here.

What they print is read with tolerance: a line that is not understood is kept for the report and
changes nothing. Formats seen with 22.05.8; field names are those that every release from 22.05 to
26.05 has (SchedMD/slurm, src/sacct/sacct.c, src/squeue/opts.c).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from hpcbert import timelimit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

CHUNK = 200
_GARBAGE_KEPT = 20
# Of a moment: up to the year 5138.
_DIGITS = 11
_SACCT_FIELDS = (
    "JobID,User,State,ExitCode,Reason,Submit,Start,End,ElapsedRaw,TimelimitRaw,NodeList,JobName"
)
# The name comes late and the reason, free text at times, last: neither can shift a field then.
_SQUEUE_FIELDS = "%i|%u|%T|%V|%S|%e|%M|%l|%N|%j|%r"
# Everything else named so changes what the commands select or print (sacct(1), squeue(1)).
_CHANGING = ("SLURM_", "SACCT_", "SQUEUE_", "SCANCEL_")
# The caller's own Slurm job, or their defaults, must not leak into a request or into its job.
_LEAKING = ("SBATCH_", "SLURM_", "SRUN_", "PMI_", "PMIX_", "PYXIS_", "OMPI_")
_KEPT = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"})

_JOB = re.compile(r"(\d{1,18})(?:_(?:(\d{1,18})|\[([\d,:-]+)(?:%\d{1,18})?\]))?")
_SPAN = re.compile(r"(\d{1,18})(?:-(\d{1,18})(?::(\d{1,18}))?)?")
_CLOCK = re.compile(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})(?:\.\d+)?")
_EXIT = re.compile(r"(\d{1,9}):(\d{1,9})")


@dataclass(frozen=True)
class JobRow:
    """One line of sacct or squeue.

    Attributes:
        job: The job's id, for an array the array's.
        tasks: Array indices the line is about, as (first, last, step); empty: the job is no array.
        user: Login name of its owner.
        name: Job name.
        state: As printed: `CANCELLED by 1000`.
        reason: Why it waits, as printed.
        exit_code: 128 + n after signal n; None where the command does not tell.
        submit, start, end: Seconds since the epoch, None where there is none yet.
        elapsed: Seconds it has run.
        limit: Time limit in seconds, None without one.
        nodelist: As Slurm writes it.
    """

    job: str
    tasks: tuple[tuple[int, int, int], ...]
    user: str
    name: str
    state: str
    reason: str = ""
    exit_code: int | None = None
    submit: float | None = None
    start: float | None = None
    end: float | None = None
    elapsed: float | None = None
    limit: float | None = None
    nodelist: str = ""

    def covers(self, repeat: int) -> bool:
        """Say whether the line is about an array index, or about a job that is no array."""
        return not self.tasks or any(
            low <= repeat <= high and (repeat - low) % step == 0 for low, high, step in self.tasks
        )


@dataclass(frozen=True)
class Listing:
    """What one command printed.

    Attributes:
        rows: Its lines, in order.
        garbage: Lines that were not understood, the first few.
    """

    rows: tuple[JobRow, ...] = ()
    garbage: tuple[str, ...] = ()


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a query: times as epoch seconds, array ranges in full.

    The caller's own SACCT_FORMAT, SQUEUE_STATES, SLURM_CLUSTERS and the like are left out.
    """
    return {**_without(environ, _CHANGING), "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}


def submission_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what would change a submission or its job."""
    return _without(environ, _LEAKING)


def _without(environ: Mapping[str, str], prefixes: tuple[str, ...]) -> dict[str, str]:
    """Return the variables of other names, and those that say where the cluster is."""
    return {
        name: value
        for name, value in environ.items()
        if name in _KEPT or not name.startswith(prefixes)
    }


def sacct_argv(ids: Sequence[str], *, users: Iterable[str], since: float) -> list[str]:
    """Return the one accounting query for any number of jobs.

    `-D` shows every run of a requeued job, and of a job id that was used again; without it the
    newest job of that number hides ours.

    Args:
        ids: Job ids, of arrays the array's.
        users: Login names of the owners.
        since: Seconds since the epoch; nothing before is looked at.
    """
    argv = ["sacct", "-X", "-P", "-n", "-D", "-o", _SACCT_FIELDS]
    argv += ["-S", f"uts{int(since)}", "-u", ",".join(sorted(set(users)))]
    for chunk in _chunks(ids):
        argv += ["-j", ",".join(chunk)]
    return argv


def squeue_argv(*, users: Iterable[str]) -> list[str]:
    """Return the query for all jobs that Slurm still has in memory, ended ones too.

    It selects by user, which the controller does itself, and not by id: an id that is gone makes
    squeue fail where it is the only one.
    """
    words = ["squeue", "-h", "-a", "-t", "all", "-o", _SQUEUE_FIELDS]
    return [*words, "-u", ",".join(sorted(set(users)))]


def scancel_argv(ids: Sequence[str], *, user: str, name: str) -> list[str]:
    """Return the command that cancels jobs, if they still have this owner and name."""
    return ["scancel", f"--user={user}", f"--name={name}", *ids]


def _chunks(ids: Sequence[str]) -> Iterator[list[str]]:
    iterator = iter(dict.fromkeys(ids))
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk


def read_sacct(text: str) -> Listing:
    """Read what `sacct_argv` prints."""
    return _read(text, _sacct_row, fields=12)


def read_squeue(text: str) -> Listing:
    """Read what `squeue_argv` prints."""
    return _read(text, _squeue_row, fields=11)


def _read(text: str, row: Callable[[list[str]], JobRow | None], *, fields: int) -> Listing:
    rows: list[JobRow] = []
    garbage: list[str] = []
    for line in text.splitlines():
        words = line.split("|", fields - 1)
        one = row(words) if len(words) == fields else None
        if one is not None:
            rows.append(one)
        elif line.strip() and len(garbage) < _GARBAGE_KEPT:
            garbage.append(line)
    return Listing(tuple(rows), tuple(garbage))


def _sacct_row(words: list[str]) -> JobRow | None:
    identity = job_id(words[0])
    if identity is None:
        return None
    minutes = _number(words[9])
    return JobRow(
        *identity,
        user=words[1],
        state=words[2],
        exit_code=_exit_code(words[3]),
        reason=words[4],
        submit=_number(words[5]),
        start=_number(words[6]),
        end=_number(words[7]),
        elapsed=_number(words[8]),
        limit=None if minutes is None else minutes * 60,
        nodelist=words[10],
        name=words[11],
    )


def _squeue_row(words: list[str]) -> JobRow | None:
    identity = job_id(words[0])
    if identity is None:
        return None
    return JobRow(
        *identity,
        user=words[1],
        state=words[2],
        submit=_number(words[3]),
        start=_number(words[4]),
        end=_number(words[5]),
        elapsed=seconds(words[6]),
        limit=_limit(words[7]),
        nodelist=words[8],
        name=words[9],
        reason=words[10],
    )


def job_id(text: str) -> tuple[str, tuple[tuple[int, int, int], ...]] | None:
    """Read a job id: `12`, `12_3`, `12_[3-5%1]`, `12_[1,3-9:2%2]`; None where it is no job's.

    Steps (`12.batch`) and heterogeneous jobs (`12+1`), which hpcbert never submits, are none.
    """
    match = _JOB.fullmatch(text.strip())
    if match is None:
        return None
    if match[3] is not None:
        spans = [_span(part) for part in match[3].split(",") if part]
        whole = tuple(span for span in spans if span)
        return (match[1], whole) if whole and len(whole) == len(spans) else None
    return match[1], ((int(match[2]), int(match[2]), 1),) if match[2] else ()


def _span(text: str) -> tuple[int, int, int] | None:
    match = _SPAN.fullmatch(text)
    if match is None:
        return None
    low = int(match[1])
    return low, int(match[2] or low), max(1, int(match[3] or 1))


def seconds(text: str) -> float | None:
    """Read `D-HH:MM:SS`, `HH:MM:SS` or `MM:SS`; None for `UNLIMITED`, `INVALID` and the like."""
    match = _CLOCK.fullmatch(text.strip())
    if match is None:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + rest)


def _limit(text: str) -> float | None:
    """Read squeue's time limit; `NOT_SET`, `INVALID`, `Partition_Limit` and the like are none."""
    try:
        return timelimit.read(text)
    except ValueError:
        return None


def _number(text: str) -> float | None:
    """Read a whole number; `Unknown`, `None`, `N/A`, `UNLIMITED` and whatever else are none."""
    text = text.strip()
    return float(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else None


def _exit_code(text: str) -> int | None:
    match = _EXIT.fullmatch(text.strip())
    if match is None:
        return None
    code, number = int(match[1]), int(match[2])
    return 128 + number if number else code
