"""Side by side with peers: every row of README.md's table, with its floor, its goal, met or missed.

Whole processes take turns with their floor (bare python, sbatch, sacct, cat, wc), so that a ratio
holds when the machine's speed drifts. Peers come from the package index, each into an environment
of its own below --peers; JUBE and llmb-run are on no index and are measured where they are named.

    python benchmarks/side_by_side.py                          # what needs no cluster
    . /var/lib/hpcbert-lab/env.sh; python benchmarks/side_by_side.py --slurm
    python benchmarks/side_by_side.py --only help,collect-30 --runs 1 --no-peers

--logs names the thirty logs of Oneflow-Inc/DLPerf@e36df2e (ResNet-50 on TensorFlow 2), the only
complete five-run set in public; logs of their form stand in. --dlperf names DLPerf's own script for
them, TensorFlow/resnet50v1.5/extract_tensorflow_logs_time.py, which needs numpy.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import material
from rows import MEMORY, ROWS, Case, Command, Figures, Place, Row

REPOSITORY = Path(__file__).resolve().parent.parent
PEERS = {
    "submitit": "submitit==1.5.4",
    "reframe": "reframe-hpc==4.10.4",
    "simple_slurm": "simple-slurm==0.3.6",
}
OWN = "hpcbert"
TIMEOUT = 300.0


# Small itself: what a process had before it became another program counts as that one's.
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
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=TIMEOUT)
    elapsed = time.perf_counter() - started
    if done.returncode not in (0, 4):
        said = (done.stdout + done.stderr)[-2000:].decode(errors="replace")
        raise RuntimeError(f"{command}: {done.returncode}\n{said}")
    return 1000 * elapsed


def peak(command: Command, folder: Path) -> float:
    """Run a command once more; return its peak memory in MB."""
    assert not callable(command)
    words = [sys.executable, "-I", "-S", "-c", PEAK, *command]
    done = subprocess.run(words, cwd=folder, capture_output=True, check=True, timeout=TIMEOUT)
    return int(done.stdout) / 1024


def measure(row: Row, case: Case, runs: int, folder: Path) -> Figures:
    """Let a row's commands take turns; a peer that fails is left out."""
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
                    raise SystemExit(str(error)) from error
                print(f"note: {error}", file=sys.stderr)
                del commands[name], found[name]
                continue
            if turn >= row.warm or name in case.once:
                found[name].append(elapsed)
    middle = {name: statistics.median(some) for name, some in found.items()}
    floor, own = (middle.pop(name) for name in (case.floor[0], OWN))
    return Figures(floor, own, middle, peak(case.own, folder) if MEMORY in row.goals else 0.0)


def line(row: Row, case: Case, figures: Figures) -> str:
    """Return a row of the table."""
    peers = ", ".join(f"{name} {shown(one)}" for name, one in figures.peers.items())
    words = {True: "met", False: "**missed**", None: "not known"}
    goals = "; ".join(f"{goal.text}: {words[goal.met(figures)]}" for goal in row.goals)
    floor = f"{case.floor[0]} {shown(figures.floor)}"
    memory = f", {figures.memory:.0f} MB" if figures.memory else ""
    own = f"{shown(figures.own)} ({figures.own / figures.floor:.1f} x{memory})"
    if callable(case.own):
        floor, own = "", shown(figures.own)
    return f"| {row.what} | {floor} | {peers} | {own} | {goals} |"


def shown(milliseconds: float) -> str:
    return f"{milliseconds:,.1f}" if milliseconds < 100 else f"{milliseconds:,.0f}"


def peers(folder: Path) -> dict[str, str]:
    """Return each peer's interpreter, installing what is not there yet."""
    found = {}
    for name, requirement in PEERS.items():
        python = folder / name / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", folder / name], check=True)
            command = [python, "-m", "pip", "install", "--quiet", requirement]
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
    # As a person's: compiled once, and kept.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    started, all_figures = time.monotonic(), {}
    print("| what | floor, ms | peers, ms | hpcbert, ms | goal |\n|---|---|---|---|---|")
    try:
        for name, row in rows.items():
            case = row.make(place)
            figures = measure(row, case, words.runs, folder)
            print(line(row, case, figures), flush=True)
            met = {goal.text: goal.met(figures) for goal in row.goals}
            all_figures[name] = {**vars(figures), "goals": met}
            if row.slurm:
                cancel = ["scancel", "--user", getpass.getuser(), "--state=PENDING"]
                subprocess.run(cancel, check=False)
        if words.json:
            words.json.write_text(json.dumps(all_figures, indent=1) + "\n")
    finally:
        shutil.rmtree(folder)
    print(f"\n{time.monotonic() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
