"""Submitted campaigns, in a directory with a space in its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcbert.model import Protocol
from tests.kit import campaigns
from tests.kit.campaigns import Built


@pytest.fixture
def watched(tmp_path: Path) -> Callable[..., Built]:
    """Makes a submitted campaign of a point for each number of GPUs, with ids from 12 on."""

    def make(
        name: str = "20261121T100000Z-pytorch-aaaaaa",
        *,
        job_id: str = "12",
        repeats: int = 2,
        shapes: tuple[int, ...] = (1,),
        **changes: Any,
    ) -> Built:
        jobs = [str(int(job_id) + place) if place else job_id for place in range(len(shapes))]
        return campaigns.build(
            tmp_path / "with a space" / "runs", *(f"1n{gpus}g" for gpus in shapes), name=name,
            repeats=repeats, jobs=tuple(jobs), protocol=Protocol(repeats), **changes,
        )  # fmt: skip

    return make
