"""Campaigns by the ids of their jobs, and a Slurm in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit import campaigns
from tests.kit.campaigns import Built
from tests.kit.slurm import Slurm


@pytest.fixture
def slurm() -> Slurm:
    return Slurm()


@pytest.fixture
def watched(tmp_path: Path) -> Callable[..., Built]:
    """Makes a campaign on disk: an array of `repeats` per job id, owned by nobody."""

    def make(*jobs: str, name: str = "camp", **changes: Any) -> Built:
        shapes = (f"1n{number}g" for number in range(1, len(jobs) + 1))
        return campaigns.build(tmp_path / "a b", *shapes, name=name, jobs=jobs, **changes)

    return make
