"""The directory of prepared images, read through the pointers that image.sh writes.

A pointer `<STEM>.json` is renamed into place after its image, so the image it names is whole.
Names that begin with a dot belong to an import in progress, or to a killed one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcbert.container.reference import Image
from hpcbert.errors import UsageError
from hpcbert.system.files import translate_errors
from hpcbert.system.processes import boot_id, is_alive

SCRIPT = Path(__file__).parent.parent / "shell" / "image.sh"
SCHEMA = 1
_IMAGE_SUFFIXES = (".sqsh", ".sif")
_HIDDEN_NAME = re.compile(
    r"\.(?P<stem>[A-Za-z0-9_][A-Za-z0-9._+@-]*)~(lock|failed|.+\.(partial|json|dead|done))"
)
# A heart beats every ten seconds; an hour without one is not due to clocks that differ.
_DEAD_AFTER = 3600.0


@dataclass(frozen=True)
class Cached:
    """One prepared image.

    Attributes:
        stem: The beginning of its files' names.
        reference: Its source, without a user; for a built one `build:FRAMEWORK`.
        path: Its file, absolute.
        sha256: Of the file, hexadecimal.
        bytes: Its size.
        created: When it was finished, ISO 8601 UTC.
        enroot, apptainer: Version that made it; empty if unknown, or if the other made it.
    """

    stem: str
    reference: str
    path: str
    sha256: str
    bytes: int
    created: str
    enroot: str = ""
    apptainer: str = ""


@dataclass(frozen=True)
class Leftover:
    """A file without a pointer: an old image, or the remains of a killed import.

    Attributes:
        busy: Whether an import that seems alive owns it.
        bytes: Its size, 0 for directories.
    """

    path: str
    stem: str
    busy: bool
    bytes: int


def built_stem(framework: str, base: str, install: Sequence[str]) -> str:
    """Return the stem of an image built from a recipe: another base or command gives another."""
    text = json.dumps([base, list(install)])
    return f"{framework}+built+{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def find_image(directory: Path, image: Image, prefix: str = "") -> Cached | None:
    """Return the prepared file of a registry's image; None without a whole one."""
    return find_by_stem(directory, prefix + image.stem) if image.kind != "file" else None


def find_by_stem(directory: Path, stem: str) -> Cached | None:
    """Return the prepared image of a stem; None without a whole one."""
    return _read_pointer(directory / f"{stem}.json")


def list_images(directory: Path) -> tuple[Cached, ...]:
    """Return all whole images, sorted by name."""
    images = (_read_pointer(path) for path in sorted(directory.glob("[!.]*.json")))
    return tuple(image for image in images if image is not None)


def find_leftovers(directory: Path) -> tuple[Leftover, ...]:
    """Return the files without a pointer, by name; those of a living import are marked."""
    image_names = {Path(image.path).name for image in list_images(directory)}
    leftover_files = []
    for path in sorted(directory.glob("*")) if directory.is_dir() else ():
        hidden_match = _HIDDEN_NAME.fullmatch(path.name)
        if hidden_match:
            name = hidden_match["stem"]
        elif path.suffix in _IMAGE_SUFFIXES and "+" in path.stem and path.name not in image_names:
            name = path.stem.rpartition("+")[0]
        else:
            continue
        size = path.lstat().st_size if path.is_file() else 0
        leftover_files.append(Leftover(str(path), name, is_importing(directory, name), size))
    return tuple(leftover_files)


def is_importing(directory: Path, stem: str) -> bool:
    """Return whether the holder of a stem's lock seems to be alive."""
    lock = directory / f".{stem}~lock"
    holder = lock / "holder"
    try:
        heartbeat = (holder if holder.exists() else lock).stat().st_mtime
        holder_fields = holder.read_text().split() if holder.exists() else []
    except OSError:
        return False
    return time.time() - heartbeat < _DEAD_AFTER and not _is_dead_here(holder_fields)


def remove_image(directory: Path, cached: Cached) -> None:
    """Remove a prepared image: its pointer first, so that no reader finds half of it.

    Raises:
        UsageError: It is being imported at this moment.
    """
    if is_importing(directory, cached.stem):
        raise UsageError(
            f"{cached.stem} is being imported.",
            where=str(directory),
            hint="Wait for the import, or end it; the next import takes over from a killed one.",
        )
    _unlink(directory / f"{cached.stem}.json")
    _unlink(Path(cached.path))


def remove_leftovers(candidates: Sequence[Leftover]) -> tuple[Leftover, ...]:
    """Remove leftovers without a living import, and return the removed ones."""
    dead_files = tuple(leftover for leftover in candidates if not leftover.busy)
    for leftover in dead_files:
        _unlink(Path(leftover.path))
    return dead_files


def _unlink(path: Path) -> None:
    hint = "Ask its owner to remove it; nothing else was removed."
    with translate_errors("remove", path, hint=hint):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _read_pointer(pointer: Path) -> Cached | None:
    try:
        data: Any = json.loads(pointer.read_text(encoding="utf-8"))
        file, stem = data["file"], pointer.name.removesuffix(".json")
        if data["schema"] != SCHEMA or "/" in file or not file.startswith(f"{stem}+"):
            return None
        path = pointer.parent / file
        if path.stat().st_size != data["bytes"]:
            return None
        return Cached(
            stem=stem,
            reference=str(data["reference"]),
            path=str(path.absolute()),
            sha256=str(data["sha256"]),
            bytes=int(data["bytes"]),
            created=str(data["created"]),
            enroot=str(data.get("enroot", "")),
            apptainer=str(data.get("apptainer", "")),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_dead_here(holder_fields: Sequence[str]) -> bool:
    """Return whether a lock's holder, as image.sh writes it, was on this host and has ended."""
    if len(holder_fields) != 5:  # noqa: PLR2004 - token, host, place, pid, moment of start
        return False
    _, _, holder_place, pid, start_time = holder_fields
    try:
        pid_namespace = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return False
    own_place = f"{boot_id()}/{pid_namespace}/{os.geteuid()}"
    return (
        holder_place == own_place and start_time.isdecimal() and not is_alive(pid, int(start_time))
    )
