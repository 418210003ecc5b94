"""The files that scripts read from the folder of their library: which are missing or differ."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from hpcbert.errors import UsageError
from hpcbert.model import Campaign
from hpcbert.system import files

SCRIPTS_FOLDER = "scripts"


class LibraryFile(NamedTuple):
    """A file of a library that is not as its scripts need it."""

    name: str
    state: Literal["missing", "different", "not needed"]


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file, hexadecimal; empty if it is missing or can't be read."""
    try:
        return hashlib.sha256(files.read(path)).hexdigest()
    except OSError:
        return ""


def compare_library(folder: Path, expected: Collection[tuple[str, str]]) -> Iterator[LibraryFile]:
    """Yield what is missing, differs or is not needed in a folder, apart from scripts.

    Args:
        folder: The library's.
        expected: Name and SHA-256 of each file.
    """
    for name, sha256 in expected:
        sha256_found = hash_file(folder / name)
        if sha256_found != sha256:
            yield LibraryFile(name, "different" if sha256_found else "missing")
    names = {name for name, _ in expected}
    paths = sorted(folder.iterdir()) if folder.is_dir() else ()
    for path in paths:
        if path.name not in names and path.suffix != ".sbatch" and not path.is_dir():
            yield LibraryFile(path.name, "not needed")


def refuse_changed_library(directory: Path, campaign: Campaign) -> None:
    """Refuse to run a campaign with another library than it was written with.

    Raises:
        UsageError: A file is missing or differs.
    """
    for name, state in compare_library(directory / SCRIPTS_FOLDER, campaign.library):
        if state != "not needed":
            raise UsageError(
                f"The file is {state}: the campaign was written with it.",
                where=str(directory / SCRIPTS_FOLDER / name),
                hint="Submit again, so that manifest and library agree.",
            )
