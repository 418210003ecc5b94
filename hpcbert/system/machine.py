"""The networks, container programs and directories of this machine that a site.toml may name."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Directories that are local to each machine.
_PRIVATE = ("/tmp", "/dev/shm", "/run", "/var/run")  # noqa: S108 - they are what is refused
# File systems that several machines can mount (fstype in /proc/mounts).
_SHARED = (
    *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "fuse.ceph", "glusterfs"),
    *("fuse.glusterfs", "pvfs2", "orangefs", "panfs", "afs", "cifs", "wekafs", "fhgfs", "daos"),
)
# Variables with which centres name directories for a user's files, in the order of preference.
_VARIABLES = ("SCRATCH", "WORK", "PROJECT", "WORKDIR", "HOME")
# InfiniBand, Omni-Path and Slingshot, by the beginnings of their interfaces' names.
_FAST = ("ib", "opa", "hfi", "hsn")


@dataclass(frozen=True)
class Surroundings:
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
        return tuple(interface for interface in self.interfaces if interface.startswith(_FAST))


def look(environ: Mapping[str, str], root: Path = Path("/")) -> Surroundings:
    """Return the surroundings on this machine.

    Args:
        environ: Environment with PATH and the variables of directories.
        root: Where /proc and /sys are.
    """
    programs = ("enroot", "apptainer", "singularity")
    path = environ.get("PATH", os.defpath)
    mounts = _mounts(root / "proc/mounts")
    places = {name: environ[name] for name in _VARIABLES if environ.get(name, "").startswith("/")}
    return Surroundings(
        interfaces=_interfaces(root / "sys/class/net"),
        programs=tuple(program for program in programs if shutil.which(program, path=path)),
        shared={name: place for name, place in places.items() if _kind(place, mounts) in _SHARED},
    )


def private(place: str) -> str:
    """Return the local directory that contains a place; empty if none does."""
    found = os.path.realpath(place)
    return next((top for top in _PRIVATE if f"{found}/".startswith(f"{top}/")), "")


def _interfaces(folder: Path) -> tuple[str, ...]:
    try:
        names = sorted(path.name for path in folder.iterdir() if path.name != "lo")
    except OSError:
        return ()
    up = [name for name in names if _read(folder / name / "operstate") in {"up", "unknown"}]
    return tuple(sorted(up, key=lambda one: not one.startswith(_FAST)))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _mounts(path: Path) -> list[tuple[str, str]]:
    """Return mount points and their file systems, the longest first."""
    rows = (line.split() for line in _read(path).splitlines())
    found = [(row[1].replace("\\040", " "), row[2]) for row in rows if len(row) > 2]  # noqa: PLR2004
    return sorted(found, key=lambda one: len(one[0]), reverse=True)


def _kind(place: str, mounts: Sequence[tuple[str, str]]) -> str:
    """Return the file system of a place."""
    real = os.path.realpath(place)
    return next((kind for top, kind in mounts if f"{real}/".startswith(f"{top.rstrip('/')}/")), "")
