"""submit, retry and cancel killed with SIGKILL at their system calls, on a scripted Slurm.

strace notes the system calls of a command from the campaign's directory on. Then the command is run
again and again from the same state, and killed as it enters one of them. Whoever repeats it then
must leave one job for each repeat, or none after cancel.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from hpcbert.campaign import store
from tests.faults.killing import chosen, deadly, system_calls
from tests.kit.cli import Cli
from tests.kit.slurm import Programs
from tests.kit.waiting import CEILING

pytestmark = pytest.mark.needs("strace")

FEW = 4
SITE = (
    'schema = 1\nname = "x"\nscheduler = "slurm"\nruns = "runs"\n[slurm]\ngres = ""\n'
    "poll_floor = 0.1\n[nodes]\ngpus_per_node = 2\n"
)
SUBMIT = (
    *("submit", "--fw", "pytorch", "--gpus-per-node", "2", "--scaling", "--repeats", "2"),
    *("--python", "/usr/bin/python3", "--json"),
)
POINTS = 2


class Desk:
    def __init__(self, path: Path) -> None:
        self.path, self.slurm = path, Programs(path / "bin")
        (path / "site.toml").write_text(SITE)
        env = {"PATH": self.slurm.path, "HPCBERT_SITE": str(path / "site.toml")}
        self.hpcbert = Cli(path, {**env, "PYTHONHASHSEED": "0"})

    def submitted(self) -> Path:
        return Path(self.hpcbert(*SUBMIT, status=0).data["directory"])

    def end(self, state: str) -> None:
        with self.slurm.changed() as slurm:
            for job in slurm.jobs.values():
                job.end(state)

    def alive(self) -> Counter[tuple[str, str]]:
        return Counter(
            (re.sub(r"(\.t\d+)?\.sbatch$", "", job.script), index)
            for job in self.slurm.model.jobs.values()
            for index in job.alive()
        )

    def kept(self) -> Path:
        copy = self.path / "kept"
        shutil.copytree(self.path / "runs", copy / "runs")
        shutil.copy(self.slurm.state, copy)
        return copy

    def back(self, copy: Path) -> None:
        shutil.rmtree(self.path / "runs", ignore_errors=True)
        self.slurm.state.unlink(missing_ok=True)
        if (copy / "runs").exists():
            shutil.copytree(copy / "runs", self.path / "runs")
            shutil.copy(copy / self.slurm.state.name, self.slurm.folder)

    def calls(self, *words: str) -> list[tuple[str, int]]:
        trace = self.path / "trace"
        self.hpcbert(*words, under=("strace", f"--output={trace}"), status=0)
        return chosen(system_calls(trace), FEW)

    def killed(self, call: str, number: int, *words: str) -> None:
        self.hpcbert(*words, under=deadly(call, number))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_submit_loses_and_doubles_nothing(desk: Desk, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for call, number in desk.calls(*SUBMIT):
        desk.back(empty)
        desk.killed(call, number, *SUBMIT)
        manifests = list(desk.path.glob("runs/*/manifest.json"))
        if not manifests:
            assert not desk.alive()
            continue
        resumed = desk.hpcbert("submit", "--resume", str(manifests[0].parent), "--json")
        assert resumed.returncode == 0, (call, number, resumed.stdout)
        assert set(desk.alive().values()) == {1}, (call, number)
        assert len(desk.alive()) == 2 * POINTS, (call, number)


def test_retry_loses_and_doubles_nothing(desk: Desk) -> None:
    directory = desk.submitted()
    desk.end("FAILED")
    words = ("retry", str(directory), "--json")
    copy = desk.kept()
    for call, number in desk.calls(*words):
        desk.back(copy)
        desk.killed(call, number, *words)
        again = desk.hpcbert(*words)
        assert again.returncode == 0, (call, number, again.stdout)
        assert set(desk.alive().values()) == {1}, (call, number)
        assert len(desk.alive()) == 2 * POINTS, (call, number)
        ids = {array.job_id for array in store.read_manifest(directory).arrays}
        assert ids == set(desk.slurm.model.jobs), (call, number)


def test_cancel_leaves_nothing(desk: Desk) -> None:
    directory = desk.submitted()
    words = ("cancel", str(directory), "--yes", "--json")
    copy = desk.kept()
    for call, number in desk.calls(*words):
        desk.back(copy)
        desk.killed(call, number, *words)
        again = desk.hpcbert(*words)
        assert again.returncode == 0, (call, number, again.stdout)
        assert not desk.alive(), (call, number)


@pytest.mark.needs("namespaces")
def test_four_who_resume_at_once_in_pid_namespaces_of_their_own_double_nothing(desk: Desk) -> None:
    """As two containers on one host, or two hosts, that can't see each other's processes."""
    desk.killed("execve", 1, *SUBMIT)
    directory = desk.submitted()
    desk.end("FAILED")
    argv = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-m", "hpcbert"]
    quiet = subprocess.DEVNULL
    resumed = [
        subprocess.Popen(
            [*argv, "retry", str(directory), "--json"],
            cwd=desk.hpcbert.cwd,
            env=desk.hpcbert.environment,
            stdin=quiet,
            stdout=quiet,
            stderr=quiet,
        )
        for _ in range(4)
    ]
    codes = [process.wait(timeout=CEILING) for process in resumed]
    assert 0 in codes
    assert set(desk.alive().values()) == {1}
    assert len(desk.alive()) == 2 * POINTS
