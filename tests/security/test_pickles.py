"""No pickle is read from a campaign, wherever submitit or anybody may have left one."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit.cases import read_constant
from tests.kit.waiting import CEILING

# Python itself tells of every pickle that is loaded and names something.
WATCHED = read_constant(__file__, "WATCHED")


class Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def plant(directory: Path, job: str, sprung: Path) -> list[Path]:
    """Lay traps where submitit keeps tasks and results, and in the place of every other file."""
    names = [f"{job}_{end}" for end in ("submitted.pkl", "0_result.pkl", "result.pkl")]
    names += [f"{job}_{n}_{end}" for n in (1, 2) for end in ("submitted.pkl", "0_result.pkl")]
    folders = [directory / folder for folder in ("", "slurm", "status", "logs", "env", "scripts")]
    planted = []
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            (folder / name).write_bytes(pickle.dumps(Trap(sprung)))
            planted.append(folder / name)
    return planted


def watched_run(
    words: list[str], *, cwd: Path, env: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        [sys.executable, "-c", WATCHED, *words],
        cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=CEILING,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert "Traceback" not in result.stderr
    return result


@pytest.fixture
def trapped(slurm: Any, watched: Any, tmp_path: Path) -> Path:
    """A campaign that is full of traps, which make the directory `sprung`."""
    tracked = watched()
    slurm.answers(sacct=[tracked.sacct(1, "COMPLETED") + tracked.sacct(2, "FAILED")])
    plant(tracked.directory, "12", tmp_path / "sprung")
    directory: Path = tracked.directory
    return directory


@pytest.mark.parametrize(
    "words",
    ["collect", "monitor --once", "logs", "cancel --yes", "retry --dry-run", "audit"],
)
def test_a_planted_pickle_is_never_loaded(
    hpcbert: Any, trapped: Path, tmp_path: Path, words: str
) -> None:
    line = [*words.split(), str(trapped)]
    result = watched_run(line, cwd=hpcbert.cwd, env=hpcbert.environment)
    assert not (tmp_path / "sprung").exists()
    assert "PICKLE" not in result.stderr


def test_the_watch_sees_a_pickle_that_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    load = "import pickle; pickle.load(open('x', 'rb')); sys.exit()\nfrom hpcbert"
    text = WATCHED.replace("from hpcbert", load)
    argv = [sys.executable, "-c", text]
    result = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "PICKLE" in result.stderr


@pytest.mark.parametrize(
    "name", ["manifest.json", "measurements.json", "recipe.toml", "table.json"]
)
def test_a_pickle_in_the_place_of_a_file_is_no_file(build: Any, tmp_path: Path, name: str) -> None:
    built = build("1n1g", repeats=1, scheduler="local")
    built.complete("1n1g", 1, 10.0)
    sprung = tmp_path / "sprung"
    (built.directory / name).write_bytes(pickle.dumps(Trap(sprung)))
    for words in (["collect"], ["audit"], ["monitor", "--once"]):
        result = watched_run([*words, str(built.directory)], cwd=tmp_path, env={**os.environ})
        assert "PICKLE" not in result.stderr
    assert not sprung.exists()
