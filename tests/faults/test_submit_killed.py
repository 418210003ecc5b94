"""submit killed with SIGKILL at its system calls: no job is lost, none is doubled.

strace notes the system calls of one submission from the campaign's directory on. Then the real
command is run again and again on a real cluster, and killed as it enters one of them. What is
left must be whole for `submit --resume`: afterwards Slurm has one job for each point.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from hpcbert.campaign import store
from hpcbert.model import MANIFEST
from tests.faults.killing import POINTS, SUBMIT, Desk, chosen

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.needs("strace"),
]

FEW = 8


def killed(desk: Desk, call: str, number: int) -> tuple[Path | None, bool]:
    """Submit, be killed at a system call; return the campaign if there is one, and whether."""
    before = desk.campaigns()
    dead = desk.killed(call, number, *SUBMIT)
    new = desk.campaigns() - before
    assert len(new) <= 1
    return next(iter(new), None), dead


def watch(desk: Desk, directory: Path) -> None:
    """See that who only watches adopts what is queued, and submits nothing."""
    before = desk.jobs()
    looked = desk("monitor", "--once", "--json", str(directory))
    assert looked.ok, looked.stderr
    assert desk.jobs() == before
    for array in store.read_manifest(directory).arrays:
        assert {array.job_id} == before.get(array.name, {""})


def test_a_submission_killed_at_a_system_call_loses_and_doubles_no_job(
    desk: Desk,
) -> None:
    calls = desk.calls(*SUBMIT)
    tried = [(call, number, *killed(desk, call, number)) for call, number in chosen(calls, FEW)]
    outcomes: Counter[str] = Counter()
    for call, number, directory, dead in tried:
        where = f"killed at {call} number {number}"
        if directory is None or not (directory / MANIFEST).exists():
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
    print(f"{len(calls)} boundaries, {len(tried)} tried: {dict(outcomes)}")  # noqa: T201
    assert outcomes["resumed"] + outcomes["before the manifest"] > len(tried) // 2
