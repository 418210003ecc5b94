"""Side by side with peers: every row of README.md's table, with its floor, its goal, met or missed.

Whole processes take turns with their floor (bare python, sbatch, sacct, cat, wc), so that a ratio
holds when the machine's speed drifts. Peers come from the package index, each into an environment
of its own below --peers; JUBE and llmb-run are not on an index; they are measured if you name them.

    python benchmarks/side_by_side.py                          # what needs no cluster
    . /var/lib/hpcbert-lab/env.sh; python benchmarks/side_by_side.py --slurm
    python benchmarks/side_by_side.py --only help,collect-30 --runs 1 --no-peers

--readme replaces the table in README.md. Next to a missed
goal, the table shows how the command spends its time, from a separate run under cProfile
(shares.py).

--logs names the thirty logs of Oneflow-Inc/DLPerf@e36df2e (ResNet-50 on TensorFlow 2), the only
complete five-run set in public; logs of their form stand in. --dlperf names DLPerf's own script for
them, TensorFlow/resnet50v1.5/extract_tensorflow_logs_time.py, which needs numpy.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import platform
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import material
from rows import MEMORY, ROWS, Case, Command, Figures, Place, Row
from shares import shares

REPOSITORY = Path(__file__).resolve().parent.parent
PEERS = {
    "submitit": "submitit==1.5.4",
    "reframe": "reframe-hpc==4.10.4",
    "simple_slurm": "simple-slurm==0.3.6",
}
OWN = "hpcbert"
# A limit in seconds, for commands that hang.
TIMEOUT = 900.0
README = Path(__file__).with_name("README.md")
HEAD = """\
| what | floor, ms | peers, ms | hpcbert, ms | goal | where the time goes |
|---|---|---|---|---|---|
"""


# This program is small, because a process's memory before exec counts as the new program's.
PEAK = """
import os, resource, sys
null = os.open(os.devnull, os.O_WRONLY)
told = os.dup(1)
os.dup2(null, 1), os.dup2(null, 2)
os.waitpid(os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ), 0)
os.write(told, b"%d" % resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def run(command: Command, folder: Path) -> float:
    """Run a command once; return its milliseconds."""
    if callable(command):
        return 1000 * command()
    started = time.perf_counter()
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, check=False, timeout=TIMEOUT
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{_brief(command)}: it takes more than {TIMEOUT:.0f} s") from error
    elapsed = time.perf_counter() - started
    if done.returncode not in (0, 4):
        said = (done.stdout + done.stderr)[-2000:].decode(errors="replace")
        raise RuntimeError(f"{_brief(command)}: {done.returncode}\n{said}")
    return 1000 * elapsed


def _brief(command: list[str]) -> str:
    return textwrap.shorten(shlex.join(command), 200)


def peak(command: Command, folder: Path) -> float:
    """Run a command once more; return its peak memory in MB."""
    assert not callable(command)
    words = [sys.executable, "-I", "-S", "-c", PEAK, *command]
    done = subprocess.run(words, cwd=folder, capture_output=True, check=True, timeout=TIMEOUT)
    return int(done.stdout) / 1024


def measure(row: Row, case: Case, runs: int, folder: Path) -> Figures:
    """Measure a row's commands in turns; leave out a peer that fails.

    Raises:
        RuntimeError: Another command fails.
    """
    commands: dict[str, Command] = {case.floor[0]: case.floor[1], OWN: case.own, **case.peers}
    found: dict[str, list[float]] = {name: [] for name in commands}
    turns = min(runs, row.most)
    for turn in range(row.warm + turns):
        for name, command in list(commands.items()):
            if name in case.once and found[name]:
                continue
            try:
                elapsed = run(command, folder)
            except RuntimeError as error:
                if name not in case.peers:
                    raise
                print(f"note: {error}", file=sys.stderr)
                del commands[name], found[name]
                continue
            if turn >= row.warm or name in case.once:
                found[name].append(elapsed)
    middle = {name: statistics.median(some) for name, some in found.items()}
    floor, own = (middle.pop(name) for name in (case.floor[0], OWN))
    figures = Figures(floor, own, middle, peak(case.own, folder) if MEMORY in row.goals else 0.0)
    missed = any(goal.met(figures) is False for goal in row.goals)
    if missed and not callable(case.own):
        return replace(figures, why=shares(case.own, folder, TIMEOUT))
    return figures


def line(row: Row, case: Case, figures: Figures) -> str:
    """Return a row of the table."""
    peers = ", ".join(f"{name} {shown(one)}" for name, one in figures.peers.items())
    words = {True: "met", False: "**missed**", None: "not known"}
    goals = "; ".join(f"{goal.text}: {words[goal.met(figures)]}" for goal in row.goals)
    floor = f"{case.floor[0]} {shown(figures.floor)}"
    memory = f", {figures.memory:.0f} MB" if figures.memory else ""
    own = f"{shown(figures.own)} ({figures.own / figures.floor:.1f} x{memory})"
    if callable(case.own):  # The floor needs only to be run.
        floor, own = "", shown(figures.own)
    return f"| {case.what or row.what} | {floor} | {peers} | {own} | {goals} | {figures.why} |"


def shown(milliseconds: float) -> str:
    return f"{milliseconds:,.1f}" if milliseconds < 100 else f"{milliseconds:,.0f}"


def peers(folder: Path) -> dict[str, str]:
    """Return each peer's interpreter, after installing missing ones."""
    found = {}
    for name, requirement in PEERS.items():
        python = folder / name / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", folder / name], check=True)
            command = [str(python), "-m", "pip", "install", "--quiet", requirement]
            if subprocess.run(command, check=False).returncode:
                print(f"note: {requirement} can't be installed here", file=sys.stderr)
                shutil.rmtree(folder / name)
                continue
        found[name] = str(python)
    return found


def chosen(words: argparse.Namespace) -> dict[str, Row]:
    names = words.only.split(",") if words.only else list(ROWS)
    if unknown := [name for name in names if name not in ROWS]:
        raise SystemExit(f"no rows {', '.join(unknown)}; there are: {', '.join(ROWS)}")
    return {name: ROWS[name] for name in names if words.slurm or not ROWS[name].slurm}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=7, help="counted turns, at most")
    parser.add_argument("--only", metavar="ROWS", help=f"some of: {', '.join(ROWS)}")
    parser.add_argument("--slurm", action="store_true", help="also what needs a cluster, as a lab")
    parser.add_argument("--logs", type=Path, help="DLPerf's thirty logs")
    parser.add_argument("--dlperf", type=Path, help="DLPerf's script for them")
    parser.add_argument("--jube", type=Path, help="the program `jube`")
    parser.add_argument("--llmb-run", type=Path, help="the program `llmb-run`")
    parser.add_argument("--peers", type=Path, default=REPOSITORY / ".setup" / "peers")
    parser.add_argument("--no-peers", action="store_true", help="install and measure none")
    parser.add_argument("--readme", action="store_true", help="put the table into README.md")
    parser.add_argument("--json", type=Path, help="write all figures to a file")
    return parser.parse_args()


