"""A scripted Slurm: one model of jobs, for calls in this process or from programs on PATH.

sbatch queues a job, scancel ends it, squeue, sacct and scontrol show it; the test starts and ends
jobs. `Answers` is a cluster without jobs, which reports its parts and limits.
"""

import fcntl
import os
import pickle
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.kit.paths import REPOSITORY

if TYPE_CHECKING:  # The stand-ins for Slurm's programs don't load hpcbert.
    from hpcbert.system.runner import Outcome

# 2026-11-21T10:06:39Z: when jobs are submitted, unless a test says otherwise.
T = 1_795_255_599
NAME = "hpcbert-camp-bert-tiny_1n1g_fp32_b4"
AWAY = "Unable to contact slurm controller (connect failure)"
DENIED = "slurm_load_partitions: Access/permission denied\n"
PROGRAMS = ("sbatch", "squeue", "sacct", "scontrol", "scancel", "sinfo", "srun", "sacctmgr")
_SACCT = "{job}|{user}|{state}|{exit_code}|{reason}|{submit}|{start}|{end}|{elapsed}|{limit}|{nodes}|{name}"
_SQUEUE = "{job}|{user}|{state}|{submit}|{start}|{end}|{elapsed}|{limit}|{nodes}|{name}|{reason}"
_SCONTROL = """\
JobId={job} ArrayJobId={job} ArrayTaskId={tasks} JobName={name}
   UserId={user}({uid}) GroupId=g(1) MCS_label=N/A
   JobState={state} Reason=None Dependency=(null)
   SubmitTime={submit}
   Command={command}
   WorkDir={place}
   Comment={comment}

"""
_PARTITION = (
    "PartitionName={name} AllowGroups={groups} AllowAccounts={accounts} AllowQos={qos} Default={default} "
    "QoS={own_qos} DefaultTime=NONE MaxNodes=UNLIMITED MaxTime={limit} Nodes=n[1-{nodes}] "
    "State=UP TotalNodes={nodes} DefMemPerNode=UNLIMITED TRES=node={nodes},gres/gpu={gpus} {more}\n"
)
_ALL: dict[str, Any] = {"user": "nobody", "uid": 7, "cluster": "c", "name": NAME, "submit": T}
_ALL |= {"reason": "None", "command": "", "comment": ""}


def sacct(job: object, state: str, **columns: Any) -> str:
    """Return a line of sacct; with a place, also the columns that identify the job's campaign."""
    submit = columns.get("submit", T)
    usual = {"exit_code": "0:0", "start": submit + 1, "end": submit + 9, "elapsed": 8, "limit": 60}
    usual |= {"nodes": "n1", "job": job, "state": state}
    more = "|{uid}|{cluster}|{place}" if "place" in columns else ""
    return f"{_SACCT}{more}\n".format(**{**_ALL, **usual, **columns})


def squeue(job: object, state: str, **columns: Any) -> str:
    """Return a line of squeue; with a place, also the columns that identify the job's campaign."""
    usual = {"start": "N/A", "end": "N/A", "elapsed": "0:00", "limit": "1:00:00", "nodes": ""}
    more = "|//{uid}|//{command}|//{place}|//{comment}" if "place" in columns else ""
    return f"{_SQUEUE}{more}\n".format(**{**_ALL, **usual, "job": job, "state": state, **columns})


def scontrol(job: object, **columns: Any) -> str:
    usual = {"state": "PENDING", "tasks": "1-5%1", "place": "/nowhere", "command": "/nowhere/x"}
    return _SCONTROL.format(**{**_ALL, **usual, "job": job, **columns})


def sinfo(*nodes: str, partition: str = "gpu*", state: str = "idle") -> str:
    return "".join(f"{node}|{partition}|{state}\n" for node in nodes)


def partition(name: str = "gpu", *, nodes: int = 2, gpus: int = 16, **columns: str) -> str:
    """Return the output of scontrol for a partition; `more` is appended."""
    usual = {"groups": "ALL", "accounts": "ALL", "qos": "ALL", "own_qos": "N/A", "default": "YES"}
    usual |= {"limit": "UNLIMITED", "more": ""}
    values = {**usual, "name": name, "nodes": nodes, "gpus": gpus, **columns}
    return _PARTITION.format(**values)


