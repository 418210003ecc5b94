"""The measurements of side_by_side.py: one row each, with its floor, its peers and its goals.

Commands are whole processes. The input of a row, such as logs or a thousand finished jobs, is made
just before the row is measured, below the folder of this run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import material
from material import LATER, REPOSITORY

from hpcbert.cli.main import COMMANDS

Words = list[str]
# A command, or a function that runs one and returns its measured seconds.
Command = Words | Callable[[], float]
# The start of Python on the machine of the goals in milliseconds.
PYTHON_THEN = 16.0
# The most MB for hpcbert: a large log may take no more than small ones, which take 21.
MEMORY_THEN = 32.0


@dataclass(frozen=True)
class Figures:
    """The results of one row: medians in milliseconds, by name; peak memory in MB.

    Attributes:
        why: How hpcbert's command spends its time, if it misses a goal.
    """

    floor: float
    own: float
    peers: Mapping[str, float]
    memory: float = 0.0
    why: str = ""


@dataclass(frozen=True)
class Goal:
    """A limit for hpcbert.

    Attributes:
        limit: Milliseconds, from a row's figures; None if it depends on a missing peer.
    """

    text: str
    limit: Callable[[Figures], float | None]
    value: Callable[[Figures], float] = lambda figures: figures.own

    def met(self, figures: Figures) -> bool | None:
        """Return whether it is met; None if unknown."""
        limit = self.limit(figures)
        return None if limit is None else self.value(figures) <= limit


@dataclass(frozen=True)
class Case:
    """The commands of one row, which take turns.

    Attributes:
        once: Names of peers that are measured only in the first turn.
        what: Replaces the row's name, if that depends on the machine.
    """

    floor: tuple[str, Command]
    own: Command
    peers: Mapping[str, Command] = field(default_factory=dict)
    once: frozenset[str] = frozenset()
    what: str = ""


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        make: Makes the commands.
        most: The most turns, for slow commands.
        warm: Turns before the measured ones.
        slurm: Whether it needs a cluster.
    """

    what: str
    make: Callable[[Place], Case]
    goals: tuple[Goal, ...]
    most: int = 99
    warm: int = 1
    slurm: bool = False


@dataclass(frozen=True)
class Place:
    """The folder and the arguments of a run.

    Attributes:
        peers: Interpreters of the peers, by name.
        programs: Peers that you installed, by name: `jube`, `llmb-run`.
        logs: DLPerf's thirty logs; None: made ones stand in.
        dlperf: DLPerf's script for them; None if missing.
    """

    folder: Path
    peers: Mapping[str, str]
    programs: Mapping[str, Path]
    logs: Path | None = None
    dlperf: Path | None = None

    def python(self, name: str, code: str, *words: object) -> dict[str, Command]:
        """Return a peer's command; empty if the peer is missing."""
        if name not in self.peers:
            return {}
        return {name: [self.peers[name], "-c", code, *map(str, words)]}


HPCBERT = [sys.executable, "-m", "hpcbert"]
BARE: tuple[str, Command] = ("python -c pass", [sys.executable, "-c", "pass"])

MAP_ARRAY = """
import submitit, sys
folder, calls, together, begin = sys.argv[1], *map(int, sys.argv[2:4]), sys.argv[4]
executor = submitit.SlurmExecutor(folder=folder)
later = {"begin": begin} if begin else {}
executor.update_parameters(time=1, array_parallelism=together, additional_parameters=later)
jobs = [job for _ in range(calls) for job in executor.map_array(abs, [1] * 5)]
if not begin:
    [job.result() for job in jobs]
"""
SIMPLE_ARRAY = """
import sys
from simple_slurm import Slurm
Slurm(array=range(1, 6), begin=sys.argv[1]).sbatch("true")
"""
SUBMITIT_STATUS = """
import sys
from submitit.slurm.slurm import SlurmJob
jobs = [SlurmJob(sys.argv[1], f"{sys.argv[2]}_{index}") for index in range(1, 1001)]
jobs[0].watcher.update()
print(sum(job.watcher.get_state(job.job_id, mode="cache") == "COMPLETED" for job in jobs))
"""


def times_floor(factor: float, of: str) -> Goal:
    return Goal(f"<= {factor:g} x {of}", lambda figures: factor * figures.floor)


def times_peer(factor: float, peer: str) -> Goal:
    """Return a goal of so many times the figure of a peer, if it was measured."""
    text = f"<= {factor:g} x {peer}" if factor != 1 else f"<= {peer}"

    def limit(figures: Figures) -> float | None:
        figure = figures.peers.get(peer)
        return None if figure is None else factor * figure

    return Goal(text, limit)


def scaled(milliseconds: float) -> Goal:
    """Return a goal in milliseconds, which grows where Python takes longer than PYTHON_THEN."""
    text = f"<= {milliseconds:g} ms where python takes {PYTHON_THEN:g}"

    def limit(figures: Figures) -> float:
        python = figures.peers.get(BARE[0], figures.floor)
        return milliseconds * max(1.0, python / PYTHON_THEN)

    return Goal(text, limit)


