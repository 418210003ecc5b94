"""What this machine has that a site.toml may name."""

import shutil
from pathlib import Path

import tomli

from hpcbert.system import machine
from tests.kit.logs import write_file
from tests.kit.paths import REPOSITORY


def test_networks_directories_and_programs(tmp_path):
    """Of a machine with an InfiniBand card, and a home directory on NFS."""
    for name, state in {"lo": "unknown", "eth0": "up", "eth1": "down", "ibs1": "up"}.items():
        write_file(tmp_path, f"sys/class/net/{name}/operstate", f"{state}\n")
    mounts = "/dev/sda1 / ext4 rw 0 0\nserver:/home /home nfs4 rw 0 0\n"
    mounts += "mgs:/x /scra\\040tch lustre rw 0 0\ncut off\n"
    write_file(tmp_path, "proc/mounts", mounts)
    write_file(tmp_path, "bin/apptainer", "").chmod(0o755)
    places = {"HOME": "/home/me", "SCRATCH": "/scra tch/me", "WORK": "/work/me"}
    places["PROJECT"] = "no path"
    surroundings = machine.inspect_machine({"PATH": str(tmp_path / "bin"), **places}, tmp_path)
    assert (surroundings.interfaces, surroundings.fast) == (("ibs1", "eth0"), ("ibs1",))
    assert surroundings.programs == ("apptainer",)
    assert surroundings.shared == {"SCRATCH": "/scra tch/me", "HOME": "/home/me"}
    nothing = machine.inspect_machine({"PATH": "/none", "HOME": "/home/me"}, tmp_path / "none")
    assert (nothing.interfaces, nothing.programs, nothing.shared) == ((), (), {})
    tops = {"/tmp/x": "/tmp", "/dev/shm": "/dev/shm", "/tmpfs": "", "/srv": ""}
    assert {place: machine.find_local_directory(place) for place in tops} == tops


def test_what_extras_name_is_what_the_project_says():
    project = tomli.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    # What newer Pythons need beyond that, pip finds.
    requirements = {
        name: tuple(word for word in words if ";" not in word)
        for name, words in project["optional-dependencies"].items()
    }
    assert requirements == machine.EXTRAS


def test_torch_is_installed_for_the_devices_that_there_are(monkeypatch):
    for program, device, build in (
        ("nvidia-smi", "/nothing", "NVIDIA"),
        ("", "/dev/null", "ROCm"),
        ("", "/nothing", "/cpu"),
    ):
        monkeypatch.setattr(shutil, "which", {program: program}.get)
        monkeypatch.setattr(machine, "_AMD_DEVICE", Path(device))
        message = machine.describe_torch_install("/my python")
        assert build in message
        assert "'/my python' -m pip install 'torch>=2.4'" in message
