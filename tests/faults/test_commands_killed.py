"""submit, retry and cancel killed with SIGKILL at their system calls, on a scripted Slurm.

strace notes the system calls of a command from the campaign's directory on. Then the command is run
again and again from the same state, and killed as it enters one of them. Whoever repeats it then
must leave one job for each repeat, or none after cancel.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from hpcbert.campaign import store
from hpcbert.slurm.commands import job_id
from tests.faults.killing import chosen, deadly, system_calls
from tests.kit.paths import REPOSITORY
from tests.waiting import CEILING

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")

FEW = 4
STAND_IN = Path(__file__).with_name("slurm-in-a-folder")
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
    """A folder with a site, a scripted Slurm and campaigns."""

    def __init__(self, path: Path) -> None:
        self.path, self.jobs = path, path / "jobs"
        self.jobs.mkdir()
        (path / "bin").mkdir()
        for name in ("sbatch", "squeue", "sacct", "scontrol", "scancel", "sinfo"):
            (path / "bin" / name).symlink_to(STAND_IN)
        (path / "site.toml").write_text(SITE)
        self.environment = {
            **os.environ,
            "PATH": f"{path / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONHASHSEED": "0",
            "HPCBERT_SITE": str(path / "site.toml"),
            "FAKE_SLURM": str(self.jobs),
            "NOW": str(int(time.time())),
        }

    def __call__(
        self, *words: str, under: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        argv = [*under, sys.executable, "-m", "hpcbert", *words]
        return subprocess.run(
            argv, cwd=self.path, env=self.environment, capture_output=True, text=True, check=False
        )

    def submitted(self) -> Path:
        done = self(*SUBMIT)
        assert done.returncode == 0, done.stderr
        return Path(json.loads(done.stdout)["data"]["directory"])

    def end(self, state: str) -> None:
        """Let all jobs end."""
        for job in self.jobs.glob("[0-9]*"):
            lines = job.read_text().splitlines()
            job.write_text("\n".join([*lines[:4], state, ""]))

    def alive(self) -> Counter[tuple[str, int]]:
        """Return how many waiting jobs there are for each repeat of each point."""
        found: Counter[tuple[str, int]] = Counter()
        for job in self.jobs.glob("[0-9]*"):
            name, script, _, array, state = job.read_text().splitlines()
            del name
            spans = (job_id(f"1_[{array}]") or ("", ()))[1]
            point = re.sub(r"(\.t\d+)?\.sbatch$", "", script)
            for low, high, _ in spans if state == "PENDING" else ():
                found.update((point, number) for number in range(low, high + 1))
        return found

    def kept(self) -> Path:
        """Keep what there is now, to return to."""
        copy = self.path / "kept"
        shutil.copytree(self.path / "runs", copy / "runs")
        shutil.copytree(self.jobs, copy / "jobs")
        return copy

    def back(self, copy: Path) -> None:
        for name in ("runs", "jobs"):
            shutil.rmtree(self.path / name, ignore_errors=True)
            if (copy / name).exists():
                shutil.copytree(copy / name, self.path / name)
        self.jobs.mkdir(exist_ok=True)

    def calls(self, *words: str) -> list[tuple[str, int]]:
        """Return the system calls of a command from its campaign on, each with its number."""
        trace = self.path / "trace"
        assert self(*words, under=("strace", f"--output={trace}")).returncode == 0
        return chosen(system_calls(trace), FEW)

    def killed(self, call: str, number: int, *words: str) -> None:
        self(*words, under=deadly(call, number))


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
        resumed = desk("submit", "--resume", str(manifests[0].parent), "--json")
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
        again = desk(*words)
        assert again.returncode == 0, (call, number, again.stdout)
        assert set(desk.alive().values()) == {1}, (call, number)
        assert len(desk.alive()) == 2 * POINTS, (call, number)
        ids = {array.job_id for array in store.read_manifest(directory).arrays}
        assert ids == {job.name for job in desk.jobs.glob("[0-9]*")}, (call, number)


def test_cancel_leaves_nothing(desk: Desk) -> None:
    directory = desk.submitted()
    words = ("cancel", str(directory), "--yes", "--json")
    copy = desk.kept()
    for call, number in desk.calls(*words):
        desk.back(copy)
        desk.killed(call, number, *words)
        again = desk(*words)
        assert again.returncode == 0, (call, number, again.stdout)
        assert not desk.alive(), (call, number)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for namespaces")
def test_four_who_resume_at_once_in_pid_namespaces_of_their_own_double_nothing(desk: Desk) -> None:
    """As two containers on one host, or two hosts, that can't see each other's processes."""
    desk.killed("execve", 1, *SUBMIT)
    directory = desk.submitted()
    desk.end("FAILED")
    argv = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-m", "hpcbert"]
    resumed = [
        subprocess.Popen(
            [*argv, "retry", str(directory), "--json"],
            cwd=desk.path, env=desk.environment, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(4)
    ]  # fmt: skip
    codes = [one.wait(timeout=CEILING) for one in resumed]
    assert 0 in codes
    assert set(desk.alive().values()) == {1}
    assert len(desk.alive()) == 2 * POINTS