def at_most(milliseconds: float) -> Goal:
    return Goal(f"<= {milliseconds:,.0f} ms", lambda _: milliseconds)


MEMORY = Goal(
    f"memory <= {MEMORY_THEN:g} MB", lambda _: MEMORY_THEN, value=lambda figures: figures.memory
)


def start(*words: str) -> Callable[[Place], Case]:
    """Return a measurement of a command that does nothing."""

    def make(place: Place) -> Case:
        peers: dict[str, Command] = {
            "import click": [sys.executable, "-c", "import click"],
            **place.python("simple_slurm", "import simple_slurm"),
            **place.python("submitit", "import submitit"),
        }
        if "reframe" in place.peers:
            program = Path(place.peers["reframe"]).with_name("reframe")
            peers["reframe --version"] = [str(program), "--version"]
        for name, program in place.programs.items():
            peers[f"{name} --version"] = [str(program), "--version"]
        return Case(BARE, [*HPCBERT, *words], peers)

    return make


def slowest_help(place: Place) -> Case:
    """Return a measurement of the command whose `--help` takes most processor time."""

    def cost(name: str) -> float:
        before = os.times()
        subprocess.run([*HPCBERT, name, "--help"], check=True, capture_output=True)
        after = os.times()
        return sum(after[2:4]) - sum(before[2:4])

    for compiled in COMMANDS:
        cost(compiled)  # the first run compiles its modules
    name = max(COMMANDS, key=lambda name: min(cost(name), cost(name)))
    return replace(start(name, "--help")(place), what=f"`{name} --help`, the slowest of all")


def array_of_five(place: Place) -> Case:
    peers = {
        **place.python("simple_slurm", SIMPLE_ARRAY, LATER),
        **place.python("submitit", MAP_ARRAY, place.folder / "submitit", 1, 1, LATER),
    }
    bare = ["sbatch", "--parsable", str(material.bare_script(place.folder))]
    return Case(("sbatch", bare), submit(place.folder), peers)


def points(number: int, peer: str, repeats: int = 5) -> Callable[[Place], Case]:
    """Return a measurement of submitting so many points, with an array each."""

    def make(place: Place) -> Case:
        script = material.bare_script(place.folder, repeats)
        loop = f'for i in $(seq {number}); do sbatch --parsable "$0"; done'
        sizes = ",".join(str(size) for size in range(1, number + 1))
        calls = place.folder / "submitit"
        peers = place.python("submitit", MAP_ARRAY, calls, number, 1, LATER) if peer else {}
        return Case(
            (f"{number:,} x sbatch", ["bash", "-c", loop, str(script)]),
            submit(place.folder, "--batch-size", sizes, "--repeats", str(repeats)),
            peers,
        )

    return make


def submit(folder: Path, *words: str) -> Words:
    """Return a submission of jobs that do not start before the benchmark ends."""
    runs = ["--runs", str(folder / "runs"), f"--sbatch-arg=--begin={LATER}"]
    # An interpreter, as for the peers: python3 on PATH may be a script that searches for one.
    python = ["--python", sys.executable]
    return [*HPCBERT, "submit", "--fw", "pytorch", *python, *runs, *words]


def status(place: Place) -> Case:
    directory, job = material.thousand(place.folder)
    columns = "JobID,State,ExitCode,NodeList"
    return Case(
        ("sacct", ["sacct", "-X", "-P", "-n", "-j", job, "-o", columns]),
        [*HPCBERT, "monitor", str(directory), "--once"],
        place.python("submitit", SUBMITIT_STATUS, place.folder, job),
    )


def collect(logs: Path) -> Words:
    recipes = str(REPOSITORY / "tests" / "campaign" / "recipes")
    return [*HPCBERT, "collect", str(logs), "--fw", "tf2-resnet", "--templates", recipes]


def script_of_dlperf(place: Place, logs: Path) -> dict[str, Command]:
    if place.dlperf is None:
        return {}
    shutil.copy(place.dlperf, script := place.folder / "extract.py")
    inside = logs / "tensorflow" / "resnet50"
    return {"DLPerf's script": [sys.executable, str(script), "--log_dir", str(inside)]}


def thirty(place: Place) -> Case:
    logs = material.thirty(place.folder, place.logs)
    files = [str(path) for path in sorted(logs.rglob("*.log"))]
    peers: dict[str, Command] = {BARE[0]: BARE[1], **script_of_dlperf(place, logs)}
    return Case(("cat", ["cat", *files]), collect(logs), peers)


def three_thousand(place: Place) -> Case:
    logs = material.three_thousand(place.folder, place.logs)
    count = ["find", str(logs), "-name", "*.log", "-exec", "wc", "-l", "{}", "+"]
    return Case(("wc -l", count), collect(logs), script_of_dlperf(place, logs))


