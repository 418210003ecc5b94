"""A scripted Slurm: one model of jobs, for calls in this process or from programs on PATH.

sbatch queues a job, scancel ends it, squeue, sacct and scontrol show it; the test starts and ends
jobs. It can also set the answer of each program, call by call.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.kit.paths import REPOSITORY

# 2026-11-21T10:06:39Z: when jobs are submitted, unless a test says otherwise.
T = 1_795_255_599
NAME = "hpcbert-camp-bert-tiny_1n1g_fp32_b4"

_SACCT = "{job}|{user}|{state}|{exit_code}|{reason}|{submit}|{start}|{end}|{elapsed}|{limit}|{nodes}|{name}"
_SACCT_PLACE = "|{uid}|{cluster}|{place}"
_SQUEUE = "{job}|{user}|{state}|{submit}|{start}|{end}|{elapsed}|{limit}|{nodes}|{name}|{reason}"
_SQUEUE_PLACE = "|//{uid}|//{command}|//{place}|//{comment}"
_SCONTROL = """\
JobId={job} ArrayJobId={job} ArrayTaskId={tasks} JobName={name}
   UserId={user}({uid}) GroupId=g(1) MCS_label=N/A
   JobState={state} Reason=None Dependency=(null)
   SubmitTime={submit}
   Command={command}
   WorkDir={place}
   Comment={comment}

"""
_ALL: dict[str, Any] = {
    "user": "nobody",
    "name": NAME,
    "reason": "None",
    "submit": T,
    "uid": 7,
    "cluster": "c",
    "command": "",
    "comment": "",
}


def sacct(job: object, state: str, **columns: Any) -> str:
    """Return a line of sacct; with a place, also the columns that identify the job's campaign."""
    submit = columns.get("submit", T)
    defaults = {
        "exit_code": "0:0",
        "start": submit + 1,
        "end": submit + 9,
        "elapsed": 8,
        "limit": 60,
    }
    form = _SACCT + (_SACCT_PLACE if "place" in columns else "")
    return (
        form.format(**{**_ALL, **defaults, "nodes": "n1", "job": job, "state": state, **columns})
        + "\n"
    )


def squeue(job: object, state: str, **columns: Any) -> str:
    """Return a line of squeue; with a place, also the columns that identify the job's campaign."""
    defaults = {"start": "N/A", "end": "N/A", "elapsed": "0:00", "limit": "1:00:00", "nodes": ""}
    form = _SQUEUE + (_SQUEUE_PLACE if "place" in columns else "")
    return form.format(**{**_ALL, **defaults, "job": job, "state": state, **columns}) + "\n"


def scontrol(job: object, **columns: Any) -> str:
    """Return the output of scontrol for a job."""
    defaults = {"state": "PENDING", "tasks": "1-5%1", "place": "/nowhere", "command": "/nowhere/x"}
    return _SCONTROL.format(**{**_ALL, **defaults, "job": job, **columns})


def sinfo(*nodes: str, partition: str = "gpu*", state: str = "idle") -> str:
    """Return the output of sinfo for nodes."""
    return "".join(f"{node}|{partition}|{state}\n" for node in nodes)


if TYPE_CHECKING:  # The stand-ins for Slurm's programs don't load hpcbert.
    from hpcbert.system.runner import Outcome

PROGRAMS = ("sbatch", "squeue", "sacct", "scontrol", "scancel", "sinfo", "srun", "sacctmgr")
AWAY = "Unable to contact slurm controller (connect failure)"
_ENDED = ("COMPLETED", "FAILED", "NODE_FAIL", "TIMEOUT")
_PROGRAM = """\
#!/bin/sh
''''exec {python} -I -S "$0" "$@" # '''
import sys
sys.path.insert(0, {repository!r})
from tests.kit.slurm import main
main({folder!r})
"""


