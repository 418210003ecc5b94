"""On a node everybody can write to /tmp: no name there can be taken away from a user."""

import os
import shutil
from pathlib import Path

import pytest

from hpcbert.prepare.image import _make_private
from tests.kit.scripts import run_program

pytestmark = [pytest.mark.slow, pytest.mark.needs("users")]


def take(path: Path, kind: str) -> None:
    """Have another user make a directory, a file or a link to a directory of ours."""
    if kind == "link":
        path.with_name("victims-own").mkdir(exist_ok=True)
        path.symlink_to(path.with_name("victims-own"))
    else:
        path.touch() if kind == "file" else path.mkdir(mode=0o777)
    os.chown(path, 54321, 54321, follow_symlinks=False)


def choose_place(scratch: Path, name: str = "hpcbert-7") -> Path:
    printed = run_program("enter.sh", "place", "--name", name, "--scratch", scratch).stdout
    return Path(printed.strip())


@pytest.mark.parametrize("kind", ["directory", "link", "file"])
def test_where_it_is_taken_another_is_found_by_every_rank(tmp_path, kind):
    base = f"hpcbert-{os.geteuid()}"
    assert choose_place(tmp_path) == tmp_path / base
    shutil.rmtree(tmp_path / base)
    take(tmp_path / base, kind)
    take(tmp_path / f"{base}.0000000000", kind)
    path = choose_place(tmp_path)
    assert path.parent == tmp_path
    assert path.name.startswith(f"{base}.")
    assert not path.is_symlink()
    assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (os.geteuid(), 0o700)
    assert choose_place(tmp_path) == path
    # A job that began before stays where it is, whatever appears or goes away after that.
    (path / "state" / f"hpcbert-7-{os.uname().nodename}").mkdir(parents=True)
    (tmp_path / f"{base}.000000000A").mkdir()
    assert choose_place(tmp_path) == path
    assert choose_place(tmp_path, "hpcbert-8") == tmp_path / f"{base}.000000000A"
    if kind != "file":
        take(tmp_path / "enroot-me", kind)
        private = _make_private(tmp_path / "enroot-me")
        assert private.name.startswith("enroot-me.")
        assert private.stat().st_mode & 0o777 == 0o700
        assert _make_private(tmp_path / "enroot-you") == tmp_path / "enroot-you"
