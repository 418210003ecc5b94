"""What a job costs beside its ranks: processes, files, and seconds before and after them.

Starts a lab for each number of nodes, submits one campaign whose program does nothing for half a
second, and a plain job array of `srun PROGRAM` as the floor. The kernel reports every process that
the nodes' slurmd starts (cn_proc; threads don't count) and every file that is created in the
campaign or in a node's /tmp (inotify), so both counts are exact on a busy machine too. Seconds are
the least of all repeats. As root, on Linux with Slurm's packages:

    python benchmarks/job_cost.py --nodes 4,16,64,128 --repeats 2

The floor's figures are in parentheses. `--details` adds the programs and the files.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import selectors
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAM = """#!/bin/bash
echo "rank $SLURM_PROCID"
read -rt 0.5 <>"$0.fifo"
exit 0
"""
FLOOR = """#!/bin/bash
#SBATCH --hold --array=1-{repeats}%1 --nodes={nodes} --ntasks-per-node=1 --exclusive
#SBATCH --output={folder}/floor-%a.out
srun --output={folder}/floor-%a.log {program}
"""
# linux/connector.h and linux/cn_proc.h
NETLINK_CONNECTOR, CN_IDX_PROC, LISTEN = 11, 1, 1
SO_RCVBUFFORCE = 33
PAYLOAD = 16 + 20  # the headers of netlink and of the connector
FORK, EXEC, EXIT = 0x1, 0x2, 0x80000000
# Flags of inotify(7).
CREATED, IS_DIRECTORY = 0x100, 0x40000000
LONGEST = 600.0  # seconds until the jobs must have ended


@dataclass
class Cost:
    """What the kernel reports of one array.

    Attributes:
        processes: Those started below the nodes' slurmd, by program.
        files: Paths of the files created, of each as often as it was.
        before: Seconds from a job's start to its first rank, by repeat.
        spread: Seconds from the first rank to the last one, by repeat.
        after: Seconds from the last rank's end to the job's end, by repeat.
    """

    processes: Counter[str] = field(default_factory=Counter)
    files: list[str] = field(default_factory=list)
    before: list[float] = field(default_factory=list)
    spread: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)


class Processes:
    """The processes below the nodes' slurmd, from the kernel's messages."""

    def __init__(self, roots: list[int], program: str, cost: Cost) -> None:
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_CONNECTOR)
        self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        self.socket.bind((os.getpid(), CN_IDX_PROC))
        listen = struct.pack("=IIIIHHI", CN_IDX_PROC, 1, 0, 0, 4, 0, LISTEN)
        self.socket.send(struct.pack("=IHHII", 16 + len(listen), 3, 0, 0, os.getpid()) + listen)
        self.socket.setblocking(False)
        self._program, self._cost = program.encode(), cost
        self._roots = set(roots)
        self._names: dict[int, str] = {}  # of living processes
        self._ranks: set[int] = set()
        self._script = 0
        self._began = self._last_rank = 0.0
        self.jobs_ended = 0

    @property
    def idle(self) -> bool:
        """Whether nothing of the jobs is left."""
        return not self._names

    def read(self) -> None:
        """Count what the kernel has reported since the last call."""
        with contextlib.suppress(BlockingIOError):
            while True:
                message = self.socket.recv(4096)
                kind, _, nanoseconds = struct.unpack_from("=IIQ", message, PAYLOAD)
                self._count(kind, nanoseconds / 1e9, message[PAYLOAD + 16 :])

    def _count(self, kind: int, now: float, body: bytes) -> None:
        pid, tgid = struct.unpack_from("=II", body)
        if kind == FORK:
            child, leader = struct.unpack_from("=II", body, 8)
            parent = "slurmd" if tgid in self._roots else self._names.get(tgid)
            if child == leader and parent is not None:
                self._names[child] = f"{parent.removesuffix(' (fork)')} (fork)"
        elif pid == tgid and pid in self._names:
            if kind == EXEC:
                self._begin(pid, now)
            elif kind == EXIT:
                self._end(pid, now)

    def _begin(self, pid: int, now: float) -> None:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            names = [Path(os.fsdecode(word)).name for word in words[:2]]
            self._names[pid] = names[0] or "(ended)"
            if names[-1:] == ["slurm_script"]:
                self._script, self._began, self._ranks = pid, now, set()
            elif words[1:2] == [self._program]:
                self._names[pid] = "rank"
                if not self._ranks:
                    self._cost.before.append(now - self._began)
                    self._cost.spread.append(0.0)
                self._cost.spread[-1] = now - self._began - self._cost.before[-1]
                self._ranks.add(pid)

    def _end(self, pid: int, now: float) -> None:
        self._cost.processes[self._names.pop(pid)] += 1
        if pid in self._ranks:
            self._last_rank = now
        elif pid == self._script:
            self._cost.after.append(now - self._last_rank)
            self.jobs_ended += 1


class Files:
    """The files created in some directories and below them."""

    def __init__(self, cost: Cost) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor = self._libc.inotify_init1(os.O_NONBLOCK)
        self._paths: dict[int, Path] = {}
        self._cost = cost

    def watch(self, folder: Path) -> None:
        """Watch a directory and those in it."""
        for path, _, _ in os.walk(folder):
            number = self._libc.inotify_add_watch(self.descriptor, os.fsencode(path), CREATED)
            if number < 0:
                raise SystemExit(f"{path}: {os.strerror(ctypes.get_errno())}")
            self._paths[number] = Path(path)

    def read(self) -> None:
        """Count what was created since the last call."""
        with contextlib.suppress(BlockingIOError):
            while events := os.read(self.descriptor, 1 << 16):
                while events:
                    number, mask, _, length = struct.unpack_from("=iIII", events)
                    name = os.fsdecode(events[16 : 16 + length].rstrip(b"\0"))
                    events = events[16 + length :]
                    self._count(self._paths[number] / name, mask)

    def _count(self, path: Path, mask: int) -> None:
        self._cost.files.append(str(path))
        if mask & IS_DIRECTORY:
            self.watch(path)
            self._cost.files += [str(below) for below in path.rglob("*")]


def run(argv: list[str], env: dict[str, str]) -> str:
    """Run a command; return what it prints."""
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)}: {done.stdout}{done.stderr}")
    return done.stdout


def hpcbert(*words: object, env: dict[str, str]) -> Any:
    """Run hpcbert; return the data of its JSON document."""
    argv = [sys.executable, "-m", "hpcbert", *map(str, words), "--json"]
    return json.loads(run(argv, env))["data"]


@dataclass(frozen=True)
class Cluster:
    """A lab, a folder for its jobs, and the program that their ranks run."""

    daemons: list[int]  # every node's slurmd
    folder: Path
    program: Path
    env: dict[str, str]

    def submit_floor(self, nodes: int, repeats: int) -> str:
        """Submit a held array of `srun PROGRAM`; return its id."""
        script = self.folder / "floor.sbatch"
        text = FLOOR.format(repeats=repeats, nodes=nodes, folder=self.folder, program=self.program)
        script.write_text(text)
        return run(["sbatch", "--parsable", str(script)], self.env).strip()

    def submit_campaign(self, size: list[object], repeats: int) -> str:
        """Submit a held campaign of one point; return the id of its array."""
        words = [*size, "--fw", "pytorch", "--model", "bert-tiny", "--batch-size", 2]
        words += ["--iters", 12, "--skip", 2, "--repeats", repeats, "--python", self.program]
        words += ["--runs", self.folder, "--sbatch-arg=--hold"]
        directory = Path(hpcbert("submit", *words, env=self.env)["directory"])
        manifest = json.loads((directory / "manifest.json").read_text())
        return str(manifest["arrays"][0]["job_id"])

    def observe(self, job: str, repeats: int) -> Cost:
        """Release a held array and count until its last element has ended."""
        cost = Cost()
        processes = Processes(self.daemons, str(self.program), cost)
        files = Files(cost)
        for folder in (self.folder, *(Path(f"/proc/{pid}/root/tmp") for pid in self.daemons)):
            files.watch(folder)
        watched = selectors.DefaultSelector()
        watched.register(processes.socket, selectors.EVENT_READ, processes)
        watched.register(files.descriptor, selectors.EVENT_READ, files)
        run(["scontrol", "release", job], self.env)
        end = time.monotonic() + LONGEST
        while processes.jobs_ended < repeats or not processes.idle:
            if time.monotonic() > end:
                raise SystemExit(f"Job {job} has not ended after {LONGEST:.0f} s.")
            for key, _ in watched.select(1):
                key.data.read()
        processes.socket.close()
        os.close(files.descriptor)
        return cost


def measure(nodes: int, repeats: int, lab: Path) -> tuple[Cost, Cost]:
    """Return what the campaign's jobs and those of the floor cost on that many nodes."""
    folder = Path(tempfile.mkdtemp(prefix="hpcbert-cost-", dir="/var/tmp"))
    program = folder / "program"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    os.mkfifo(f"{program}.fifo")
    size: list[object] = ["--nodes", nodes, "--gpus-per-node", 1]
    place = ["--directory", lab]
    started = hpcbert("lab", "up", "--no-accounting", *size, *place, env=dict(os.environ))
    env = {**os.environ, **started["environment"]}
    names = {node["name"] for node in started["nodes"]}
    daemons = [daemon["pid"] for daemon in started["daemons"] if daemon["name"] in names]
    cluster = Cluster(daemons, folder, program, env)
    try:
        floor = cluster.observe(cluster.submit_floor(nodes, repeats), repeats)
        cost = cluster.observe(cluster.submit_campaign(size, repeats), repeats)
    finally:
        hpcbert("lab", "down", *place, env=env)
        shutil.rmtree(folder)
    return cost, floor