class Answer(NamedTuple):
    """The output and exit status of a program.

    Attributes:
        acts: Whether it first does what the call requests.
        waits: Whether it waits for `Programs.let_go` first.
    """

    out: str = ""
    code: int = 0
    complaint: str = ""
    acts: bool = False
    waits: bool = False


# A set answer of a program; None: the answer of the model.
ScriptedAnswer = str | Answer | None


def failed(complaint: str, code: int = 1, *, acts: bool = False) -> Answer:
    return Answer("", code, complaint, acts)


@dataclass
class Job:
    """A job array or a single job: state and node of each index; "" is the whole job."""

    name: str
    script: str = ""
    place: str = ""
    array: str = "1-5"
    comment: str = ""
    tasks: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.tasks:
            self.tasks = {index: ["PENDING", ""] for index in _indices(self.array)}

    def end(self, state: str, *indices: object, node: str = "n1") -> None:
        """Give some of its indices, or all, another state."""
        for index in indices or self.tasks:
            self.tasks[str(index)] = [state, node]

    def alive(self) -> list[str]:
        return [
            index for index, (state, _) in self.tasks.items() if state in {"PENDING", "RUNNING"}
        ]


def _indices(array: str) -> list[str]:
    indices: list[str] = []
    for span in array.partition("%")[0].split(","):
        low, _, high = span.partition("-")
        indices += map(str, range(int(low), int(high) + 1)) if high else [low]
    return indices


