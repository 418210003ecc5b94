"""Untrusted ZIP files, read in bounded time, memory and space, and only if they are plain.

The checks cover the end record and the directory (APPNOTE.TXT 6.3.10, sections 4.3.12 and
4.3.16), before `zipfile` reads the directory into memory; then every entry, before one is unpacked.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING, BinaryIO

from hpcbert.errors import UsageError
from hpcbert.system.files import open_file, refusal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

# Limits of one archive: files, bytes of its directory, bytes of all unpacked files, letters of a
# name.
MOST_FILES = 50_000
MOST_BYTES = 1 << 31
LONGEST = 1000
_MOST_DIRECTORY = 1 << 23
_BLOCK = 1 << 20
# The end record: signature, entries, size of the directory; a comment may follow it. An archive
# with more than 65,535 entries, or 4 GiB, has another record before it, and is refused.
_END = struct.Struct("<4s6xHL6x")
_END_MARK, _WIDE_MARK, _WIDE = b"PK\x05\x06", b"PK\x06\x07", 20
_COMMENT = 1 << 16
_ENCRYPTED = 1
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, struct.error, ValueError, NotImplementedError)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive in which every entry is a plain file with its own path.

    Raises:
        UsageError: It is not an archive, it is damaged, or an entry is not a plain file; also while
            the archive is read.
    """
    with refusal("read the archive", path, hint=""):
        descriptor, size = open_file(path)
    with os.fdopen(descriptor, "rb") as file:
        _look_at_end(file, size, path)
        try:
            with zipfile.ZipFile(file) as archive:
                _look_at_entries(archive.infolist(), path)
                yield archive
        except _BROKEN as error:
            raise UsageError(
                "The archive is damaged or cut short.",
                where=str(path),
                hint=f"Copy it again from its source ({error}).",
            ) from error


def unpack(archive: zipfile.ZipFile, info: zipfile.ZipInfo, target: Path) -> None:
    """Write one entry to a new file, exactly as many bytes as it declares.

    Raises:
        BadZipFile, zlib.error, EOFError: Its content differs from its declaration.
        HpcbertError: The file system refused.
    """
    with refusal("unpack to", target):
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file, archive.open(info) as packed:
        # zipfile stops at the declared size, and compares the checksum there.
        while block := packed.read(_BLOCK):
            with refusal("unpack to", target):
                file.write(block)
        if file.tell() != info.file_size:
            raise zipfile.BadZipFile(f"{info.filename!r} is shorter than it declares")


def _look_at_end(file: BinaryIO, size: int, path: Path) -> None:
    """Refuse a file that is not an archive, or is too large for memory.

    Raises:
        UsageError: It is.
    """
    file.seek(max(0, size - _END.size - _COMMENT - _WIDE))
    tail = file.read()
    at = tail.rfind(_END_MARK)
    if at < 0 or len(tail) - at < _END.size:
        cut = tail and size >= len(_END_MARK) and _begins(file)
        what = "The ZIP file was cut short." if cut else "The file is not a ZIP file."
        raise UsageError(what, where=str(path))
    _, count, length = _END.unpack_from(tail, at)
    wide = tail[max(0, at - _WIDE) : at].startswith(_WIDE_MARK)
    if wide or count > MOST_FILES or length > _MOST_DIRECTORY:
        raise UsageError(
            f"The archive has too many files: hpcbert reads at most {MOST_FILES:,}.",
            where=str(path),
        )


def _begins(file: BinaryIO) -> bool:
    file.seek(0)
    return file.read(4) == b"PK\x03\x04"


def _look_at_entries(entries: Sequence[zipfile.ZipInfo], path: Path) -> None:
    """Refuse entries that are not plain files below the archive's own folder.

    Raises:
        UsageError: One is.
    """
    taken: set[str] = set()
    for entry in entries:
        if why := _fault(entry, taken):
            name = entry.filename.encode("ascii", "backslashreplace").decode()[:LONGEST]
            raise UsageError(f"The archive's entry {name!r} {why}.", where=str(path))
        taken.add(entry.filename.rstrip("/"))
    folders = {name[:at] for name in taken for at, letter in enumerate(name) if letter == "/"}
    files = {entry.filename for entry in entries if not entry.is_dir()}
    if both := sorted(folders & files):
        message = f"The archive's entry {both[0]!r} is a file and a folder."
        raise UsageError(message, where=str(path))
    size = sum(entry.file_size for entry in entries)
    if len(entries) > MOST_FILES or size > MOST_BYTES:
        raise UsageError(
            f"The archive has {size:,} bytes in {len(entries):,} files; hpcbert reads at most "
            f"{MOST_BYTES:,} bytes in {MOST_FILES:,} files.",
            where=str(path),
            hint="If you trust it, unpack it yourself and name the campaign's directory.",
        )


def _fault(zip_info: zipfile.ZipInfo, taken: set[str]) -> str:
    """Return what is wrong with an entry, as a clause; empty if nothing is."""
    plain = zip_info.filename[:-1] if zip_info.is_dir() else zip_info.filename
    kind = stat.S_IFMT(zip_info.external_attr >> 16)
    outside = any(part in {"", ".", ".."} for part in plain.split("/"))
    known = {0, stat.S_IFDIR if zip_info.is_dir() else stat.S_IFREG}
    faults = {
        "leads outside the archive's own folder": outside or "\\" in plain,
        "has a name that is not printable, or too long": len(plain) > LONGEST
        or not plain.isprintable()
        or zip_info.orig_filename != zip_info.filename,
        "appears twice": plain in taken,
        "is a link": kind == stat.S_IFLNK,
        "is a device, a pipe or a socket": kind not in {*known, stat.S_IFLNK},
        "is encrypted": bool(zip_info.flag_bits & _ENCRYPTED),
        "is compressed by another method than deflate": zip_info.compress_type not in _METHODS,
        "is a folder with content": zip_info.is_dir() and zip_info.file_size > 0,
    }
    return next((why for why, fault in faults.items() if fault), "")
