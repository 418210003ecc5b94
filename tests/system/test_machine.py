"""What this machine has that a site.toml may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbert.system.machine import find_local_directory, inspect_machine


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with an InfiniBand card, and a home directory on NFS."""
    for name, state in {"lo": "unknown", "eth0": "up", "eth1": "down", "ibs1": "up"}.items():
        folder = tmp_path / "sys/class/net" / name
        folder.mkdir(parents=True)
        (folder / "operstate").write_text(f"{state}\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/mounts").write_text(
        "/dev/sda1 / ext4 rw 0 0\nserver:/home /home nfs4 rw 0 0\nmgs:/x /scra\\040tch lustre rw 0 0\n"
        "cut off\n"
    )
    return tmp_path


def test_networks_directories_and_programs(root: Path) -> None:
    (root / "bin").mkdir()
    (root / "bin/apptainer").touch(0o755)
    environ = {
        "PATH": str(root / "bin"),
        "HOME": "/home/me",
        "SCRATCH": "/scra tch/me",
        "WORK": "/work/me",
        "PROJECT": "not absolute",
    }
    surroundings = inspect_machine(environ, root)
    assert surroundings.interfaces == ("ibs1", "eth0")
    assert surroundings.fast == ("ibs1",)
    assert surroundings.programs == ("apptainer",)
    assert surroundings.shared == {"SCRATCH": "/scra tch/me", "HOME": "/home/me"}


def test_a_machine_that_shows_nothing(tmp_path: Path) -> None:
    surroundings = inspect_machine({"PATH": str(tmp_path), "HOME": "/home/me"}, tmp_path)
    assert (surroundings.interfaces, surroundings.programs, surroundings.shared) == ((), (), {})


@pytest.mark.parametrize(
    ("place", "top"), [("/tmp/x", "/tmp"), ("/dev/shm", "/dev/shm"), ("/tmpfs", ""), ("/srv", "")]
)
def test_a_directory_of_this_machine_alone(place: str, top: str) -> None:
    assert find_local_directory(place) == top
