"""submit, cancel and retry killed at their system calls, on a scripted Slurm and on a real one.

strace notes the system calls of a command from the campaign's directory on. Then the command is run
again and again, and killed as it enters one of them. What it leaves must be whole for whoever repeats
it. HPCBERT_KILLS says how many system calls are tried; `all` tries each.
"""

import itertools
import os
import random
import re
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from hpcbert.campaign import store
from hpcbert.model import MANIFEST
from tests.kit.cases import read_constant
from tests.kit.cli import Cli
from tests.kit.slurm import Programs

pytestmark = pytest.mark.needs("strace")

# Read now: the tests' environment has none of hpcbert's variables.
KILLS = os.environ.get("HPCBERT_KILLS", "")
POINTS = 2
SUBMIT = (
    *("submit", "--fw", "pytorch", "--gpus-per-node", "2", "--scaling"),
    *("--python", "/usr/bin/python3", "--sbatch-arg=--hold", "--json"),
)
# What a second user may try, with the exit codes that are right.
TRIED = {
    "submit --resume": {2},
    "retry": {2},
    "cancel --yes": {2},
    "monitor --once": {0, 3},
    "collect": {4},
}
# Of a command: a system call and its how-manieth of that name.
Call = tuple[str, int]


def choose(calls: list[Call], count: int) -> list[Call]:
    """Return so many, or as many as HPCBERT_KILLS says, one from each of as many stretches."""
    count = len(calls) if KILLS == "all" else int(KILLS or count)
    chance = random.Random(20261121)
    edges = [len(calls) * part // count for part in range(count + 1)]
    return [
        calls[chance.randrange(*pair)] for pair in itertools.pairwise(edges) if len({*pair}) > 1
    ]


@dataclass(frozen=True)
class Desk:
    """Where somebody submits from.

    Attributes:
        list_jobs: Returns names and ids of all jobs, or of those that wait or run.
        colleague: Another user of the cluster, if there is one.
    """

    hpcbert: Cli
    runs: Path
    list_jobs: Callable[[bool], list[tuple[str, str]]]
    colleague: Cli | None = None

    def campaigns(self) -> set[Path]:
        return set(self.runs.glob("*-pytorch-*"))

    def submit(self) -> Path:
        return Path(self.hpcbert(*SUBMIT, status=0).data["directory"])

    def trace(self, *words: object) -> list[Call]:
        """Return a command's system calls from the first one that names a campaign on."""
        trace, counts = self.hpcbert.cwd / "trace", Counter[str]()
        self.hpcbert(*words, under=("strace", f"--output={trace}"), status=0)
        calls: list[Call] = []
        for line in trace.read_text(errors="replace").splitlines():
            match = re.match(r"(\w+)\(", line)
            if match and match[1] != "exit_group":
                counts[match[1]] += 1
                if calls or "-pytorch-" in line:
                    calls.append((match[1], counts[match[1]]))
        return calls

    def kill(self, call: Call, *words: object) -> bool:
        """Run a command and kill it as it enters a system call; return whether it died of that."""
        inject = f"inject={call[0]}:signal=KILL:when={call[1]}"
        under = ("strace", "--output=/dev/null", f"--trace={call[0]}", "-e", inject, "--")
        return not self.hpcbert(*words, under=under).ok

    def jobs_of(self, directory: Path, *, alive: bool = False) -> dict[str, set[str]]:
        ids: dict[str, set[str]] = {}
        for name, job in self.list_jobs(alive):
            if directory.name in name:
                ids.setdefault(name, set()).add(job)
        return ids

    def check(self, directory: Path, retries: int) -> None:
        """See that each array has the one job on record, and that the lock is gone."""
        arrays = store.read_manifest(directory).arrays
        expected = [retry for retry in range(retries + 1) for _ in range(POINTS)]
        assert [array.retry for array in arrays] == expected
        assert self.jobs_of(directory) == {array.name: {array.job_id} for array in arrays}
        assert not (directory / store.LOCK).exists()


@pytest.fixture(params=["scripted", pytest.param("slurm", marks=pytest.mark.slurm)])
def desk(request, tmp_path):
    """Ordinary users of the lab, in a directory that everybody can write to, or one of the model."""
    env = {"PYTHONHASHSEED": "0"}
    if request.param == "scripted":
        slurm, site = Programs(tmp_path / "bin"), tmp_path / "site.toml"
        site.write_text(read_constant(__file__, "SITE"))
        env |= {"PATH": slurm.path, "HPCBERT_SITE": str(site)}

        def list_scripted(alive: bool) -> list[tuple[str, str]]:
            jobs = slurm.model.jobs.items()
            return [(job.name, number) for number, job in jobs if job.alive() or not alive]

        yield Desk(Cli(tmp_path, env), tmp_path / "runs", list_scripted)
        return
    work, checkout = (request.getfixturevalue(name) for name in ("work", "checkout"))
    users = [request.getfixturevalue(name) for name in ("as_user", "as_other_user")]
    work.chmod(0o755)
    users[0](["mkdir", "--mode=1777", str(work / "runs")])
    env |= {"PYTHONPATH": str(checkout.path), "HPCBERT_RUNS": str(work / "runs")}
    alice, bob = (Cli(work / "runs", env, run_as, checkout.python) for run_as in users)

    def list_real(alive: bool) -> list[tuple[str, str]]:
        states = "pending,running" if alive else "all"
        argv = ["squeue", "--noheader", f"--states={states}", "--format=%j|%F"]
        return [(line.split("|")[0], line.split("|")[1]) for line in users[0](argv).stdout.split()]

    yield Desk(alice, work / "runs", list_real, bob)
    for run_as in users:
        run_as(["bash", "-c", "scancel --user=$USER"])


def test_a_submission_loses_and_doubles_no_job(desk):
    outcomes: Counter[str] = Counter()
    for call in choose(desk.trace(*SUBMIT), 8 if desk.colleague else 4):
        before = desk.campaigns()
        dead = desk.kill(call, *SUBMIT)
        new = desk.campaigns() - before
        assert len(new) <= 1
        if not any((directory / MANIFEST).exists() for directory in new):
            assert not any(map(desk.jobs_of, new)), call
            outcomes["before the manifest"] += 1
            continue
        outcomes["resumed" if dead else "ran"] += 1
        (directory,) = new
        if outcomes.total() % 2:
            # Who only watches adopts what is queued, and submits nothing.
            queued = desk.jobs_of(directory)
            desk.hpcbert("monitor", "--once", "--json", directory, status=0)
            assert desk.jobs_of(directory) == queued
            for array in store.read_manifest(directory).arrays:
                assert {array.job_id} == queued.get(array.name, {""})
        elif desk.colleague:
            meddle(desk.colleague, desk, directory)
        desk.hpcbert("submit", "--resume", directory, "--json", status=0)
        desk.check(directory, 0)
    assert outcomes["resumed"], outcomes
    assert outcomes["ran"] < outcomes.total() / 2


def meddle(colleague: Cli, desk: Desk, directory: Path) -> None:
    """Let a colleague, who may look at it, try everything at once: nothing changes."""
    desk.hpcbert.run(["chmod", "-R", "a+rX", str(directory)])
    before, queued = read_content(directory), desk.jobs_of(directory)
    with ThreadPoolExecutor() as pool:
        outcomes = pool.map(lambda words: colleague(*words.split(), directory), TRIED)
        for codes, outcome in zip(TRIED.values(), outcomes, strict=True):
            assert outcome.returncode in codes, outcome
    assert (read_content(directory), desk.jobs_of(directory)) == (before, queued)


def read_content(directory: Path) -> dict[Path, tuple[int, bytes]]:
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in (directory, *directory.rglob("*"))
    }