def large(place: Place) -> Case:
    log = material.large(place.folder, place.logs)
    logs = log.parents[3]
    peers = script_of_dlperf(place, logs)
    return Case(("wc -l", ["wc", "-l", str(log)]), collect(logs), peers, frozenset(peers))


def five_on_slurm(*, together: int) -> Callable[[Place], Case]:
    def make(place: Place) -> Case:
        bare = f"sbatch --wait --array=1-5%{together} --output=/dev/null --wrap=true"
        folder = place.folder / "submitit"
        return Case(
            ("sbatch --wait", ["bash", "-c", bare]),
            [*measured_now(place.folder), "--concurrent-repeats", str(together)],
            place.python("submitit", MAP_ARRAY, folder, 1, together, ""),
        )

    return make


def measured_now(folder: Path, *words: str) -> Words:
    """Return a whole measurement with a program that takes no time."""
    recipes = material.instant(folder)
    runs = ["--runs", str(folder / "runs"), "--templates", str(recipes)]
    return [*HPCBERT, "submit", "--fw", "instant", "--wait", *runs, *words]


def five_locally(place: Place) -> Case:
    site = material.local_site(place.folder)
    peers: dict[str, Command] = {}
    if "reframe" in place.peers:
        program = str(Path(place.peers["reframe"]).with_name("reframe"))
        check = str(material.reframe_check(place.folder))
        peers["reframe"] = [program, "--prefix", str(place.folder / "reframe"), "-c", check, "-r"]
    loop = "for i in 1 2 3 4 5; do bash -c true; done"
    own = measured_now(place.folder, "--site", str(site), "--scheduler", "local")
    return Case(("five processes", ["bash", "-c", loop]), own, peers)


def screen(floor: float) -> Callable[[Place], Case]:
    """Return a measurement from a job's last output to the end of the command that waits for it."""

    def make(place: Place) -> Case:
        site = material.slurm_site(place.folder, floor)
        command = measured_now(place.folder, "--site", str(site), "--repeats", "1")

        def wait() -> float:
            subprocess.run(command, cwd=place.folder, check=True, capture_output=True)
            over = time.time()
            files = (place.folder / "runs").glob("*/status/*.jsonl")
            return over - max(path.stat().st_mtime for path in files)

        return Case(BARE, wait)

    return make


ROWS: dict[str, Row] = {
    "help": Row("`--help`", start("--help"), (scaled(60),)),
    "version": Row("`--version`", start("--version"), (scaled(60),)),
    "submit-help": Row("`submit --help`", start("submit", "--help"), (scaled(250),)),
    "slowest-help": Row("the slowest `--help` of all commands", slowest_help, (scaled(250),)),
    "frameworks": Row("`frameworks`", start("frameworks"), (scaled(250),)),
    "collect-30": Row("collect 30 logs", thirty, (scaled(250),)),
    "collect-3000": Row(
        "collect 3,000 logs, 124 MB",
        three_thousand,
        (times_floor(8, "wc -l"),),
    ),
    "collect-2GB": Row(
        "collect one log of 2 GB, window at the end",
        large,
        (times_floor(5, "wc -l"), MEMORY),
        most=5,
    ),
    "five-in-turn": Row(
        "five repeats of no time, one by one",
        five_on_slurm(together=1),
        (),
        most=3,
        warm=0,
        slurm=True,
    ),
    "five-together": Row(
        "the same, together",
        five_on_slurm(together=5),
        (times_peer(1, "submitit"),),
        most=5,
        slurm=True,
    ),
    "five-locally": Row("the same, local queue", five_locally, (times_peer(1, "reframe"),), most=5),
    "screen-1": Row(
        "a job's end to the screen, poll floor 1 s",
        screen(1),
        (at_most(2000),),
        most=3,
        warm=0,
        slurm=True,
    ),
    "screen-10": Row(
        "the same, poll floor 10 s", screen(10), (at_most(2000),), most=3, warm=0, slurm=True
    ),
    # Last, because Slurm lists what these leave for minutes (MinJobAge).
    "array": Row(
        "submit an array of five", array_of_five, (times_peer(2.5, "submitit"),), slurm=True
    ),
    "points-100": Row(
        "submit 100 points, 500 repeats",
        points(100, "submitit"),
        (times_floor(3, "100 x sbatch"),),
        most=3,
        slurm=True,
    ),
    "points-1000": Row(
        "submit 1,000 points",
        # Ten thousand jobs are Slurm's limit, with those of five minutes ago (MaxJobCount).
        points(1000, "", repeats=1),
        (times_floor(3, "1,000 x sbatch"),),
        most=1,
        warm=0,
        slurm=True,
    ),
    "status": Row(
        "status of 1,000 finished elements", status, (times_peer(1, "submitit"),), slurm=True
    ),
}
