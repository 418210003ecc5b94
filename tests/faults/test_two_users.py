"""Two users and one directory of campaigns: the second one meddles while the first is killed."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign import store
from hpcbert.model import MANIFEST
from tests.faults.killing import POINTS, SUBMIT, Desk, chosen

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.needs("strace"),
]

FEW = 3
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


def content(directory: Path) -> dict[Path, tuple[int, bytes]]:
    """Return when each file of a campaign was written last, and what is in it."""
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in (directory, *directory.rglob("*"))
    }


def meddle(other: Desk, directory: Path) -> None:
    """Let the second user try all at once what changes a campaign if it is one's own."""
    before, queued = content(directory), other.jobs()
    with ThreadPoolExecutor() as pool:
        outcomes = pool.map(lambda words: other(*words, str(directory)), TRIED)
        for (words, codes), outcome in zip(TRIED.items(), outcomes, strict=True):
            assert outcome.returncode in codes, (words, outcome.stdout, outcome.stderr)
    assert content(directory) == before
    assert other.jobs() == queued


def test_another_user_changes_and_doubles_nothing_of_a_submission_that_was_killed(
    desk: Desk, other_desk: Desk
) -> None:
    halfway = 0
    tried = chosen(desk.calls(*SUBMIT), FEW)
    for call, number in tried:
        before = desk.campaigns()
        desk.killed(call, number, *SUBMIT)
        directory = next(iter(desk.campaigns() - before), None)
        if directory is None or not (directory / MANIFEST).exists():
            continue
        halfway += 1
        desk.as_user(["chmod", "-R", "a+rX", str(directory)])  # To look at it is allowed.
        meddle(other_desk, directory)
        desk.must("submit", "--resume", str(directory), "--json")
        arrays = store.read_manifest(directory).arrays
        jobs = desk.jobs()
        assert len(arrays) == POINTS
        for array in arrays:
            assert jobs.get(array.name) == {array.job_id}, (call, number)
    print(f"{len(tried)} tried, {halfway} with a manifest")  # noqa: T201
    assert halfway
