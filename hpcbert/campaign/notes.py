"""A user's note on a campaign: one line, in a file of its own.

It may change at any time, so it is not part of the manifest; it has no effect on numbers, so it is
not evidence. Archives carry it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from hpcbert.errors import UsageError
from hpcbert.system import files

if TYPE_CHECKING:
    from pathlib import Path

NOTE = "note.txt"
# Characters.
_LONGEST = 1000
# A larger file is something else.
_MOST = 1 << 16


def checked(text: str) -> str:
    """Return a note as it is stored: on one line.

    Raises:
        UsageError: It is too long, or has control characters.
    """
    line = " ".join(text.split())
    if len(line) > _LONGEST:
        raise UsageError(f"The note has {len(line):,} characters; the limit is {_LONGEST:,}.")
    if not line.isprintable():
        raise UsageError("The note has characters that can't be printed.")
    return line


def write(directory: Path, text: str) -> None:
    """Write a campaign's note, replacing the present one; an empty one removes it.

    Raises:
        UsageError: As `checked`.
        HpcbertError: The file system refused; the old note stays.
    """
    line, path = checked(text), directory / NOTE
    if line:
        files.write_text(path, f"{line}\n")
        return
    with files.refusal("remove the note", path), contextlib.suppress(FileNotFoundError):
        path.unlink()


def read(directory: Path) -> str:
    """Return a campaign's note; empty if there is none, or if it can't be read."""
    try:
        raw = files.read(directory / NOTE, most=_MOST)
    except OSError:
        return ""
    line = " ".join(raw.decode("utf-8", "replace").split())
    return "".join(char if char.isprintable() else "�" for char in line)[:_LONGEST]
