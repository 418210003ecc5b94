"""`render --check`: scripts, and the library files that they read, in every kind of folder."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.cli import CliResult, run

POINT = ("--fw", "pytorch", "--nodes", "1", "--gpus-per-node", "2", "--device", "cpu")
KINDS = ("output", "links", "campaign")


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with scripts, as it was written; its library is in `scripts`, or next to them."""
    monkeypatch.chdir(tmp_path)
    assert run("init", "--local").returncode == 0
    if request.param == "campaign":
        assert run("submit", *POINT, "--rehearse", "--repeats", "1").returncode == 0
        assert run("monitor").returncode == 0
        (directory,) = (tmp_path / "runs").iterdir()
        return directory / "scripts"
    assert run("render", *POINT, "--output", tmp_path / "a b").returncode == 0
    if request.param == "links":
        shutil.move(tmp_path / "a b/scripts", tmp_path / "library")
        (tmp_path / "a b/scripts").mkdir()
        for path in (tmp_path / "library").iterdir():
            (tmp_path / "a b/scripts" / path.name).symlink_to(f"../../library/{path.name}")
    return tmp_path / "a b"


@pytest.fixture
def library(folder: Path) -> Path:
    return folder if folder.name == "scripts" else folder / "scripts"


def check(folder: Path) -> CliResult:
    result = run("render", "--check", folder, "--json")
    result.check(as_json=True)
    return result


def test_a_folder_as_it_was_written_passes(folder: Path, library: Path) -> None:
    result = check(folder)
    assert result.returncode == 0, result
    names = {path.name for path in library.iterdir() if path.suffix != ".sbatch"}
    assert result.data == {"scripts": 1, "different": 0, "files": len(names), "library": []}


def lose(path: Path) -> None:
    path.unlink()


def link_nowhere(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def edit(path: Path) -> None:
    text = path.read_text()
    path.unlink()
    path.write_text(f"{text}# edited\n")


def add(path: Path) -> None:
    path.write_text("of an earlier version\n")


@pytest.mark.parametrize(
    ("change", "name", "state"),
    [
        (lose, "rank.bash", "missing"),
        (link_nowhere, "rank.bash", "missing"),
        (edit, "job.bash", "different"),
        (add, "enter.sh", "not needed"),
    ],
)
def test_what_became_of_a_file_is_named(
    folder: Path, library: Path, change: Callable[[Path], None], name: str, state: str
) -> None:
    change(library / name)
    result = check(folder)
    assert (result.returncode, result.data["library"]) == (5, [{"name": name, "state": state}])
    assert name in result.error["message"]
    assert result.error["hint"]


def test_the_remedies_repair_a_folder(folder: Path, library: Path) -> None:
    if folder == library:
        pytest.skip("a campaign stays as it was submitted")
    (library / "rank.bash").unlink()
    (library / "old.bash").write_text("")
    (library / "job.bash").unlink()
    (library / "job.bash").write_text("")
    result = check(folder)
    assert len(result.document["errors"]) == 3
    for error in result.document["errors"]:
        assert _run(error["hint"]), error
    assert check(folder).returncode == 0


def test_a_changed_script_is_named(folder: Path) -> None:
    (path,) = folder.glob("*.sbatch")
    path.write_text(path.read_text().replace("--nodes=1", "--nodes=2"))
    result = check(folder)
    assert result.returncode == 5
    assert (result.data["different"], result.data["library"]) == (1, [])


def _run(command: str) -> bool:
    return subprocess.run(shlex.split(command), check=False).returncode == 0


def test_a_folder_without_a_script_is_refused(tmp_path: Path) -> None:
    result = run("render", "--check", tmp_path, "--json")
    assert (result.returncode, result.error["code"]) == (5, "check")
