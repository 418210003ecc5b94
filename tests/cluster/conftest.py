"""hpcbert as a person on the lab starts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.cli import Cli
from tests.kit.lab import AsUser, Checkout


@pytest.fixture
def hpcbert(as_user: AsUser, checkout: Checkout, work: Path) -> Cli:
    """hpcbert of the ordinary user, in a directory with a space in its name."""
    folder = work / "with a space"
    as_user(["mkdir", str(folder)])
    env = {"PYTHONPATH": str(checkout.path), "HPCBERT_RUNS": str(folder / "runs")}
    return Cli(folder, env, as_user, checkout.python)
