"""On a node everybody can write to /tmp: no name there can be taken away from a user."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcbert.prepare.image import _make_private

pytestmark = pytest.mark.slow

ENTER = Path(__file__).resolve().parents[2] / "hpcbert/shell/enter.sh"
OTHER = 54321
BASE = f"hpcbert-{os.geteuid()}"


def make_directory(path: Path) -> None:
    path.mkdir(mode=0o777)
    os.chown(path, OTHER, OTHER)


def make_link(path: Path) -> None:
    target = path.with_name("victims-own")
    target.mkdir(exist_ok=True)
    path.symlink_to(target)
    os.chown(path, OTHER, OTHER, follow_symlinks=False)


def make_file(path: Path) -> None:
    path.touch()
    os.chown(path, OTHER, OTHER)


def choose_place(scratch: Path, name: str = "hpcbert-7") -> Path:
    words = ["bash", "-p", str(ENTER), "place", "--name", name, "--scratch", str(scratch)]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return Path(result.stdout.strip())


@pytest.mark.needs("users")
@pytest.mark.parametrize("take", [make_directory, make_link, make_file])
def test_where_it_is_taken_another_is_found_by_every_rank(
    tmp_path: Path, take: Callable[[Path], None]
) -> None:
    assert choose_place(tmp_path) == tmp_path / BASE
    shutil.rmtree(tmp_path / BASE)
    take(tmp_path / BASE)
    take(tmp_path / f"{BASE}.0000000000")
    path = choose_place(tmp_path)
    assert path.parent == tmp_path
    assert path.name.startswith(f"{BASE}.")
    assert not path.is_symlink()
    assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (os.geteuid(), 0o700)
    assert choose_place(tmp_path) == path
    # A job that began before stays where it is, whatever appears or goes away after that.
    (path / "state" / f"hpcbert-7-{os.uname().nodename}").mkdir(parents=True)
    (tmp_path / f"{BASE}.000000000A").mkdir()
    assert choose_place(tmp_path) == path
    assert choose_place(tmp_path, "hpcbert-8") == tmp_path / f"{BASE}.000000000A"


@pytest.mark.needs("users")
@pytest.mark.parametrize("take", [make_directory, make_link])
def test_prepare_keeps_out_of_what_somebody_else_made(
    tmp_path: Path, take: Callable[[Path], None]
) -> None:
    take(tmp_path / "enroot-me")
    path = _make_private(tmp_path / "enroot-me")
    assert path.name.startswith("enroot-me.")
    assert path.stat().st_mode & 0o777 == 0o700
    assert _make_private(tmp_path / "enroot-you") == tmp_path / "enroot-you"
