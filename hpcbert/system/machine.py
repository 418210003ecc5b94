"""This machine: networks, container programs and directories that a site.toml may name, packages.

hpcbert may not come from an index, and then the name of an extra would install nothing: commands
that install its optional packages name them.

Recipes and manifests name some of the entry points that packages offer hpcbert, and may come with
somebody's campaign or archive. So hpcbert imports nothing that they name: it looks the name up
among the entry points of the interpreter's installation. The working directory, which `python -m`
and an empty part of PYTHONPATH put first, PYTHONPATH and the recipe's folder are not part of it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# As in pyproject.toml; newer Pythons need newer versions, and pip finds only those.
EXTRAS = {
    "data": ("google-crc32c>=1.6", "h5py>=3.10", "tokenizers>=0.20"),
    "parquet": ("pyarrow>=15",),
    "torch": ("torch>=2.4", "numpy>=1.26"),
}
# The index of PyTorch's builds (pytorch.org/get-started/locally): the build on PyPI is for NVIDIA's
# GPUs.
_TORCH_INDEX = "https://download.pytorch.org/whl"
_AMD_DEVICE = Path("/dev/kfd")


def install_command(extra: str, python: str = sys.executable) -> str:
    """Return the command that installs an extra of hpcbert."""
    return shlex.join([python, "-m", "pip", "install", *EXTRAS[extra]])


def describe_torch_install(python: str = sys.executable) -> str:
    """Return a sentence on how to install the build of PyTorch for this machine's devices."""
    command = install_command("torch", python)
    if shutil.which("nvidia-smi"):
        return f"For NVIDIA GPUs: {command}"
    if _AMD_DEVICE.exists():
        index = f"{_TORCH_INDEX}/ROCM"
        return f"For AMD GPUs: {command} --index-url {index}, with the release of ROCm here."
    return f"This machine has no GPU: {command} --extra-index-url {_TORCH_INDEX}/cpu"


# Directories that are local to each machine.
_LOCAL_DIRECTORIES = ("/tmp", "/dev/shm", "/run", "/var/run")  # noqa: S108 - they are what is refused
# File systems that several machines can mount (fstype in /proc/mounts).
_SHARED_FILE_SYSTEMS = (
    *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "fuse.ceph", "glusterfs"),
    *("fuse.glusterfs", "pvfs2", "orangefs", "panfs", "afs", "cifs", "wekafs", "fhgfs", "daos"),
)
# Variables with which centres name directories for a user's files, in the order of preference.
_DIRECTORY_VARIABLES = ("SCRATCH", "WORK", "PROJECT", "WORKDIR", "HOME")
# InfiniBand, Omni-Path and Slingshot, by the beginnings of their interfaces' names.
_FAST_PREFIXES = ("ib", "opa", "hfi", "hsn")


@dataclass(frozen=True)
class MachineFacts:
    """The networks, programs and directories of this machine.

    Attributes:
        interfaces: Networks that are up, except the loopback; fast ones first.
        programs: Programs that enter containers: `enroot`, `apptainer`, `singularity`.
        shared: Directories that other machines see too, by the variable that names them.
    """

    interfaces: tuple[str, ...]
    programs: tuple[str, ...]
    shared: Mapping[str, str]

    @property
    def fast(self) -> tuple[str, ...]:
        """The interfaces of the networks that clusters provide for jobs."""
        return tuple(
            interface for interface in self.interfaces if interface.startswith(_FAST_PREFIXES)
        )


def inspect_machine(environ: Mapping[str, str], root: Path = Path("/")) -> MachineFacts:
    """Return the surroundings on this machine."""
    programs, path = ("enroot", "apptainer", "singularity"), environ.get("PATH", os.defpath)
    rows = (line.split() for line in _read_text(root / "proc/mounts").splitlines())
    mounts = [(row[1].replace("\\040", " "), row[2]) for row in rows if len(row) > 2]  # noqa: PLR2004
    mounts.sort(key=lambda mount: len(mount[0]), reverse=True)  # the longest first
    shared = {}
    for name in _DIRECTORY_VARIABLES:
        directory = environ.get(name, "")
        if (
            directory.startswith("/")
            and _find_file_system(directory, mounts) in _SHARED_FILE_SYSTEMS
        ):
            shared[name] = directory
    return MachineFacts(
        interfaces=_list_interfaces(root / "sys/class/net"),
        programs=tuple(program for program in programs if shutil.which(program, path=path)),
        shared=shared,
    )


def find_local_directory(path: str) -> str:
    """Return the local directory that contains a place; empty if none does."""
    real_path = f"{os.path.realpath(path)}/"
    return next((top for top in _LOCAL_DIRECTORIES if real_path.startswith(f"{top}/")), "")


def _list_interfaces(folder: Path) -> tuple[str, ...]:
    try:
        names = sorted(path.name for path in folder.iterdir() if path.name != "lo")
    except OSError:
        return ()
    interfaces = [
        name for name in names if _read_text(folder / name / "operstate") in {"up", "unknown"}
    ]
    return tuple(sorted(interfaces, key=lambda interface: not interface.startswith(_FAST_PREFIXES)))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _find_file_system(directory: str, mounts: Sequence[tuple[str, str]]) -> str:
    real_path = f"{os.path.realpath(directory)}/"
    systems = (system for top, system in mounts if real_path.startswith(f"{top.rstrip('/')}/"))
    return next(systems, "")


# --- Entry points ---------------------------------------------------------------------------------


def list_entry_points(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group by name."""
    return _scan_packages(group, tuple(_list_installed_paths()))


@cache
def _scan_packages(group: str, paths: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    from importlib.metadata import distributions

    return {
        entry.name: entry
        for distribution in distributions(path=list(paths))
        for entry in distribution.entry_points
        if entry.group == group
    }


def load_entry_point(entry: EntryPoint) -> Any:
    """Return what an entry point offers.

    Raises:
        ImportError: It can't be imported, whatever its package raises.
    """
    previous_path = sys.path
    sys.path = _list_installed_paths()
    try:
        return entry.load()
    except ImportError:
        raise
    except Exception as error:  # a syntax error, or what the package does when it is read
        raise ImportError(f"{type(error).__name__}: {error}") from error
    finally:
        sys.path = previous_path


def _list_installed_paths() -> list[str]:
    """Return the part of sys.path from the installation.

    It begins with the standard library: before it are the working directory, the script's own and
    PYTHONPATH (docs.python.org, The initialization of the sys.path module search
    path). Editable installs follow it by way of .pth files.
    """
    library = os.path.realpath(sysconfig.get_path("stdlib"))
    start = [index for index, folder in enumerate(sys.path) if os.path.realpath(folder) == library]
    library_and_later = sys.path[start[0] :] if start else []
    return [folder for folder in library_and_later if os.path.isabs(folder)]  # noqa: PTH117 - a text, as sys.path has it
