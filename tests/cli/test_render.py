"""`render --check`: scripts, and the library files that they read, in every kind of folder."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.kit.cli import run


def make_folder(kind):
    """Return a folder with scripts, as it was written, and that of its library: a campaign's is one."""
    point = ("--fw", "pytorch", "--gpus-per-node", "2", "--device", "cpu")
    run("init", "--local", status=0)
    if kind == "campaign":
        run("submit", *point, "--rehearse", "--repeats", "1", status=0)
        run("monitor", status=0)
        return (next(Path("runs").iterdir()) / "scripts",) * 2
    run("render", *point, "--output", "a b", status=0)
    library = Path("a b", "scripts")
    if kind == "links":
        shutil.move(library, "library")
        shutil.copytree(Path("library").absolute(), library, copy_function=os.symlink)
    return library.parent, library


@pytest.mark.parametrize("kind", ["output", "links", "campaign"])
def test_what_became_of_a_file_is_named_and_the_remedies_repair_a_folder(kind, empty_directory):
    def check(folder, status):
        result = run("render", "--check", folder, "--json", status=status)
        result.check(as_json=True)
        return result

    folder, library = make_folder(kind)
    names = {path.name for path in library.iterdir() if path.suffix != ".sbatch"}
    data = {"scripts": 1, "different": 0, "files": len(names), "library": []}
    assert check(folder, 0).data == data
    edited = (library / "job.bash").read_text() + "# edited\n"
    for name, state, new in (
        ("rank.bash", "missing", ""),
        ("job.bash", "different", edited),
        ("enter.sh", "not needed", "of an earlier version\n"),
    ):
        path = library / name
        text = path.read_text() if path.exists() else ""
        for content in (new, text):
            path.unlink(missing_ok=True)  # not the file that a link leads to
            if content:
                path.write_text(content)
            if content == new:
                result = check(folder, 5)
                assert result.data["library"] == [{"name": name, "state": state}]
                assert name in result.error["message"]
                assert result.error["hint"]
    if kind != "campaign":  # which stays as it was submitted
        for name in ("rank.bash", "job.bash"):
            (library / name).unlink()
        (library / "rank.bash").symlink_to("nowhere")
        for name in ("job.bash", "old.bash"):
            (library / name).write_text("")
        errors = check(folder, 5).document["errors"]
        assert len(errors) == 3
        for error in errors:
            subprocess.run(shlex.split(error["hint"]), check=True)
    assert check(folder, 0).data == data
    (path,) = folder.glob("*.sbatch")
    path.write_text(path.read_text().replace("--nodes=1", "--nodes=2"))
    data = check(folder, 5).data
    assert (data["different"], data["library"]) == (1, [])
    path.unlink()
    assert check(folder, 5).error["code"] == "check"
