"""submit, retry and cancel killed with SIGKILL at their system calls on a real cluster.

strace notes the system calls of a command from the campaign's directory on. Then the real command
is run again and again, and killed as it enters one of them. What it leaves must be whole for
whoever repeats it: no job is lost, none is doubled, and another user changes nothing of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign import store
from hpcbert.model import MANIFEST
from tests.faults.killing import POINTS, SUBMIT, Desk, chosen

pytestmark = [pytest.mark.slurm, pytest.mark.needs("strace")]

# What a second user may try, with the exit codes that are right.
TRIED = {
    ("submit", "--resume"): {2},
    ("retry",): {2},
    ("cancel", "--yes"): {2},
    ("monitor", "--once"): {0, 3},
    ("collect",): {4},
}


@pytest.fixture
def other_desk(desk: Desk, as_other_user: Any) -> Iterator[Desk]:
    desk.runs.parent.chmod(0o755)
    yield Desk(desk.runs, as_other_user, desk.checkout)
    as_other_user(["bash", "-c", "scancel --user=$USER"])


def submit_killed(desk: Desk, call: str, number: int) -> tuple[Path | None, bool]:
    """Submit, and be killed at a system call; return the campaign if it has a manifest, and whether."""
    before = desk.campaigns()
    dead = desk.killed(call, number, *SUBMIT)
    new = desk.campaigns() - before
    assert len(new) <= 1
    directory = next(iter(new), None)
    if directory is None or (directory / MANIFEST).exists():
        return directory, dead
    assert not [name for name in desk.jobs() if directory.name in name], (call, number)
    return None, dead


def check_jobs(desk: Desk, directory: Path, retries: int, where: tuple[str, int]) -> None:
    """See that each array of a campaign has the one job on record, and that its lock is gone."""
    arrays = store.read_manifest(directory).arrays
    expected = [retry for retry in range(retries + 1) for _ in range(POINTS)]
    assert [array.retry for array in arrays] == expected, where
    jobs = {name: ids for name, ids in desk.jobs().items() if directory.name in name}
    assert jobs == {array.name: {array.job_id} for array in arrays}, where
    assert not (directory / store.LOCK).exists(), where


def alive(desk: Desk, directory: Path) -> list[str]:
    return [name for name in desk.jobs("pending,running") if directory.name in name]


def test_a_submission_loses_and_doubles_no_job(desk: Desk) -> None:
    tried = [(*call, *submit_killed(desk, *call)) for call in chosen(desk.calls(*SUBMIT), 8)]
    outcomes: Counter[str] = Counter()
    for call, number, directory, dead in tried:
        outcome = "before the manifest" if directory is None else "resumed" if dead else "ran"
        outcomes[outcome] += 1
        if directory is None:
            continue
        if sum(outcomes.values()) % 4 == 0:
            # Who only watches adopts what is queued, and submits nothing.
            before = desk.jobs()
            assert desk("monitor", "--once", "--json", str(directory)).ok
            assert desk.jobs() == before
            for array in store.read_manifest(directory).arrays:
                assert {array.job_id} == before.get(array.name, {""})
        desk.must("submit", "--resume", str(directory), "--json")
        check_jobs(desk, directory, 0, (call, number))
    print(f"submit: {len(tried)} tried: {dict(outcomes)}")  # noqa: T201
    assert outcomes["ran"] < len(tried) / 2


def test_cancel_and_then_retry_lose_and_double_no_job(desk: Desk) -> None:
    bystander, first = desk.submitted(), desk.submitted()
    calls, dead = desk.calls("cancel", str(first), "--yes", "--json"), 0
    assert not alive(desk, first)
    cancelled = [first]
    for call, number in chosen(calls, 3):
        directory = desk.submitted()
        words = ("cancel", str(directory), "--yes", "--json")
        dead += desk.killed(call, number, *words)
        desk.must(*words)
        assert not alive(desk, directory), (call, number)
        cancelled.append(directory)
    tried = chosen(desk.calls("retry", str(cancelled.pop()), "--json"), 3)
    for call, number in tried:
        if not cancelled:
            cancelled.append(desk.submitted())
            desk.must("cancel", str(cancelled[0]), "--yes", "--json")
        directory = cancelled.pop()
        dead += desk.killed(call, number, "retry", str(directory), "--json")
        desk.must("retry", str(directory), "--json")
        check_jobs(desk, directory, 1, (call, number))
        assert len(alive(desk, directory)) == POINTS, (call, number)
    assert len(alive(desk, bystander)) == POINTS
    print(f"cancel and retry: {dead} killed, {len(tried)} tried of each")  # noqa: T201
    assert dead > len(tried)


def test_another_user_changes_and_doubles_nothing(desk: Desk, other_desk: Desk) -> None:
    halfway = 0
    for call in chosen(desk.calls(*SUBMIT), 3):
        directory, _ = submit_killed(desk, *call)
        if directory is None:
            continue
        halfway += 1
        desk.as_user(["chmod", "-R", "a+rX", str(directory)])  # To look at it is allowed.
        before, queued = read_content(directory), other_desk.jobs()
        with ThreadPoolExecutor() as pool:
            outcomes = pool.map(lambda words, path=directory: other_desk(*words, str(path)), TRIED)
            for (words, codes), outcome in zip(TRIED.items(), outcomes, strict=True):
                assert outcome.returncode in codes, (words, outcome.stdout, outcome.stderr)
        assert (read_content(directory), other_desk.jobs()) == (before, queued)
        desk.must("submit", "--resume", str(directory), "--json")
        check_jobs(desk, directory, 0, call)
    assert halfway


def read_content(directory: Path) -> dict[Path, tuple[int, bytes]]:
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in (directory, *directory.rglob("*"))
    }
