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
from hpcbert.errors import ConfigError, UsageError
from hpcbert.system.decode import IgnoreUnknown, decode
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
class Cached(IgnoreUnknown):
    """One prepared image.

    Attributes:
        stem: The beginning of its files' names.
        reference: Its source, without a user; for a built one `build:FRAMEWORK`.
        sha256: Of the file, hexadecimal.
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
    try:
        data: Any = json.loads((directory / f"{stem}.json").read_text(encoding="utf-8"))
        file = data["file"]
        path = directory / file
        is_own = data["schema"] == SCHEMA and "/" not in file and file.startswith(f"{stem}+")
        if not is_own or path.stat().st_size != data["bytes"]:
            return None
        values = {**data, "stem": stem, "path": str(path.absolute())}
        return decode(Cached, values, file=str(path))
    except (OSError, ValueError, KeyError, TypeError, ConfigError):
        return None


def list_images(directory: Path) -> tuple[Cached, ...]:
    """Return all whole images, sorted by name."""
    stems = sorted(path.name.removesuffix(".json") for path in directory.glob("[!.]*.json"))
    images = (find_by_stem(directory, stem) for stem in stems)
    return tuple(image for image in images if image is not None)


def find_leftovers(directory: Path) -> tuple[Leftover, ...]:
    """Return the files without a pointer, by name; those of a living import are marked."""
    image_names = {Path(image.path).name for image in list_images(directory)}
    leftovers = []
    for path in sorted(directory.glob("*")):
        match = _HIDDEN_NAME.fullmatch(path.name)
        is_old = path.suffix in _IMAGE_SUFFIXES and "+" in path.stem
        if match or (is_old and path.name not in image_names):
            stem = match["stem"] if match else path.stem.rpartition("+")[0]
            size = path.lstat().st_size if path.is_file() else 0
            leftovers.append(Leftover(str(path), stem, is_importing(directory, stem), size))
    return tuple(leftovers)


def is_importing(directory: Path, stem: str) -> bool:
    """Return whether the holder of a stem's lock seems to be alive."""
    lock = directory / f".{stem}~lock"
    holder = lock / "holder"
    try:
        heartbeat = (holder if holder.exists() else lock).stat().st_mtime
        fields = holder.read_text().split() if holder.exists() else []
        pid_namespace = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return False
    # Token, host, place, process and moment of its start, as image.sh writes them.
    is_whole = len(fields) == 5 and fields[4].isdecimal()  # noqa: PLR2004
    is_here = is_whole and fields[2] == f"{boot_id()}/{pid_namespace}/{os.geteuid()}"
    has_ended = is_here and not is_alive(fields[3], int(fields[4]))
    return time.time() - heartbeat < _DEAD_AFTER and not has_ended


def remove_image(directory: Path, cached: Cached) -> None:
    """Remove a prepared image: its pointer first, so that no reader finds half of it.

    Raises:
        UsageError: It is being imported at this moment.
    """
    if is_importing(directory, cached.stem):
        message = f"{cached.stem} is being imported."
        hint = "Wait for the import, or end it; the next import takes over from a killed one."
        raise UsageError(message, where=str(directory), hint=hint)
    _remove(directory / f"{cached.stem}.json")
    _remove(Path(cached.path))


def remove_leftovers(candidates: Sequence[Leftover]) -> tuple[Leftover, ...]:
    """Remove leftovers without a living import, and return the removed ones."""
    dead_files = tuple(leftover for leftover in candidates if not leftover.busy)
    for leftover in dead_files:
        _remove(Path(leftover.path))
    return dead_files


def _remove(path: Path) -> None:
    hint = "Ask its owner to remove it; nothing else was removed."
    with translate_errors("remove", path, hint=hint):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
