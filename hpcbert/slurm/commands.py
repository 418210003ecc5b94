"""Slurm's query commands: their argv, and a reader of their output. No processes start here.

The output is read with tolerance: a line that can't be read is kept for the report and changes
nothing. Formats seen with 22.05.8; field names are those that every release from 20.11 to
26.05 has (SchedMD/slurm, src/sacct/sacct.c, src/squeue/opts.c), except for sacct's SubmitLine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hpcbert.errors import UsageError
from hpcbert.timelimit import TimeLimit

_GARBAGE_KEPT = 20
# Upper limit of a time: the year 5138.
_DIGITS = 11
_SACCT_FIELDS = (
    "JobID,User,State,ExitCode,Reason,Submit,Start,End,ElapsedRaw,TimelimitRaw,NodeList,JobName,"
    "UID,Cluster,WorkDir,SubmitLine"
)
# Since 21.08. An older sacct refuses it before it asks anything (src/sacct/options.c).
_NEW_FIELD = ",SubmitLine"
_REFUSED_FIELD = 'Invalid field requested: "SubmitLine"'
# The name comes late, then what may be any text: neither can shift a field then. No path that a
# process works in has two consecutive slashes, which identify the last four.
_SQUEUE_FIELDS = "%i|%u|%T|%V|%S|%e|%M|%l|%N|%j|%r|//%U|//%o|//%Z|//%k"
_SACCT_TAIL = re.compile(
    r"(?P<name>.*?)\|(?P<uid>\d{1,10})\|(?P<cluster>[^|]*)\|(?P<workdir>/.*?)?"
    r"(?:\|(?P<command>\S*(?:sbatch|srun|salloc)\b.*)?)?"
)
_SQUEUE_TAIL = re.compile(
    r"(?P<name>[^|]*)\|(?P<reason>.*)\|//(?P<uid>\d{1,10})\|//(?P<command>.*?)\|//(?P<workdir>/.*?)"
    r"(?:\|//(?P<comment>.*))?"
)
_CLUSTER = re.compile(r"CLUSTER: (\S+)")
_HEADING = "JOBID|"
# Everything else with this prefix changes what the commands select or print (sacct(1), squeue(1)).
_CHANGING = ("SLURM_", "SACCT_", "SQUEUE_", "SCANCEL_")
# The caller's own Slurm job, MPI launcher or defaults must not leak into a request or into a job.
_LEAKING = (
    *("SALLOC_", "SBATCH_", "SLURM_", "SLURMD_", "SRUN_", "PYXIS_"),
    *("OMPI_", "PMI_", "PMIX_", "PRTE_"),
)
_KEPT = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"})

_JOB = re.compile(r"(\d{1,18})(?:_(?:(\d{1,18})|\[([\d,:-]+)(?:%\d{1,18})?\]))?")
# Steps (`12.batch`, `12_3.0`) and parts of heterogeneous jobs (`12+1`, `12+0.batch`, `12+[0-2].0`).
_OTHER = re.compile(r"\d{1,18}(?:_\d{1,18})?(?:\+(?:\d{1,9}|\[[\d,-]+\])(?:\.\w+)?|\.\w+)")
_SPAN = re.compile(r"(\d{1,18})(?:-(\d{1,18})(?::(\d{1,18}))?)?")
_CLOCK = re.compile(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})(?:\.\d+)?")
_EXIT = re.compile(r"(\d{1,9}):(\d{1,9})")


class JobRow(NamedTuple):
    """One line of sacct or squeue.

    Attributes:
        job: The job's id, for an array the array's.
        tasks: Array indices of the line, as (first, last, step); empty: the job is not an array.
        state: As printed: `CANCELLED by 1000`.
        exit_code: 128 + n after signal n; None if the command does not print it.
        signal: n of that; 0 for none.
        submit, start, end: Seconds since the epoch, None if not yet known.
        elapsed, limit: Seconds; None if unknown, or without a limit.
        workdir: Directory that it was submitted from; empty if the command does not print it.
        command: Its script, or the command line that submitted it.
    """

    job: str
    tasks: tuple[tuple[int, int, int], ...]
    user: str
    name: str
    state: str
    reason: str = ""
    exit_code: int | None = None
    signal: int = 0
    submit: float | None = None
    start: float | None = None
    end: float | None = None
    elapsed: float | None = None
    limit: float | None = None
    nodelist: str = ""
    uid: int | None = None
    cluster: str = ""
    workdir: str = ""
    command: str = ""
    comment: str = ""

    def covers(self, repeat: int) -> bool:
        """Return whether the line is about an index; one without tasks is about every index."""
        return not self.tasks or any(
            low <= repeat <= high and (repeat - low) % step == 0 for low, high, step in self.tasks
        )


class Listing(NamedTuple):
    """The output of one command.

    Attributes:
        garbage: The first few lines that could not be read.
    """

    rows: tuple[JobRow, ...] = ()
    garbage: tuple[str, ...] = ()


def query_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a query: times as epoch seconds, array ranges in full.

    The caller's own SACCT_FORMAT, SQUEUE_STATES, SLURM_CLUSTERS and similar variables are left out.
    """
    variables = _drop_variables(environ, (*_CHANGING, *_LEAKING))
    return {**variables, "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}


def submission_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what would change a submission or its job."""
    return _drop_variables(environ, _LEAKING)


def _drop_variables(environ: Mapping[str, str], prefixes: tuple[str, ...]) -> dict[str, str]:
    """Return other variables, and those that locate the cluster."""
    return {
        name: value
        for name, value in environ.items()
        if name in _KEPT or not name.startswith(prefixes)
    }


def add_cluster_option(argv: list[str], cluster: str) -> list[str]:
    """Return a query about other clusters: their names, by commas; empty for this one."""
    return [argv[0], f"--clusters={cluster}", *argv[1:]] if cluster else argv


def sacct_argv(
    ids: Sequence[str], *, users: Iterable[str], since: float, cluster: str = ""
) -> list[str]:
    """Return the one accounting query for any number of jobs of a cluster.

    `-D` shows every run of a requeued job, and of a job id that was used again; without it the
    newest job of that number hides ours.

    Args:
        since: Seconds since the epoch; earlier jobs are left out.
    """
    argv = ["sacct", "-X", "-P", "-n", "-D", "-o", _SACCT_FIELDS]
    argv += ["-S", f"uts{int(since)}", "-u", ",".join(sorted(set(users)))]
    argv += ["-j", ",".join(dict.fromkeys(ids))] if ids else []
    return add_cluster_option(argv, cluster)


def simplify_query(argv: Sequence[str], complaint: str) -> list[str]:
    """Return a query for an older release of Slurm; empty if a complaint is another one."""
    is_refused = _REFUSED_FIELD in complaint
    return [word.removesuffix(_NEW_FIELD) for word in argv] if is_refused else []


def squeue_argv(
    *, users: Iterable[str] = (), ids: Sequence[str] = (), cluster: str = ""
) -> list[str]:
    """Return the query for jobs that Slurm still has in memory, including ended ones.

    `-a` includes those in hidden partitions. With ids alone, squeue fails if it knows none of them
    (`is_unknown_job`). With several clusters, it prints whose jobs follow.
    """
    words = ["squeue", "-a", "-t", "all", "-o", _SQUEUE_FIELDS]
    words += ["-u", ",".join(sorted(set(users)))] if users else []
    words += ["-j", ",".join(dict.fromkeys(ids))] if ids else []
    return add_cluster_option([*words, *([] if cluster else ["-h"])], cluster)


def is_unknown_job(complaint: str) -> bool:
    """Return whether a command's error says that no job has the id."""
    return "Invalid job id specified" in complaint


def read_sacct(text: str) -> Listing:
    """Read the output of `sacct_argv`."""
    return _read_listing(text, _read_sacct_row, fields=12)


def read_squeue(text: str) -> Listing:
    """Read the output of `squeue_argv`."""
    return _read_listing(text, _read_squeue_row, fields=11)


def _read_listing(
    text: str, read_row: Callable[[Sequence[str]], dict[str, Any]], *, fields: int
) -> Listing:
    rows: list[JobRow] = []
    garbage: list[str] = []
    cluster = ""
    for line in text.splitlines():
        heading = _CLUSTER.fullmatch(line.strip())
        if heading or line.startswith(_HEADING):
            cluster = heading[1] if heading else cluster
            continue
        words = line.split("|", fields - 1)
        is_whole = len(words) == fields
        identity = parse_job_id(words[0]) if is_whole else None
        if identity is not None:
            job_row = JobRow(*identity, user=words[1], state=words[2], **read_row(words))
            has_cluster = job_row.cluster or not cluster
            rows.append(job_row if has_cluster else job_row._replace(cluster=cluster))
        elif is_whole and _OTHER.fullmatch(words[0].strip()):
            continue  # Another job, and readable, but none of ours.
        elif line.strip() and len(garbage) < _GARBAGE_KEPT:
            garbage.append(line)
    return Listing(tuple(rows), tuple(garbage))


def _read_times(words: Sequence[str]) -> dict[str, float | None]:
    return dict(zip(("submit", "start", "end"), map(_read_number, words), strict=True))


def _read_sacct_row(words: Sequence[str]) -> dict[str, Any]:
    minutes = _read_number(words[9])
    exit_code, signal = _read_exit(words[3])
    return {
        "exit_code": exit_code,
        "signal": signal,
        "reason": words[4],
        **_read_times(words[5:8]),
        "elapsed": _read_number(words[8]),
        "limit": None if minutes is None else minutes * 60,
        "nodelist": words[10],
        **_read_tail(_SACCT_TAIL, words[11], {"name": words[11]}),
    }


def _read_squeue_row(words: Sequence[str]) -> dict[str, Any]:
    name, reason = words[9:]
    return {
        **_read_times(words[3:6]),
        "elapsed": parse_duration(words[6]),
        "limit": TimeLimit.parse_reported(words[7]).seconds,
        "nodelist": words[8],
        **_read_tail(_SQUEUE_TAIL, f"{name}|{reason}", {"name": name, "reason": reason}),
    }


def _read_tail(form: re.Pattern[str], text: str, otherwise: dict[str, Any]) -> dict[str, Any]:
    match = form.fullmatch(text)
    if match is None:
        return otherwise
    fields = {name: value or "" for name, value in match.groupdict().items()}
    return {**fields, "uid": int(fields["uid"])}


def parse_job_id(text: str) -> tuple[str, tuple[tuple[int, int, int], ...]] | None:
    """Read a job id: `12`, `12_3`, `12_[3-5%1]`, `12_[1,3-9:2%2]`; None for other text.

    Steps and heterogeneous jobs, which hpcbert never submits, give None (`_OTHER`).
    """
    match = _JOB.fullmatch(text.strip())
    if match is None:
        return None
    if match[3] is None:
        return match[1], ((int(match[2]), int(match[2]), 1),) if match[2] else ()
    spans = [_SPAN.fullmatch(part) for part in match[3].split(",") if part]
    tasks = tuple(
        (int(span[1]), int(span[2] or span[1]), max(1, int(span[3] or 1))) for span in spans if span
    )
    return (match[1], tasks) if tasks and len(tasks) == len(spans) else None


def parse_duration(text: str) -> float | None:
    """Read `D-HH:MM:SS`, `HH:MM:SS` or `MM:SS`; None for `UNLIMITED`, `INVALID` and other words."""
    match = _CLOCK.fullmatch(text.strip())
    if match is None:
        return None
    days, hours, minutes, remainder = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + remainder)


