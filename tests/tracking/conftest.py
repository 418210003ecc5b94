from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign import store
from hpcbert.campaign.repeats import Watched
from hpcbert.model import Array, Campaign, Point, Protocol, Shape
from hpcbert.system.runner import Outcome
from tests.waiting import CEILING

CREATED = 1_795_255_000.0


@dataclass
class FakeSlurm:
    """Answers sacct and squeue with what the test says they print."""

    sacct: str | Outcome = ""
    squeue: str | Outcome = ""
    calls: list[tuple[str, ...]] = field(default_factory=list)
    environments: list[Mapping[str, str]] = field(default_factory=list)

    def __call__(
        self,
        argv: Sequence[str],
        *,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = CEILING,
    ) -> Outcome:
        self.calls.append(tuple(argv))
        self.environments.append(env or {})
        answer = {"sacct": self.sacct, "squeue": self.squeue}.get(argv[0], "")
        return answer if isinstance(answer, Outcome) else Outcome(tuple(argv), 0, answer)

    def count(self, program: str) -> int:
        return sum(call[0] == program for call in self.calls)


def failed(program: str, complaint: str, code: int = 1) -> Outcome:
    return Outcome((program,), code, "", complaint)


NO_SACCT = failed("sacct", "sacct: no such program", 127)
NO_SQUEUE = failed("squeue", "squeue: no such program", 127)


@pytest.fixture
def slurm() -> FakeSlurm:
    return FakeSlurm()


@pytest.fixture
def watched(tmp_path: Path) -> Callable[..., Watched]:
    """Make a campaign on disk: an array of `repeats` per job id, owned by nobody."""

    def make(
        *job_ids: str,
        repeats: int = 5,
        name: str = "camp",
        scheduler: str = "slurm",
        **changes: Any,
    ) -> Watched:
        directory = tmp_path / f"a b/{name}"
        store.create(directory)
        arrays = []
        for number, job_id in enumerate(job_ids, start=1):
            point = Point("pytorch", "bert-base", Shape(1, number), "fp32", 32)
            array = Array(
                point=point,
                name=f"hpcbert-{name}-{point.key}",
                repeats=tuple(range(1, repeats + 1)),
                script=f"scripts/{point.key}.sbatch",
                script_sha256="",
                log=f"logs/{point.key}_{{repeat}}.log",
                state="submitted" if job_id else "intended",
                job_id=job_id,
                submitted="2026-11-21T10:00:00Z" if job_id else "",
            )
            arrays.append(replace(array, **changes))
        campaign = Campaign(
            id=name,
            created="2026-11-21T09:56:40Z",  # CREATED
            hpcbert="0",
            user="nobody",
            command=("hpcbert", "submit"),
            scheduler=scheduler,
            site="t",
            runtime="none",
            image="",
            framework="pytorch",
            recipe_digest="",
            protocol=Protocol(repeats),
            concurrent_repeats=1,
            concurrent_points=False,
            rehearse=False,
            arrays=tuple(arrays),
        )
        store.write_manifest(directory, campaign)
        return Watched(directory, campaign)

    return make


@pytest.fixture
def tell() -> Callable[..., None]:
    """Append events to a repeat's status file, as its job would."""

    def append(one: Watched, repeat: int, *events: dict[str, Any], array: int = 0) -> None:
        path = one.directory / one.campaign.arrays[array].status(repeat)
        with path.open("a") as file:
            file.writelines(f"{json.dumps({'attempt': 0, **event})}\n" for event in events)

    return append
