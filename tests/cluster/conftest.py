from pathlib import Path

import pytest

from tests.kit.waiting import unqueued, until


@pytest.fixture
def hpcbert(as_user, checkout, work):
    """hpcbert as a person on the lab starts it, in a directory with a space in its name."""
    folder = work / "with a space"
    as_user(["mkdir", str(folder)])
    return checkout.cli(folder, as_user, HPCBERT_RUNS=str(folder / "runs"))


@pytest.fixture
def wait_for_end(as_user):
    """Waits until the queue holds no job of a campaign, and returns its directory."""

    def wait(directory):
        path = Path(directory)
        until(lambda: unqueued(as_user, path.name), "jobs are still queued", pause=0.3)
        return path

    return wait
