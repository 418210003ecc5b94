"""A user's note on a campaign: one line, in a file of its own.

It may change at any time, so it is not part of the manifest; it has no effect on numbers, so it is
not evidence. Archives carry it.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from hpcbert.errors import UsageError
from hpcbert.system import files

NOTE = "note.txt"
# Characters.
_LONGEST_NOTE = 1000
# A larger file is something else.
_MAX_NOTE_BYTES = 1 << 16


def check_note(text: str) -> str:
    """Return a note as it is stored: on one line.

    Raises:
        UsageError: It is too long, or has control characters.
    """
    line = " ".join(text.split())
    if len(line) > _LONGEST_NOTE:
        raise UsageError(f"The note has {len(line):,} characters; the limit is {_LONGEST_NOTE:,}.")
    if not line.isprintable():
        raise UsageError("The note has characters that can't be printed.")
    return line


def write_note(directory: Path, text: str) -> None:
    """Write a campaign's note, replacing the present one; an empty one removes it.

    Raises:
        UsageError: As `check_note`.
        HpcbertError: The file system refused; the old note stays.
    """
    line, path = check_note(text), directory / NOTE
    if line:
        files.write_text(path, f"{line}\n")
        return
    with files.translate_errors("remove the note", path), contextlib.suppress(FileNotFoundError):
        path.unlink()


def read_note(directory: Path) -> str:
    """Return a campaign's note; empty if there is none, or if it can't be read."""
    try:
        raw = files.read(directory / NOTE, max_bytes=_MAX_NOTE_BYTES)
    except OSError:
        return ""
    line = " ".join(raw.decode("utf-8", "replace").split())
    return "".join(char if char.isprintable() else "�" for char in line)[:_LONGEST_NOTE]
