"""What this machine has that a site.toml may name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tomli

from hpcbert.system import machine
from hpcbert.system.machine import find_local_directory, inspect_machine
from tests.kit.paths import REPOSITORY


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


# --- Packages -------------------------------------------------------------------------------------


def test_what_extras_name_is_what_the_project_says() -> None:
    project = tomli.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    # What newer Pythons need beyond that, pip finds.
    requirements = {
        name: tuple(word for word in words if ";" not in word) for name, words in extras.items()
    }
    assert requirements == machine.EXTRAS


@pytest.mark.parametrize(
    ("program", "device", "expected"),
    [("nvidia-smi", "", "NVIDIA"), ("", "/dev/null", "ROCm"), ("", "", "/cpu")],
)
def test_torch_is_installed_for_the_devices_that_there_are(
    monkeypatch: pytest.MonkeyPatch, program: str, device: str, expected: str
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name if name == program else None)
    monkeypatch.setattr(machine, "_AMD_DEVICE", Path(device or "/nothing"))
    message = machine.describe_torch_install("/my python")
    assert expected in message
    assert "'/my python' -m pip install 'torch>=2.4'" in message