def _read_number(text: str) -> float | None:
    """Read a whole number; None for `Unknown`, `None`, `N/A`, `UNLIMITED` and other words."""
    text = text.strip()
    return float(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else None


def _read_exit(text: str) -> tuple[int | None, int]:
    """Return the exit code as a shell gives it, and the signal; 0 for none."""
    match = _EXIT.fullmatch(text.strip())
    if match is None:
        return None, 0
    code, number = int(match[1]), int(match[2])
    return 128 + number if number else code, number


# --- Mail: sbatch(1), --mail-type and --mail-user -----------------------------------------------

# In 22.05 to 26.05.
MAIL_TYPES = (
    *("NONE", "BEGIN", "END", "FAIL", "REQUEUE", "ALL", "INVALID_DEPEND", "STAGE_OUT"),
    *("TIME_LIMIT", "TIME_LIMIT_90", "TIME_LIMIT_80", "TIME_LIMIT_50", "ARRAY_TASKS"),
)


def parse_mail(text: str) -> tuple[str, ...]:
    """Return sbatch's options for `--notify`: mail types (END, FAIL if none) and an address.

    Raises:
        UsageError: A word is neither.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    users = [word for word in words if "@" in word and word.isprintable() and " " not in word]
    types = [word.upper().replace("-", "_") for word in words if word not in users]
    if len(users) > 1 or not set(types) <= set(MAIL_TYPES):
        raise UsageError(
            f"--notify needs Slurm's mail types and one address, not {text!r}.",
            hint=f"{', '.join(MAIL_TYPES)}; or name@example.org.",
        )
    if set(types) <= {"ARRAY_TASKS"}:
        types = ["END", "FAIL", *types]
    options = [f"--mail-type={','.join(dict.fromkeys(types))}"]
    options += [f"--mail-user={user}" for user in users]
    return tuple(options) if words else ()