@dataclass
class Slurm:
    """Slurm's commands as one Runner.

    Example: `Slurm(sbatch=[failed("busy"), None])` refuses one submission and takes the next, and
    `Slurm(squeue=squeue("7_1", "RUNNING"))` shows one job. The fixture `slurm` is the same as
    programs on PATH.

    Attributes:
        sbatch, squeue, sacct, scontrol, scancel, sinfo, srun, sacctmgr: The answers of that
            program, call by call; the last one repeats. None, there or in the list, is the answer
            of the model.
        jobs: By their ids.
        calls: Everything that was run.
        environments: The environment of each call.
        away: Programs that can't reach Slurm.
        forgets: States that squeue no longer shows.
        dies: Whether the caller of sbatch is interrupted when the job is queued.
        first: Id of the first job.
        now: When jobs are submitted.
        before: Called with the program's name before each answer.
    """

    sbatch: ScriptedAnswer | list[Any] = None
    squeue: ScriptedAnswer | list[Any] = None
    sacct: ScriptedAnswer | list[Any] = None
    scontrol: ScriptedAnswer | list[Any] = None
    scancel: ScriptedAnswer | list[Any] = None
    sinfo: ScriptedAnswer | list[Any] = None
    srun: ScriptedAnswer | list[Any] = None
    sacctmgr: ScriptedAnswer | list[Any] = None
    jobs: dict[str, Job] = field(default_factory=dict)
    calls: list[tuple[str, ...]] = field(default_factory=list)
    environments: list[Mapping[str, str]] = field(default_factory=list)
    away: set[str] = field(default_factory=set)
    forgets: set[str] = field(default_factory=lambda: set(_ENDED))
    dies: bool = False
    first: int = 100
    now: float = field(default_factory=time.time)
    before: Callable[[str], object] = lambda _: None

    def __call__(
        self,
        argv: Sequence[str],
        *,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = 60.0,
    ) -> Outcome:
        from hpcbert.system.runner import Outcome

        self.environments.append(env or {})
        answer = self.answered(tuple(argv), self.said(tuple(argv)), str(cwd or ""))
        return Outcome(tuple(argv), answer.code, answer.out, answer.complaint)

    def count(self, program: str) -> int:
        return len(self.called(program))

    def called(self, program: str) -> list[tuple[str, ...]]:
        return [call for call in self.calls if call[0] == program]

    @property
    def names(self) -> dict[str, str]:
        return {number: job.name for number, job in self.jobs.items()}

    def rename(self, form: Callable[[str], str]) -> None:
        """Give all jobs other names."""
        for job in self.jobs.values():
            job.name = form(job.name)

    def said(self, argv: tuple[str, ...]) -> ScriptedAnswer:
        """Record a call and return the set answer of its program."""
        number = self.count(argv[0])
        self.calls.append(argv)
        answers = getattr(self, argv[0], None)
        if isinstance(answers, list):
            answers = answers[min(number, len(answers) - 1)] if answers else None
        answer: ScriptedAnswer = answers
        return answer

    def answered(self, argv: tuple[str, ...], scripted: ScriptedAnswer, cwd: str = "") -> Answer:
        self.before(argv[0])
        if argv[0] in self.away:
            return failed(f"{argv[0]}: error: {AWAY}")
        if scripted is None or (isinstance(scripted, Answer) and scripted.acts):
            act = getattr(self, f"do_{argv[0]}", None)
            answer: Answer = act(argv, cwd) if act else Answer()
            return scripted if scripted and (scripted.code or scripted.complaint) else answer
        return Answer(scripted) if isinstance(scripted, str) else scripted

    def do_sbatch(self, argv: tuple[str, ...], cwd: str) -> Answer:
        text = Path(argv[-1]).read_text()
        name, array, comment = (
            _option(option, argv, text) for option in ("job-name", "array", "comment")
        )
        number = str(self.first + len(self.jobs))
        self.jobs[number] = Job(
            name, argv[-1], cwd or str(Path(argv[-1]).parent.parent), array, comment
        )
        if self.dies:
            raise KeyboardInterrupt
        return Answer(f"{number}\n")

    def do_squeue(self, argv: tuple[str, ...], cwd: str) -> Answer:
        rows = []
        for number, job in self.jobs.items():
            waiting = [index for index, (state, _) in job.tasks.items() if state == "PENDING"]
            if len(waiting) == len(job.tasks) and waiting != [""]:
                rows.append(self._row(squeue, f"{number}_[{job.array}]", job, "PENDING", ""))
                continue
            rows += [
                self._row(squeue, _element(number, index), job, state, node)
                for index, (state, node) in job.tasks.items()
                if state.partition(" ")[0] not in self.forgets
            ]
        return Answer("".join(rows))

    def do_sacct(self, argv: tuple[str, ...], cwd: str) -> Answer:
        return Answer(
            "".join(
                self._row(sacct, _element(number, index), job, state, node)
                for number, job in self.jobs.items()
                for index, (state, node) in job.tasks.items()
            )
        )

    def do_scontrol(self, argv: tuple[str, ...], cwd: str) -> Answer:
        if argv[-2:] == ("show", "job"):
            jobs = self.jobs.items()
            return Answer("".join(self._row(scontrol, n, job, "PENDING", "") for n, job in jobs))
        job = self.jobs.get(argv[-1])
        if job is None:
            return failed("slurm_load_jobs error: Invalid job id specified")
        return Answer(self._row(scontrol, argv[-1], job, "PENDING", ""))

    def do_scancel(self, argv: tuple[str, ...], cwd: str) -> Answer:
        for number in argv[1:]:
            if number in self.jobs:
                self.jobs[number].end("CANCELLED", *self.jobs[number].alive())
        return Answer()

    def do_sinfo(self, argv: tuple[str, ...], cwd: str) -> Answer:
        return Answer(sinfo(*(f"n{number}" for number in range(1, 9))))

    def _row(self, form: Callable[..., str], number: str, job: Job, state: str, node: str) -> str:
        """Return a job's line; without a script it lacks the job's origin."""
        where = {"place": job.place, "command": job.script} if job.script else {}
        where |= {"comment": job.comment} if job.script and job.comment else {}
        common = {"name": job.name, "submit": int(self.now), "nodes": node, "uid": os.geteuid()}
        columns = {} if form is scontrol else {"user": "someone"}
        return form(number, state=state, **{**common, **where, **columns})


