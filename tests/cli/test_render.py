"""`render --check`: scripts, and the library files that they read, in every kind of folder."""

import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.cli import CliResult, run

pytestmark = pytest.mark.usefixtures("empty_directory")

POINT = ("--fw", "pytorch", "--nodes", "1", "--gpus-per-node", "2", "--device", "cpu")
CHANGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "missing": ("rank.bash", Path.unlink),
    "different": ("job.bash", lambda path: replace_file(path, f"{path.read_text()}# edited\n")),
    "not needed": ("enter.sh", lambda path: path.write_text("of an earlier version\n")),
}


@pytest.fixture(params=["output", "links", "campaign"])
def folder(request):
    """A folder with scripts, as it was written; its library is in `scripts`, or next to them."""
    assert run("init", "--local").returncode == 0
    if request.param == "campaign":
        assert run("submit", *POINT, "--rehearse", "--repeats", "1").returncode == 0
        assert run("monitor").returncode == 0
        return next(Path("runs").iterdir()) / "scripts"
    assert run("render", *POINT, "--output", "a b").returncode == 0
    if request.param == "links":
        shutil.move("a b/scripts", "library")
        Path("a b/scripts").mkdir()
        for path in Path("library").iterdir():
            Path("a b/scripts", path.name).symlink_to(f"../../library/{path.name}")
    return Path("a b")


@pytest.fixture
def library(folder):
    return folder if folder.name == "scripts" else folder / "scripts"


def replace_file(path: Path, text: str) -> None:
    path.unlink()
    path.write_text(text)


def check(folder: Path) -> CliResult:
    result = run("render", "--check", folder, "--json")
    result.check(as_json=True)
    return result


def test_a_folder_as_it_was_written_passes_and_a_changed_script_is_named(folder, library):
    result = check(folder)
    assert result.returncode == 0, result
    names = {path.name for path in library.iterdir() if path.suffix != ".sbatch"}
    assert result.data == {"scripts": 1, "different": 0, "files": len(names), "library": []}
    (path,) = folder.glob("*.sbatch")
    path.write_text(path.read_text().replace("--nodes=1", "--nodes=2"))
    result = check(folder)
    assert (result.returncode, result.data["different"], result.data["library"]) == (5, 1, [])
    path.unlink()
    result = check(folder)
    assert (result.returncode, result.error["code"]) == (5, "check")


@pytest.mark.parametrize("state", CHANGES)
def test_what_became_of_a_file_is_named(folder, library, state):
    name, change = CHANGES[state]
    change(library / name)
    result = check(folder)
    assert (result.returncode, result.data["library"]) == (5, [{"name": name, "state": state}])
    assert name in result.error["message"]
    assert result.error["hint"]


def test_the_remedies_repair_a_folder(folder, library):
    if folder == library:
        pytest.skip("a campaign stays as it was submitted")
    (library / "rank.bash").unlink()
    (library / "rank.bash").symlink_to("nowhere")
    (library / "old.bash").write_text("")
    replace_file(library / "job.bash", "")
    errors = check(folder).document["errors"]
    assert len(errors) == 3
    for error in errors:
        subprocess.run(shlex.split(error["hint"]), check=True)
    assert check(folder).returncode == 0
