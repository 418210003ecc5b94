"""submit killed with SIGKILL at its system calls: no job is lost, none is doubled.

strace notes the system calls of one submission from the campaign's directory on. Then the real
command is run again and again on a real cluster, and killed as it enters one of them. What is
left must be whole for `submit --resume`: afterwards Slurm has one job for each point.

HPCBERT_KILLS says how many of them are tried; `all` tries each.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import shutil
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from hpcbert import store
from tests.waiting import CEILING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hpcbert.slurm.runner import Outcome

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]

KILLS = os.environ.get("HPCBERT_KILLS", "8")
KILLED = 128 + 9
SUBMIT = (
    *("submit", "--fw", "pytorch", "--gpus-per-node", "2", "--scaling"),
    *("--python", "/usr/bin/python3", "--sbatch-arg=--hold", "--json"),
)
POINTS = 2


@dataclass(frozen=True)
class Desk:
    """Where the ordinary user submits from."""

    runs: Path
    as_user: Any
    checkout: Any

    def __call__(self, *words: str, under: tuple[str, ...] = ()) -> Outcome:
        """Run hpcbert, under strace with the given options if there are any."""
        strace = ["strace", *under, "--"] if under else []
        outcome: Outcome = self.as_user(
            [*strace, self.checkout.python, "-m", "hpcbert", *words],
            env={
                "PYTHONPATH": str(self.checkout.path),
                "PYTHONHASHSEED": "0",
                "HPCBERT_RUNS": str(self.runs),
            },
            cwd=self.runs,
            timeout=CEILING,
        )
        return outcome

    def campaigns(self) -> set[Path]:
        return set(self.runs.glob("*-pytorch-*"))

    def jobs(self) -> dict[str, set[str]]:
        """Return the ids of all jobs by their names."""
        words = ["squeue", "--noheader", "--states=all", "--format=%F %j"]
        found: dict[str, set[str]] = {}
        for line in self.as_user(words).stdout.splitlines():
            job, _, name = line.partition(" ")
            found.setdefault(name, set()).add(job)
        return found


@pytest.fixture
def desk(as_user: Any, checkout: Any, work: Path) -> Iterator[Desk]:
    runs = work / "runs"
    as_user(["mkdir", str(runs)])
    yield Desk(runs, as_user, checkout)
    as_user(["bash", "-c", "scancel --user=$USER"])


def boundaries(desk: Desk, trace: Path) -> list[tuple[str, int]]:
    """Return the system calls of a submission from its directory on: name, and its how-manieth."""
    done = desk(*SUBMIT, under=("--output", str(trace)))
    assert done.ok, done.stderr
    campaign = json.loads(done.stdout)["data"]["campaign"]
    calls: Counter[str] = Counter()
    found: list[tuple[str, int]] = []
    begun = False
    for line in trace.read_text(errors="replace").splitlines():
        match = re.match(r"(\w+)\(", line)
        if match is None or match[1] == "exit_group":
            continue
        calls[match[1]] += 1
        begun = begun or (match[1] == "mkdir" and campaign in line)
        if begun:
            found.append((match[1], calls[match[1]]))
    return found


def sample(found: list[tuple[str, int]], count: int) -> list[tuple[str, int]]:
    """Return as many as are wanted, one from each of as many equal stretches."""
    chance = random.Random(20261121)
    edges = [len(found) * part // count for part in range(count + 1)]
    return [
        found[chance.randrange(low, high)] for low, high in itertools.pairwise(edges) if high > low
    ]


def killed(desk: Desk, call: str, number: int) -> tuple[Path | None, bool]:
    """Submit, be killed at a system call; return the campaign if there is one, and whether."""
    before = desk.campaigns()
    inject = f"inject={call}:signal=KILL:when={number}"
    done = desk(*SUBMIT, under=("--output=/dev/null", f"--trace={call}", "-e", inject))
    new = desk.campaigns() - before
    assert len(new) <= 1
    return next(iter(new), None), not done.ok


def watch(desk: Desk, directory: Path) -> None:
    """See that who only watches adopts what is queued, and submits nothing."""
    before = desk.jobs()
    looked = desk("monitor", "--once", "--json", str(directory))
    assert looked.ok, looked.stderr
    assert desk.jobs() == before
    for array in store.read_manifest(directory).arrays:
        assert {array.job_id} == before.get(array.name, {""})


def test_a_submission_killed_at_a_system_call_loses_and_doubles_no_job(
    desk: Desk, work: Path, record_property: Callable[[str, object], None]
) -> None:
    found = boundaries(desk, desk.runs / "trace")
    wanted = found if KILLS == "all" else sample(found, int(KILLS))
    tried = [(call, number, *killed(desk, call, number)) for call, number in wanted]
    outcomes: Counter[str] = Counter()
    for call, number, directory, dead in tried:
        where = f"killed at {call} number {number}"
        if directory is None or not (directory / store.MANIFEST).exists():
            outcomes["before the manifest"] += 1
            names = [name for name in desk.jobs() if directory and directory.name in name]
            assert not names, where
            continue
        if (sum(outcomes.values())) % 4 == 0:
            watch(desk, directory)
        resumed = desk("submit", "--resume", str(directory), "--json")
        assert resumed.ok, f"{where}: {resumed.stdout}{resumed.stderr}"
        outcomes["resumed" if dead else "ran through"] += 1
        manifest = store.read_manifest(directory)
        jobs = desk.jobs()
        assert len(manifest.arrays) == POINTS
        for array in manifest.arrays:
            assert jobs.get(array.name) == {array.job_id}, where
        assert not (directory / store.LOCK).exists(), where
    record_property("boundaries", len(found))
    record_property("outcomes", dict(outcomes))
    print(f"{len(found)} boundaries, {len(tried)} tried: {dict(outcomes)}")  # noqa: T201
    assert outcomes["resumed"] + outcomes["before the manifest"] > len(tried) // 2