def test_cancel_and_then_retry_lose_and_double_no_job(desk):
    bystander, first = desk.submit(), desk.submit()
    alive = partial(desk.jobs_of, alive=True)
    cancel, retry = ("cancel", "--yes", "--json"), ("retry", "--json")
    cancel_calls, retry_calls = desk.trace(*cancel, first), desk.trace(*retry, first)
    tried, dead = choose(cancel_calls, 4), 0
    for call, retry_call in zip(tried, choose(retry_calls, len(tried)), strict=False):
        directory = desk.submit()
        dead += desk.kill(call, *cancel, directory)
        desk.hpcbert(*cancel, directory, status=0)
        assert not alive(directory), call
        dead += desk.kill(retry_call, *retry, directory)
        desk.hpcbert(*retry, directory, status=0)
        desk.check(directory, 1)
        assert len(alive(directory)) == POINTS, retry_call
    assert len(alive(bystander)) == POINTS
    assert dead >= len(tried)


@pytest.mark.needs("namespaces")
@pytest.mark.parametrize("desk", ["scripted"], indirect=True)
def test_four_who_retry_at_once_in_pid_namespaces_of_their_own_double_nothing(desk):
    """As two containers on one host, or two hosts, that can't see each other's processes."""
    directory = desk.submit()
    desk.hpcbert("cancel", "--yes", directory, status=0)
    under = ("unshare", "--pid", "--fork", "--mount-proc")
    with ThreadPoolExecutor() as pool:
        retries = [pool.submit(desk.hpcbert, "retry", directory, under=under) for _ in range(4)]
        assert 0 in {retry.result().returncode for retry in retries}
    desk.check(directory, 1)
    assert len(desk.jobs_of(directory, alive=True)) == POINTS