class Answer(NamedTuple):
    """The output and exit status of a program.

    Attributes:
        acts: Whether it first does what the call requests.
        waits: Whether it makes a file `waits` next to the program first, and waits for one, `go`.
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
        for span in () if self.tasks else self.array.partition("%")[0].split(","):
            low, _, high = span.partition("-")
            indices = map(str, range(int(low), int(high) + 1)) if high else [low]
            self.tasks |= {index: ["PENDING", ""] for index in indices}

    def end(self, state: str, *indices: object, node: str = "n1") -> None:
        """Give some of its indices, or all, another state."""
        for index in indices or self.tasks:
            self.tasks[str(index)] = [state, node]

    def alive(self) -> list[str]:
        return [index for index, task in self.tasks.items() if task[0] in {"PENDING", "RUNNING"}]


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
        away: Programs that can't reach Slurm.
        forgets: States that squeue no longer shows.
        dies: Whether the caller of sbatch is interrupted when the job is queued.
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
    forgets: set[str] = field(
        default_factory=lambda: {"COMPLETED", "FAILED", "NODE_FAIL", "TIMEOUT"}
    )
    dies: bool = False
    first: int = 100
    now: float = field(default_factory=time.time)
    before: Callable[[str], object] | None = None

    def __call__(
        self, argv: Sequence[str], *, stdin: str = "", env: Mapping[str, str] | None = None,
        cwd: Path | None = None, timeout: float = 60.0, death_signal: int | None = None,
    ) -> "Outcome":  # fmt: skip
        from hpcbert.system.runner import Outcome

        self.environments.append(env or {})
        answer = self.answered(tuple(argv), self.said(tuple(argv)), str(cwd or ""))
        return Outcome(tuple(argv), answer.code, answer.out, answer.complaint)

    def count(self, program: str) -> int:
        return len(self.called(program))

    def called(self, program: str) -> list[tuple[str, ...]]:
        return [call for call in self.calls if call[0] == program]

    def said(self, argv: tuple[str, ...]) -> ScriptedAnswer:
        """Record a call and return the set answer of its program."""
        number = self.count(argv[0])
        self.calls.append(argv)
        answer: Any = getattr(self, argv[0], None)
        if isinstance(answer, list):
            answer = answer[min(number, len(answer) - 1)] if answer else None
        return answer  # type: ignore[no-any-return]

    def answered(self, argv: tuple[str, ...], scripted: ScriptedAnswer, cwd: str = "") -> Answer:
        if self.before:
            self.before(argv[0])
        if argv[0] in self.away:
            return failed(f"{argv[0]}: error: {AWAY}")
        if scripted is None or (isinstance(scripted, Answer) and scripted.acts):
            act = getattr(self, f"do_{argv[0]}", None)
            answer: Answer = act(argv, cwd) if act else Answer()
            return scripted if scripted and (scripted.code or scripted.complaint) else answer
        return Answer(scripted) if isinstance(scripted, str) else scripted

    def do_sbatch(self, argv: tuple[str, ...], cwd: str) -> Answer:
        script = Path(argv[-1])
        lines = [*script.read_text().splitlines(), *(f"#SBATCH {word}" for word in argv)]
        values = dict.fromkeys(("job-name", "array", "comment"), "")
        for line in lines:
            option = re.match(r"#SBATCH --(job-name|array|comment)=(.*)", line)
            values |= {option[1]: option[2]} if option else {}
        name, array, comment = values.values()
        number = str(self.first + len(self.jobs))
        self.jobs[number] = Job(name, argv[-1], cwd or str(script.parent.parent), array, comment)
        if self.dies:
            raise KeyboardInterrupt
        return Answer(f"{number}\n")

    def do_squeue(self, argv: tuple[str, ...], cwd: str) -> Answer:
        rows = []
        for number, job in self.jobs.items():
            waiting = [index for index, (state, _) in job.tasks.items() if state == "PENDING"]
            if len(waiting) == len(job.tasks) and waiting != [""]:
                rows.append(self._row(squeue, f"{number}_[{job.array}]", job, "PENDING", ""))
            else:
                rows += self._rows(squeue, number, job, hidden=self.forgets)
        return Answer("".join(rows))

    def do_sacct(self, argv: tuple[str, ...], cwd: str) -> Answer:
        rows = (self._rows(sacct, number, job) for number, job in self.jobs.items())
        return Answer("".join(row for job_rows in rows for row in job_rows))

    def do_scontrol(self, argv: tuple[str, ...], cwd: str) -> Answer:
        numbers = list(self.jobs) if argv[-2:] == ("show", "job") else [argv[-1]]
        if numbers == [argv[-1]] and argv[-1] not in self.jobs:
            return failed("slurm_load_jobs error: Invalid job id specified")
        jobs = ((number, self.jobs[number]) for number in numbers)
        return Answer("".join(self._row(scontrol, n, job, "PENDING", "") for n, job in jobs))

    def do_scancel(self, argv: tuple[str, ...], cwd: str) -> Answer:
        for number in set(argv[1:]) & set(self.jobs):
            self.jobs[number].end("CANCELLED", *self.jobs[number].alive())
        return Answer()

    def do_sinfo(self, argv: tuple[str, ...], cwd: str) -> Answer:
        return Answer(sinfo(*(f"n{number}" for number in range(1, 9))))

    def _rows(
        self, form: Callable[..., str], number: str, job: Job, hidden: Sequence[str] | set[str] = ()
    ) -> list[str]:
        """Return a line for each index of a job whose state is not hidden."""
        return [
            self._row(form, f"{number}_{index}".rstrip("_"), job, state, node)
            for index, (state, node) in job.tasks.items()
            if state.partition(" ")[0] not in hidden
        ]

    def _row(self, form: Callable[..., str], number: str, job: Job, state: str, node: str) -> str:
        """Return a job's line; without a script it lacks the job's origin."""
        where = {"place": job.place, "command": job.script} if job.script else {}
        where |= {"comment": job.comment} if job.script and job.comment else {}
        common = {"name": job.name, "submit": int(self.now), "nodes": node, "uid": os.geteuid()}
        columns = {} if form is scontrol else {"user": "someone"}
        return form(number, state=state, **{**common, **where, **columns})


@dataclass
class Answers(Slurm):
    """The output of a cluster's commands, by their first words.

    Attributes:
        partitions, config, job: Of scontrol.
        own, accounts, user, qos: Of sacctmgr: associations (own, the accounts'), the default, all QOS.
        complaints: By attribute: the error of the command, which then fails.
    """

    sinfo: str = "gpu*|up|2|infinite|1-infinite|gpu:8|n[1-2]\n"
    partitions: str = partition()
    config: str = "ClusterName = c\nAccountingStorageEnforce = none\nSLURM_VERSION = 24.11.5\n"
    job: str = ""
    own: str = ""
    accounts: str = ""
    user: str = ""
    qos: str = "normal||||\n"
    mpi: str = "MPI plugin types are...\n\tpmix\n\tnone\n\tpmi2\n"
    help: str = "Usage: srun\n"
    complaints: Mapping[str, str] = field(default_factory=dict)

    def answered(self, argv: tuple[str, ...], scripted: ScriptedAnswer, cwd: str = "") -> Answer:
        """Return the answer to a command: that of an attribute."""
        words = [word for word in argv[1:] if not word.startswith("-")]
        kind = "".join(words[1:2])
        names = {
            "srun": "mpi" if "--mpi=list" in argv else "help",
            "scontrol": "partitions" if kind == "partition" else kind,
            "sacctmgr": ("accounts" if "user=" in words else "own") if kind == "assoc" else kind,
        }
        name = names.get(argv[0], argv[0])
        if complaint := self.complaints.get(name, ""):
            return failed(complaint)
        return Answer(getattr(self, name, "") or "")


# --- As programs ----------------------------------------------------------------------------------

_PROGRAM = f"""\
#!/bin/sh
''''exec {shlex.quote(sys.executable)} -I -S "$0" "$@" # '''
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from tests.kit.slurm import main
main()
"""


@dataclass(frozen=True)
class Programs:
    """Slurm's commands as programs in a folder; a file next to them holds the model."""

    folder: Path
    initial: Slurm = field(default_factory=Slurm)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in PROGRAMS:
            (self.folder / name).write_text(_PROGRAM)
            (self.folder / name).chmod(0o755)
        _save(self.folder, self.initial)

    @property
    def path(self) -> str:
        return f"{self.folder}:{os.environ['PATH']}"

    @property
    def model(self) -> Slurm:
        """The model as it is now; to change it, see `changed`."""
        return _load(self.folder)

    def changed(self) -> AbstractContextManager[Slurm]:
        """Give the model, and save the changes."""
        return _lock_model(self.folder)

    def answers(self, **programs: ScriptedAnswer | list[Any]) -> None:
        """Set the answers of each program, as the attributes of `Slurm`."""
        with self.changed() as slurm:
            for name, program in programs.items():
                setattr(slurm, name, program)

    def calls(self, program: str) -> list[list[str]]:
        return [list(call) for call in self.model.called(program)]


def main() -> None:
    """Answer as the called program."""
    program = Path(sys.argv[0])
    argv = (program.name, *sys.argv[1:])
    if argv[1:] == ("--version",):
        return
    with _lock_model(program.parent) as model:
        scripted = model.said(argv)
    if isinstance(scripted, Answer) and scripted.waits:
        (program.parent / "waits").touch()
        end = time.monotonic() + 300
        while not (program.parent / "go").exists() and time.monotonic() < end:
            time.sleep(0.01)
    with _lock_model(program.parent) as model:
        answer = model.answered(argv, scripted, str(Path.cwd()))
    sys.stdout.write(answer.out)
    sys.stderr.write(answer.complaint)
    raise SystemExit(answer.code)


@contextmanager
def _lock_model(folder: Path) -> Iterator[Slurm]:
    """Lock the model in a folder for one program; write it back whole."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        model = _load(folder)
        yield model
        _save(folder, model)


def _save(folder: Path, model: Slurm) -> None:
    (folder / "new").write_bytes(pickle.dumps(model))
    (folder / "new").replace(folder / "state")


def _load(folder: Path) -> Slurm:
    model: Slurm = pickle.loads((folder / "state").read_bytes())
    model.now = time.time()
    return model
