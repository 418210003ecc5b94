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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from hpcbert.errors import UsageError
from hpcbert.system.files import open_file, translate_errors

# Limits of one archive: files, bytes of its directory, bytes of all unpacked files, letters of a
# name.
MAX_FILES = 50_000
MAX_TOTAL_BYTES = 1 << 31
MAX_NAME_LENGTH = 1000
_MAX_DIRECTORY = 1 << 23
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
def open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive in which every entry is a plain file with its own path.

    Raises:
        UsageError: It is not an archive, it is damaged, or an entry is not a plain file; also while
            the archive is read.
    """
    with translate_errors("read the archive", path, hint=""):
        descriptor, size = open_file(path)
    with os.fdopen(descriptor, "rb") as file:
        _check_end_record(file, size, path)
        try:
            with zipfile.ZipFile(file) as archive:
                _check_entries(archive.infolist(), path)
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
    with translate_errors("unpack to", target):
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file, archive.open(info) as source:
        # zipfile stops at the declared size, and compares the checksum there.
        while block := source.read(_BLOCK):
            with translate_errors("unpack to", target):
                file.write(block)
        if file.tell() != info.file_size:
            raise zipfile.BadZipFile(f"{info.filename!r} is shorter than it declares")


def _check_end_record(file: BinaryIO, size: int, path: Path) -> None:
    """Refuse a file that is not an archive, or is too large for memory.

    Raises:
        UsageError: It is.
    """
    file.seek(max(0, size - _END.size - _COMMENT - _WIDE))
    tail = file.read()
    offset = tail.rfind(_END_MARK)
    if offset < 0 or len(tail) - offset < _END.size:
        is_truncated = tail and size >= len(_END_MARK) and _begins_with_entry(file)
        message = "The ZIP file was cut short." if is_truncated else "The file is not a ZIP file."
        raise UsageError(message, where=str(path))
    _, count, directory_size = _END.unpack_from(tail, offset)
    is_zip64 = tail[max(0, offset - _WIDE) : offset].startswith(_WIDE_MARK)
    if is_zip64 or count > MAX_FILES or directory_size > _MAX_DIRECTORY:
        raise UsageError(
            f"The archive has too many files: hpcbert reads at most {MAX_FILES:,}.",
            where=str(path),
        )


def _begins_with_entry(file: BinaryIO) -> bool:
    file.seek(0)
    return file.read(4) == b"PK\x03\x04"


def _check_entries(entries: Sequence[zipfile.ZipInfo], path: Path) -> None:
    """Refuse entries that are not plain files below the archive's own folder.

    Raises:
        UsageError: One is.
    """
    names: set[str] = set()
    for entry in entries:
        if fault := _describe_fault(entry, names):
            shown_name = entry.filename.encode("ascii", "backslashreplace").decode()[
                :MAX_NAME_LENGTH
            ]
            raise UsageError(f"The archive's entry {shown_name!r} {fault}.", where=str(path))
        names.add(entry.filename.rstrip("/"))
    folders = {
        name[:position] for name in names for position, letter in enumerate(name) if letter == "/"
    }
    files = {entry.filename for entry in entries if not entry.is_dir()}
    if conflicts := sorted(folders & files):
        message = f"The archive's entry {conflicts[0]!r} is a file and a folder."
        raise UsageError(message, where=str(path))
    size = sum(entry.file_size for entry in entries)
    if len(entries) > MAX_FILES or size > MAX_TOTAL_BYTES:
        raise UsageError(
            f"The archive has {size:,} bytes in {len(entries):,} files; hpcbert reads at most "
            f"{MAX_TOTAL_BYTES:,} bytes in {MAX_FILES:,} files.",
            where=str(path),
            hint="If you trust it, unpack it yourself and name the campaign's directory.",
        )


def _describe_fault(entry: zipfile.ZipInfo, earlier_names: set[str]) -> str:
    """Return the first fault of an entry, as a clause; empty if there is none."""
    name = entry.filename[:-1] if entry.is_dir() else entry.filename
    kind = stat.S_IFMT(entry.external_attr >> 16)
    leads_outside = any(part in {"", ".", ".."} for part in name.split("/"))
    allowed_kinds = {0, stat.S_IFDIR if entry.is_dir() else stat.S_IFREG}
    faults = {
        "leads outside the archive's own folder": leads_outside or "\\" in name,
        "has a name that is not printable, or too long": len(name) > MAX_NAME_LENGTH
        or not name.isprintable()
        or entry.orig_filename != entry.filename,
        "appears twice": name in earlier_names,
        "is a link": kind == stat.S_IFLNK,
        "is a device, a pipe or a socket": kind not in {*allowed_kinds, stat.S_IFLNK},
        "is encrypted": bool(entry.flag_bits & _ENCRYPTED),
        "is compressed by another method than deflate": entry.compress_type not in _METHODS,
        "is a folder with content": entry.is_dir() and entry.file_size > 0,
    }
    return next((clause for clause, is_faulty in faults.items() if is_faulty), "")
