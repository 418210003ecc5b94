from pathlib import Path

import pytest

from tests.kit.cli import Cli
from tests.kit.waiting import unqueued, until


@pytest.fixture
def hpcbert(as_user, checkout, work):
    """hpcbert as a person on the lab starts it, in a directory with a space in its name."""
    folder = work / "with a space"
    as_user(["mkdir", str(folder)])
    env = {"PYTHONPATH": str(checkout.path), "HPCBERT_RUNS": str(folder / "runs")}
    return Cli(folder, env, as_user, checkout.python)


@pytest.fixture
def wait_for_end(as_user):
    """Waits until the queue holds no job of a campaign, and returns its directory."""

    def wait(directory: str) -> Path:
        path, words = Path(directory), ["squeue", "--noheader", "--format=%j"]
        until(lambda: unqueued(as_user(words), path.name), "jobs are still queued", pause=0.3)
        return path

    return wait
