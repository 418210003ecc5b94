"""Fixtures for several folders of tests."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hpcbert.model import Protocol
from tests.kit import campaigns
from tests.kit.campaigns import Built
from tests.kit.cli import Cli, CliResult, inside
from tests.kit.logs import TEST_RECIPES
from tests.kit.slurm import Programs


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., Built]:
    """Makes campaigns of the PyTorch reference, as submit would leave them."""
    return partial(campaigns.build, tmp_path / "runs")


@pytest.fixture
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory without a site, with a place for campaigns."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HPCBERT_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PATH without Slurm's programs, which every point of a dry run would start."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("bash", "env", "python3"):
        (folder / name).symlink_to(shutil.which(name) or sys.executable)
    monkeypatch.setenv("PATH", str(folder))


@pytest.fixture
def collect(empty_directory: None) -> Callable[..., CliResult]:
    """Runs `hpcbert collect WORDS` in this process, with the tests' own recipes."""
    return lambda *words: inside("collect", *words, "--templates", TEST_RECIPES)


@pytest.fixture
def collect_json(collect: Callable[..., CliResult]) -> Callable[..., dict[str, Any]]:
    """Runs it with --json and returns the document."""
    return lambda *words: collect(*words, "--json").document


@pytest.fixture
def run(empty_directory: None) -> Callable[..., dict[str, Any]]:
    """Runs `hpcbert collect WORDS --json` with hpcbert's own recipes and returns the document."""
    return lambda *words: inside("collect", *words, "--json").document


@pytest.fixture
def slurm(tmp_path: Path) -> Programs:
    """A scripted Slurm's commands, to be put on PATH."""
    return Programs(tmp_path / "bin")


@pytest.fixture
def hpcbert(tmp_path: Path, slurm: Programs) -> Cli:
    """hpcbert in a directory with a space in its name and a site whose Slurm is the scripted one."""
    folder = tmp_path / "with a space"
    folder.mkdir()
    (folder / "site.toml").write_text(
        'schema = 1\nname = "t"\nscheduler = "slurm"\n[slurm]\npoll_floor = 0.2\n'
    )
    return Cli(folder, {"PATH": slurm.path, "HOME": str(folder)})


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


@pytest.fixture
def tracked(tmp_path: Path) -> Callable[..., Built]:
    """Makes a campaign on disk: an array of `repeats` per job id, owned by nobody."""

    def make(*jobs: str, name: str = "camp", **changes: Any) -> Built:
        shapes = (f"1n{number}g" for number in range(1, len(jobs) + 1))
        return campaigns.build(tmp_path / "a b", *shapes, name=name, jobs=jobs, **changes)

    return make