def main() -> None:
    words = parsed()
    rows = chosen(words)
    base = material.seen_by_nodes() if words.slurm else None
    folder = Path(tempfile.mkdtemp(prefix="hpcbert-bench-", dir=base)).resolve()
    programs = {"jube": words.jube, "llmb-run": words.llmb_run}
    place = Place(
        folder,
        {} if words.no_peers else peers(words.peers.absolute()),
        {name: path.absolute() for name, path in programs.items() if path},
        words.logs and words.logs.absolute(),
        words.dlperf and words.dlperf.absolute(),
    )
    # Like a user's: compiled once, and kept.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    started, all_figures, table, failed = time.monotonic(), {}, HEAD, []
    print(HEAD, end="")
    try:
        for name, row in rows.items():
            try:
                case = row.make(place)
                figures = measure(row, case, words.runs, folder)
            except (RuntimeError, subprocess.SubprocessError) as error:
                print(f"error: {name}: {error}", file=sys.stderr)
                failed.append(name)
                continue
            finally:
                forget_waiting(row)
            table += (text := line(row, case, figures) + "\n")
            print(text, end="", flush=True)
            met = {goal.text: goal.met(figures) for goal in row.goals}
            all_figures[name] = {**vars(figures), "goals": met}
        if words.json:
            words.json.write_text(json.dumps(all_figures, indent=1) + "\n")
    finally:
        shutil.rmtree(folder)
    print(said := about(words.runs, slurm=words.slurm), end="")
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
    if failed:
        raise SystemExit(f"not measured: {', '.join(failed)}")
    if words.readme:
        README.write_text(replaced(README.read_text(), table + said))


def forget_waiting(row: Row) -> None:
    """Cancel the jobs that a row has left in the queue."""
    if row.slurm:
        cancel = ["scancel", "--user", getpass.getuser(), "--state=PENDING"]
        subprocess.run(cancel, check=False)


def about(runs: int, *, slurm: bool) -> str:
    """Return a description of the table and the machine."""
    system = [f"{len(os.sched_getaffinity(0))} cores", f"Python {platform.python_version()}"]
    if slurm:
        told = subprocess.run(["sbatch", "--version"], capture_output=True, text=True, check=True)
        system.append(told.stdout.strip().replace("slurm-wlm", "Slurm").replace("slurm", "Slurm"))
    turns = f"{runs} turns, of slow rows fewer" if runs > 1 else "1 turn"
    day = time.strftime("%Y-%m-%d", time.gmtime())
    return f"\nMedians of {turns}, {day}: {', '.join(system)}.\n"


def replaced(text: str, table: str) -> str:
    """Return README.md with another table, and the sentence that follows it."""
    head = re.escape(HEAD.splitlines()[0])
    pattern = re.compile(head + r"\n(?:\|.*\n)*(?:\nMedians of .*\n)?")
    if len(pattern.findall(text)) != 1:
        raise SystemExit(f"{README.name} has no table to put this one in place of")
    return pattern.sub(lambda _: table, text)


if __name__ == "__main__":
    main()