def row(nodes: int, repeats: int, cost: Cost, floor: Cost) -> str:
    """Return a line of the table."""
    cells = [str(nodes)]
    started = [each.processes.total() / repeats for each in (cost, floor)]
    cells.append("{:.1f} ({:.1f})".format(*started))
    created = [len(each.files) / repeats / nodes for each in (cost, floor)]
    cells.append("{:.2f} ({:.2f})".format(*created))
    cells.append(f"{min(cost.before):.2f} ({min(floor.before):.2f})")
    cells.append(f"{min(cost.spread):.2f} ({min(floor.spread):.2f})")
    cells.append(f"{min(cost.after):.2f} ({min(floor.after):.2f})")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--nodes", default="2,16,64", help="numbers of nodes, by commas")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp/hpcbert-lab-cost"))
    parser.add_argument("--details", action="store_true", help="programs and files, too")
    options = parser.parse_args()
    titles = ["nodes", "processes per repeat", "files per repeat and node"]
    titles += ["start to first rank, s", "first to last rank, s", "last rank to end, s"]
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    details = []
    for nodes in map(int, options.nodes.split(",")):
        cost, floor = measure(nodes, options.repeats, options.directory)
        print(row(nodes, options.repeats, cost, floor), flush=True)
        details.append((nodes, cost, floor))
    if options.details:
        for nodes, cost, floor in details:
            print(f"\n{nodes} nodes")
            for name in cost.processes | floor.processes:
                print(f"{cost.processes[name]:6} {floor.processes[name]:6} {name}")
            print(*sorted(cost.files), sep="\n")


if __name__ == "__main__":
    main()
