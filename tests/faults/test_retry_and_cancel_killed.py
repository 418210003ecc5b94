"""retry and cancel killed at their system calls on a real cluster: nothing is lost or doubled."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbert.campaign import store
from tests.faults.killing import POINTS, Desk, chosen

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.needs("strace"),
]

FEW = 3


def alive(desk: Desk, directory: Path) -> dict[str, set[str]]:
    """Return the ids of a campaign's jobs that have not ended, by their names."""
    jobs = desk.jobs("pending,running")
    return {name: ids for name, ids in jobs.items() if directory.name in name}


def cancel_killed(desk: Desk, bystander: Path) -> tuple[list[Path], str]:
    """Kill cancel at its system calls; return the campaigns that it was to cancel, and counts."""
    first = desk.submitted()
    calls = desk.calls("cancel", str(first), "--yes", "--json")
    assert not alive(desk, first)
    cancelled, dead = [first], 0
    for call, number in chosen(calls, FEW):
        directory = desk.submitted()
        words = ("cancel", str(directory), "--yes", "--json")
        dead += desk.killed(call, number, *words)
        desk.must(*words)
        assert not alive(desk, directory), (call, number)
        cancelled.append(directory)
    assert len(alive(desk, bystander)) == POINTS
    return cancelled, f"{len(calls)} system calls, {len(cancelled) - 1} tried, {dead} killed"


def test_cancel_and_then_retry_killed_at_system_calls_lose_and_double_no_job(
    desk: Desk,
) -> None:
    bystander = desk.submitted()
    cancelled, outcomes = cancel_killed(desk, bystander)
    dead = 0
    calls = desk.calls("retry", str(cancelled.pop()), "--json")
    tried = chosen(calls, FEW)
    for call, number in tried:
        if not cancelled:
            cancelled.append(desk.submitted())
            desk.must("cancel", str(cancelled[0]), "--yes", "--json")
        directory = cancelled.pop()
        words = ("retry", str(directory), "--json")
        dead += desk.killed(call, number, *words)
        desk.must(*words)
        arrays = store.read_manifest(directory).arrays
        assert [array.retry for array in arrays] == [0] * POINTS + [1] * POINTS, (call, number)
        jobs = desk.jobs()
        assert {array.name: {array.job_id} for array in arrays} == {
            name: ids for name, ids in jobs.items() if directory.name in name
        }, (call, number)
        assert len(alive(desk, directory)) == POINTS, (call, number)
        assert not (directory / store.LOCK).exists(), (call, number)
    assert len(alive(desk, bystander)) == POINTS
    counts = f"{len(calls)} system calls, {len(tried)} tried, {dead} killed"
    print(f"cancel: {outcomes}; retry: {counts}")  # noqa: T201
    assert dead > len(tried) // 2