def _element(number: str, index: str) -> str:
    return f"{number}_{index}" if index else number


def _option(name: str, argv: Sequence[str], script: str) -> str:
    """Return the value of an option of sbatch, from its words or from its script."""
    values = [word.partition("=")[2] for word in argv if word.startswith(f"--{name}=")]
    directives: list[str] = re.findall(rf"^#SBATCH --{name}=(.*)$", script, re.MULTILINE)
    return ([*directives, *values] or [""])[-1]


# --- As programs ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Programs:
    """Slurm's commands as programs in a folder; a file next to them holds the model."""

    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        values = {"python": shlex.quote(sys.executable), "repository": str(REPOSITORY)}
        for name in PROGRAMS:
            path = self.folder / name
            path.write_text(_PROGRAM.format(**values, folder=str(self.folder)))
            path.chmod(0o755)

    @property
    def path(self) -> str:
        """PATH with these programs first."""
        return f"{self.folder}:{os.environ['PATH']}"

    @property
    def state(self) -> Path:
        """The file of the model."""
        return self.folder / "state.json"

    @property
    def model(self) -> Slurm:
        """The model as it is now; to change it, see `changed`."""
        return _load(self.state)

    @contextmanager
    def changed(self) -> Iterator[Slurm]:
        """Yield the model, and save the changes."""
        with _lock_model(self.folder) as slurm:
            yield slurm

    def answers(self, **programs: ScriptedAnswer | list[Any]) -> None:
        """Set the answers of each program, as the attributes of `Slurm`."""
        with self.changed() as slurm:
            for name, program in programs.items():
                setattr(slurm, name, program)

    def calls(self, program: str) -> list[list[str]]:
        return [list(call) for call in self.model.called(program)]

    @property
    def waiting(self) -> bool:
        """Whether a program waits for `let_go`."""
        return (self.folder / "waits").exists()

    def let_go(self) -> None:
        (self.folder / "go").touch()


def main(folder: str) -> None:
    """Answer as the called program."""
    place = Path(folder)
    argv = (Path(sys.argv[0]).name, *sys.argv[1:])
    if argv[1:] == ("--version",):
        return
    with _lock_model(place) as slurm:
        scripted = slurm.said(argv)
    if isinstance(scripted, Answer) and scripted.waits:
        (place / "waits").touch()
        end = time.monotonic() + 300
        while not (place / "go").exists() and time.monotonic() < end:
            time.sleep(0.01)
    with _lock_model(place) as slurm:
        answer = slurm.answered(argv, scripted, str(Path.cwd()))
    sys.stdout.write(answer.out)
    sys.stderr.write(answer.complaint)
    raise SystemExit(answer.code)


@contextmanager
def _lock_model(folder: Path) -> Iterator[Slurm]:
    """Lock the model in a folder for one program; write it back whole."""
    state = folder / "state.json"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        slurm = _load(state)
        yield slurm
        values = asdict(slurm)
        for name in PROGRAMS:
            scripted = getattr(slurm, name)
            values[name] = (
                scripted if scripted is None or isinstance(scripted, list) else [scripted]
            )
        for name in ("before", "environments", "now"):
            del values[name]
        text = json.dumps({**values, "away": sorted(slurm.away), "forgets": sorted(slurm.forgets)})
        (folder / "new").write_text(text)
        (folder / "new").replace(state)


def _load(state: Path) -> Slurm:
    if not state.exists():
        return Slurm()
    values = json.loads(state.read_text())
    values["jobs"] = {number: Job(**job) for number, job in values["jobs"].items()}
    values["calls"] = [tuple(call) for call in values["calls"]]
    for name in ("away", "forgets"):
        values[name] = set(values[name])
    for name in PROGRAMS:
        value = values[name]
        if isinstance(value, list):
            values[name] = [
                Answer(*answer) if isinstance(answer, list) else answer for answer in value
            ]
    return Slurm(**values)
