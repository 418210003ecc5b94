"""submit, cancel and retry killed at their system calls, on a scripted Slurm and on a real one.

strace notes the system calls of a command from the campaign's directory on. Then the command is run
again and again, and killed as it enters one of them; what it leaves must be whole.
"""

import itertools
import os
import random
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from hpcbert.campaign import store
from hpcbert.model import MANIFEST
from tests.kit.cli import Cli
from tests.kit.lab import runner_of
from tests.kit.slurm import Programs

pytestmark = pytest.mark.needs("strace")

# Read now: the tests' environment has none of hpcbert's variables.
KILLS = os.environ.get("HPCBERT_KILLS", "")
POINTS = 2
SUBMIT = (
    *("submit", "--fw", "pytorch", "--gpus-per-node", "2", "--scaling"),
    *("--python", "/usr/bin/python3", "--sbatch-arg=--hold", "--json"),
)


@dataclass(frozen=True)
class Desk:
    """Where somebody submits from: to a model of Slurm, or on a lab with another user."""

    hpcbert: Cli
    slurm: Programs | None = None
    colleague: Cli | None = None

    def submit(self):
        return Path(self.hpcbert(*SUBMIT, status=0).data["directory"])

    def choose_calls(self, count, *words):
        """Return some system calls of a command, each with its how-manieth of that name.

        They come from the first one that names a campaign on, one from each of so many stretches.
        """
        trace, counts = self.hpcbert.cwd / "trace", Counter[str]()
        calls: list[tuple[str, int]] = []
        self.hpcbert(*words, under=("strace", f"--output={trace}"), status=0)
        for line in trace.read_text(errors="replace").splitlines():
            match = re.match(r"(\w+)\(", line)
            if match and match[1] != "exit_group":
                counts[match[1]] += 1
                if calls or "-pytorch-" in line:
                    calls.append((match[1], counts[match[1]]))
        count = len(calls) if KILLS == "all" else int(KILLS or count)
        chance = random.Random(20261121)
        edges = sorted({len(calls) * part // count for part in range(count + 1)})
        return [calls[chance.randrange(*pair)] for pair in itertools.pairwise(edges)]

    def kill(self, call, *words):
        """Run a command and kill it as it enters a system call; return whether it died of that."""
        inject = f"inject={call[0]}:signal=KILL:when={call[1]}"
        under = ("strace", "--output=/dev/null", f"--trace={call[0]}", "-e", inject, "--")
        return not self.hpcbert(*words, under=under).ok

    def jobs_of(self, directory, *, alive=False):
        """Return the ids of a campaign's jobs, or of those that wait or run, by their names."""
        if self.slurm:
            jobs = self.slurm.model.jobs.items()
            pairs = [[job.name, number] for number, job in jobs if job.alive() or not alive]
        else:
            states = "pending,running" if alive else "all"
            argv = ["squeue", "--noheader", f"--states={states}", "--format=%j|%F"]
            pairs = [line.split("|") for line in self.hpcbert.run(argv).stdout.split()]
        ids: dict[str, set[str]] = {}
        for name, job in pairs:
            if directory.name in name:
                ids.setdefault(name, set()).add(job)
        return ids

    def check(self, directory, retries):
        """See that each array has the one job on record, and that the lock is gone."""
        arrays = store.read_manifest(directory).arrays
        expected = [retry for retry in range(retries + 1) for _ in range(POINTS)]
        assert [array.retry for array in arrays] == expected
        assert self.jobs_of(directory) == {array.name: {array.job_id} for array in arrays}
        assert not (directory / store.LOCK).exists()


@pytest.fixture(params=["scripted", pytest.param("slurm", marks=pytest.mark.slurm)])
def desk(request, monkeypatch):
    """Ordinary users of the lab, in a directory that everybody can write to, or one of the model."""
    # Sets have the same order, and so the system calls, in each run.
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    if request.param == "scripted":
        yield Desk(request.getfixturevalue("hpcbert"), request.getfixturevalue("slurm"))
        return
    fixtures = ("work", "checkout", "lab", "user", "other_user")
    work, checkout, lab, *members = map(request.getfixturevalue, fixtures)
    users = [runner_of(member, lab) for member in members]
    runs = work / "runs"
    work.chmod(0o755)
    users[0](["mkdir", "--mode=1777", str(runs)])
    env = {"HPCBERT_RUNS": str(runs), "PYTHONHASHSEED": "0"}
    alice, bob = (checkout.cli(work, user, **env) for user in users)
    yield Desk(alice, colleague=bob)
    for run_as in users:
        run_as(["bash", "-c", "scancel --user=$USER"])


def test_a_submission_loses_and_doubles_no_job(desk):
    runs = desk.hpcbert.cwd / "runs"

    def read_content(directory):
        return {
            path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
            for path in (directory, *directory.rglob("*"))
        }

    def meddle(directory):
        """Let a colleague, who may look at it, try everything at once: nothing changes."""
        desk.hpcbert.run(["chmod", "-R", "a+rX", str(directory)])
        before, queued = read_content(directory), desk.jobs_of(directory)
        codes = {"submit --resume": {2}, "retry": {2}, "cancel --yes": {2}}
        # 6 if the kill came after the last job was queued.
        codes |= {"monitor --once": {0, 3}, "collect": {4, 6}}
        with ThreadPoolExecutor() as pool:
            outcomes = pool.map(lambda words: desk.colleague(*words.split(), directory), codes)
            for right, outcome in zip(codes.values(), outcomes, strict=True):
                assert outcome.returncode in right, outcome
        assert (read_content(directory), desk.jobs_of(directory)) == (before, queued)

    outcomes = Counter[str]()
    for call in desk.choose_calls(8 if desk.colleague else 4, *SUBMIT):
        before = set(runs.glob("*-pytorch-*"))
        dead = desk.kill(call, *SUBMIT)
        new = set(runs.glob("*-pytorch-*")) - before
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
            meddle(directory)
        desk.hpcbert("submit", "--resume", directory, "--json", status=0)
        desk.check(directory, 0)
    assert outcomes["resumed"], outcomes
    assert outcomes["ran"] < outcomes.total() / 2


def test_cancel_and_then_retry_lose_and_double_no_job(desk):
    bystander, first = desk.submit(), desk.submit()
    alive = partial(desk.jobs_of, alive=True)
    cancel, retry, dead = ("cancel", "--yes", "--json"), ("retry", "--json"), 0
    cancel_calls = desk.choose_calls(4, *cancel, first)
    retry_calls = desk.choose_calls(len(cancel_calls), *retry, first)
    for call, retry_call in zip(cancel_calls, retry_calls, strict=False):
        directory = desk.submit()
        dead += desk.kill(call, *cancel, directory)
        desk.hpcbert(*cancel, directory, status=0)
        assert not alive(directory), call
        dead += desk.kill(retry_call, *retry, directory)
        desk.hpcbert(*retry, directory, status=0)
        desk.check(directory, 1)
        assert len(alive(directory)) == POINTS, retry_call
    assert len(alive(bystander)) == POINTS
    assert dead >= len(cancel_calls)


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
