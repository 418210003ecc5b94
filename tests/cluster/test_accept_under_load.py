"""`accept --each-node` where a process takes processor time from the jobs of one node.

It runs if HPCBERT_LOADED_ROUNDS says how often: in each round a loaded node is named, and none in
a round without load. test_accept.py has a program that is slow on one node.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpcbert.lab.record import Lab
from tests.kit.cases import read_constant
from tests.kit.cli import Cli
from tests.kit.logs import WORDS, stand_in_log
from tests.kit.needs import not_applicable

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

# Read now: the tests' environment has none of hpcbert's variables.
ROUNDS = int(os.environ.get("HPCBERT_LOADED_ROUNDS", "0"))

# Works in each iteration, and prints when and how fast it was.
PROGRAM = read_constant(__file__, "PROGRAM")


# Of each period of a processor in microseconds, a node has so much, whatever else the machine does.
PERIOD, QUOTA = 20_000, 4_000
_VERSION_1 = Path("/sys/fs/cgroup/cpu")
_VERSION_2 = Path("/sys/fs/cgroup")


@contextmanager
def share_processor(lab: Lab) -> Iterator[dict[str, Path]]:
    """Put each node's slurmd, and so its jobs, into a control group; yield their folders by node."""
    root = _VERSION_1 if _VERSION_1.is_dir() else _VERSION_2
    folders = {node: root / f"{lab.mark}-{node}" for node in lab.plan.node_names}
    try:
        try:
            for node, folder in folders.items():
                daemon = lab.daemons[node]
                assert daemon, node
                _limit_group(folder)
                (folder / "cgroup.procs").write_text(str(daemon.pid))
        except OSError as error:
            not_applicable(f"control groups can't limit processors here: {error}")
        yield folders
    finally:
        for folder in filter(Path.is_dir, folders.values()):
            for pid in (folder / "cgroup.procs").read_text().split():
                (root / "cgroup.procs").write_text(pid)
            folder.rmdir()


def _limit_group(folder: Path) -> None:
    folder.mkdir()
    if (folder / "cpu.cfs_quota_us").exists():
        (folder / "cpu.cfs_period_us").write_text(str(PERIOD))
        (folder / "cpu.cfs_quota_us").write_text(str(QUOTA))
    else:
        (folder / "cpu.max").write_text(f"{QUOTA} {PERIOD}")


@contextmanager
def compete(folder: Path) -> Iterator[None]:
    """Run a process in a control group that takes what time it can get, at a lower priority."""
    argv = ["nice", "-n", "5", "bash", "-c", "while :; do :; done"]
    with subprocess.Popen(argv) as rival:
        try:
            (folder / "cgroup.procs").write_text(str(rival.pid))
            yield
        finally:
            rival.kill()


@pytest.mark.skipif(not ROUNDS, reason="needs extras: HPCBERT_LOADED_ROUNDS is not set")
def test_a_node_with_a_competing_process_is_named(hpcbert: Cli, lab: Lab) -> None:
    program, base = hpcbert.cwd / "program", hpcbert.cwd / "base.json"
    hpcbert.run(["tee", str(program)], stdin=PROGRAM.format(log=stand_in_log()))
    hpcbert.run(["chmod", "755", str(program)])
    options = ("--python", program, "--json")
    slower: dict[str, list[set[str]]] = {"clean": [], "loaded": []}
    losses = []
    with share_processor(lab) as folders:
        hpcbert(*WORDS, *options, "--wait", status=0)
        hpcbert("collect", "--output", base, status=0)
        accept = ("accept", base, "--each-node", "--tolerance", "20%", *options)
        for _ in range(ROUNDS):
            clean = hpcbert(*accept)
            with compete(folders["n2"]):
                loaded = hpcbert(*accept, status=7)
            for kind, result in (("clean", clean), ("loaded", loaded)):
                assert all(entry["runs"] == 5 for entry in result.data["nodes"]), result
                states = {entry["node"]: entry["state"] for entry in result.data["nodes"]}
                slower[kind].append({node for node, state in states.items() if state == "slower"})
            losses += [
                1 - entry["ratio"] for entry in loaded.data["nodes"] if entry["node"] == "n2"
            ]
    rounds = len(losses)
    # If it fails, the losses say whether the machine was too busy for nodes to differ.
    assert slower == {"clean": [set()] * rounds, "loaded": [{"n2"}] * rounds}, losses
