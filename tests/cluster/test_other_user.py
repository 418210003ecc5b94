"""Two accounts of a real cluster and one directory of campaigns: mallory plants, alice works."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.kit.cli import Cli

pytestmark = pytest.mark.slurm

MALLORY = 54321


@pytest.fixture
def runs(work: Path) -> Path:
    """A directory that everybody can write to, as /tmp."""
    path = work / "runs"
    path.mkdir()
    path.chmod(0o1777)
    return path


@pytest.fixture
def hpcbert(as_user: Any, checkout: Any, work: Path, runs: Path) -> Cli:
    """hpcbert as alice, whose working directory is beside the campaigns."""
    folder = work / "alice"
    as_user(["mkdir", "-p", str(folder)])
    env = {"PYTHONPATH": str(checkout.path), "HPCBERT_RUNS": str(runs)}
    return Cli(folder, env, run=as_user, python=checkout.python)


def plant(alices: Path, later: Path) -> None:
    """Copy a campaign as mallory would: all his own, its script a trap, its jobs alice's."""
    shutil.copytree(alices, later)
    for script in later.glob("scripts/*.sbatch"):
        script.write_text(f"#!/bin/bash\n: > {later.parent}/sprung-$(id -u)\n")
        script.chmod(0o755)
    manifest = later / "manifest.json"
    campaign = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**campaign, "id": later.name}))
    for path in (later, *later.rglob("*")):
        path.chmod(0o777)
        os.chown(path, MALLORY, MALLORY)


def test_nothing_of_mallorys_is_run_cancelled_or_counted(
    hpcbert: Cli, as_user: Any, runs: Path
) -> None:
    later = "20991231T235959Z-pytorch-bbbbbb"
    words = [
        "--nodes",
        "1",
        "--gpus-per-node",
        "1",
        "--repeats",
        "1",
        "--rehearse",
        "--fw",
        "oneflow",
    ]
    result = hpcbert("submit", *words, "--sbatch-arg=--hold", "--json")
    assert result.ok, result.stderr
    alices = Path(json.loads(result.stdout)["data"]["directory"])
    theirs = runs / later
    plant(alices, theirs)

    def queued() -> list[str]:
        lines: list[str] = as_user(
            ["squeue", "--me", "--noheader", "--format=%F %j"]
        ).stdout.splitlines()
        return sorted(line for line in lines if alices.name in line)

    before = queued()
    assert len(before) == 1
    for refused in (
        ("retry", later),
        ("retry", str(theirs)),
        ("submit", "--resume", later),
        ("cancel", "--yes", later),
        ("monitor", "--max-retries", "1", later),
    ):
        answer = hpcbert(*refused)
        assert answer.returncode == 2, answer.stdout
        assert "belongs to" in answer.stderr, refused
    watched = hpcbert("monitor", "--once")
    assert alices.name in watched.stdout
    for silent in (
        ("monitor", "--once"),
        ("collect", "--json"),
        ("logs",),
        ("cancel", "--yes", "pytorch"),
    ):
        answer = hpcbert(*silent)
        assert later not in answer.stdout, silent
    assert queued() == before
    assert hpcbert("cancel", "--yes", alices.name).ok
    assert not list(runs.glob("sprung-*"))
