"""A campaign as one file: what numbers come from, packed so that equal campaigns give equal bytes.

One ZIP file with one folder, the campaign's id. It holds the files that evidence is recorded of,
the measurements, and archive.json: digests of all files, and which of them were changed because
they held what looks like a secret. Readers unpack it into a directory that they remove afterwards.

An archive may come from anybody. It is read in bounded time, memory and space, and only if it is
plain. The checks cover the end record and the directory (APPNOTE.TXT 6.3.10, sections 4.3.12 and
4.3.16), before `zipfile` reads the directory into memory; then every entry, before one is unpacked.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from hpcbert.campaign import evidence, store
from hpcbert.campaign.attempts import ENDS
from hpcbert.campaign.evidence import INDEX, read_masks
from hpcbert.config import campaignfile
from hpcbert.errors import CheckError, ConfigError, UsageError
from hpcbert.model import MANIFEST
from hpcbert.system import redact
from hpcbert.system.decode import MAX_INTEGER, IgnoreUnknown, Range, decode
from hpcbert.system.files import hash_file, open_file, size_of, temporary_for, translate_errors
from hpcbert.system.workers import track

# --- Untrusted ZIP files, read in bounded time, memory and space, and only if they are plain ------

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
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
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
                _check_zip_entries(archive.infolist(), path)
                yield archive
        except _BROKEN as error:
            raise UsageError(
                "The archive is damaged or cut short.",
                where=str(path),
                hint=f"Copy it again from its source ({error}).",
            ) from error


def _check_end_record(file: BinaryIO, size: int, path: Path) -> None:
    """Refuse a file that is not an archive, or is too large for memory."""
    file.seek(max(0, size - _END.size - _COMMENT - _WIDE))
    tail = file.read()
    offset = tail.rfind(_END_MARK)
    if offset < 0 or len(tail) - offset < _END.size:
        text = "The file is not a ZIP file, or was cut short."
        raise UsageError(text, where=str(path))
    _, count, directory_size = _END.unpack_from(tail, offset)
    is_zip64 = tail[max(0, offset - _WIDE) : offset].startswith(_WIDE_MARK)
    if is_zip64 or count > MAX_FILES or directory_size > _MAX_DIRECTORY:
        text = f"The archive has too many files: hpcbert reads at most {MAX_FILES:,}."
        raise UsageError(text, where=str(path))


def _check_zip_entries(entries: Sequence[zipfile.ZipInfo], path: Path) -> None:
    names: set[str] = set()
    for entry in entries:
        if entry.filename in names or not _is_plain(entry):
            name = entry.filename.encode("ascii", "backslashreplace").decode()[:MAX_NAME_LENGTH]
            raise UsageError(
                f"The archive's entry {name!r} is not a plain file with a path of its own, as "
                "hpcbert packs it.",
                where=str(path),
            )
        names.add(entry.filename)
    size = sum(entry.file_size for entry in entries)
    if size > MAX_TOTAL_BYTES:
        raise UsageError(
            f"The archive has {size:,} bytes; hpcbert reads at most {MAX_TOTAL_BYTES:,}.",
            where=str(path),
            hint="If you trust it, unpack it yourself and name the campaign's directory.",
        )


def _is_plain(entry: zipfile.ZipInfo) -> bool:
    name, parts = entry.filename, entry.filename.removesuffix("/").split("/")
    kind = stat.S_IFDIR if entry.is_dir() else stat.S_IFREG
    return (
        not {"", ".", ".."} & {*parts}
        and "\\" not in name
        and name.isprintable()
        and len(name) <= MAX_NAME_LENGTH
        and stat.S_IFMT(entry.external_attr >> 16) in {0, kind}
        and not entry.flag_bits & _ENCRYPTED
        and entry.compress_type in _METHODS
    )


# --- A campaign as an archive --------------------------------------------------------------------

SCHEMA = 1
_MOST_INDEX = 1 << 24
_MOST_DOCUMENT = 1 << 26
# Bytes to search for secrets at once, up to the end of a line; a private key that begins in the
# last few of them is left to the next piece.
_PIECE = 1 << 22
_LONGEST_KEY = 1 << 16
# Files that hold the digests and the seal of the rest: changed, they would be worthless.
_UNTOUCHED = (MANIFEST, evidence.MEASUREMENTS)
# Files that go with a campaign, but have no part in its numbers.
_EXTRAS = (evidence.MEASUREMENTS, ENDS, store.NOTE, campaignfile.NAME)
# The earliest time that a ZIP file can hold: the time of packing must not change the bytes.
_EARLIEST_TIME = (1980, 1, 1, 0, 0, 0)
_MODE = (stat.S_IFREG | 0o600) << 16


@dataclass(frozen=True)
class _PackedFile(IgnoreUnknown):
    """A file as it is packed, or was before; `changed` is in nanoseconds since the epoch."""

    bytes: int
    sha256: str
    changed: Annotated[int, Range(0, MAX_INTEGER)] = 0


@dataclass(frozen=True)
class _Index(IgnoreUnknown):
    """What archive.json says about the files by path, and about the masked ones before that."""

    schema: int
    campaign: str = ""
    files: Mapping[str, _PackedFile] = field(default_factory=dict)
    masked: Mapping[str, _PackedFile] = field(default_factory=dict)


@dataclass(frozen=True)
class PackedArchive:
    """The result of packing: the archive, its size in bytes, and the files with masked secrets."""

    path: Path
    size: int
    sha256: str
    files: int
    masked: tuple[str, ...]


def pack(directory: Path, target: Path) -> PackedArchive:
    """Write a campaign into one new file.

    Raises:
        UsageError: A file of the campaign is a link or too large, or the target exists.
        CheckError: A file that can't be changed without losing its digests holds a secret.
    """
    if os.path.lexists(target):
        raise UsageError(
            "The file exists already and is not overwritten.",
            where=str(target),
            hint="Remove it, or name another file with --output.",
        )
    campaign = store.read_manifest(directory)
    temporary = temporary_for(target)
    with translate_errors("write", target):
        try:
            with temporary.open("xb") as file:
                index = _write_archive(file, directory, campaign.id)
                file.flush()
                os.fsync(file.fileno())
            size, sha256 = hash_file(temporary)
            target.open("x").close()  # A file that appeared meanwhile is never replaced.
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    return PackedArchive(target, size, sha256, len(index["files"]), tuple(index["masked"]))


def pack_logs(target: Path, logs: Mapping[str, Path]) -> tuple[str, ...]:
    """Write logs into one new file, the same bytes for the same logs; return those with secrets.

    Raises:
        UsageError: One of them is a link, or they are too large.
    """
    masked = []
    _refuse_large(logs.values(), target)
    with (
        translate_errors("write", target),
        zipfile.ZipFile(target, "x", zipfile.ZIP_DEFLATED) as archive,
    ):
        for entry, path in track(sorted(logs.items()), "packing logs"):
            packed, original = _add_file(archive, path.parent, path.name, entry)
            if original["sha256"] != packed["sha256"]:
                masked.append(entry)
    return tuple(masked)


def _write_archive(file: BinaryIO, directory: Path, identity: str) -> dict[str, Any]:
    index: dict[str, Any] = {"schema": SCHEMA, "campaign": identity, "files": {}, "masked": {}}
    earlier_masks = read_masks(directory)
    extras = (name for name in _EXTRAS if os.path.lexists(directory / name))
    names = sorted({*evidence.list_paths(directory), *extras})
    _refuse_large([directory / name for name in names], directory)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, allowZip64=False) as archive:
        for name in track(names, "packing files"):
            entry, original = _add_file(archive, directory, name, f"{identity}/{name}")
            index["files"][name] = entry
            if original["sha256"] != entry["sha256"]:
                index["masked"][name] = original
            elif name in earlier_masks and earlier_masks[name][1] == original:
                index["masked"][name] = earlier_masks[name][0]
        text = json.dumps(index, indent=1, sort_keys=True) + "\n"
        archive.writestr(_make_entry(f"{identity}/{INDEX}"), text)
    return index


def _make_entry(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _EARLIEST_TIME)
    info.external_attr, info.create_system = _MODE, 3  # Unix, on every system
    info.compress_type = zipfile.ZIP_DEFLATED
    return info


def _add_file(
    archive: zipfile.ZipFile, directory: Path, name: str, entry: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Add a file; return its description as packed, and as it was."""
    path = directory / name
    if not name.isprintable() or "\\" in name or len(entry) > MAX_NAME_LENGTH:
        raise UsageError("A file name like this can't be archived.", where=repr(str(path)))
    with translate_errors(
        "archive", path, hint="Nothing was written. Put a plain file in its place."
    ):
        descriptor, _ = open_file(path, follow=False)
    original_hash, packed_hash = hashlib.sha256(), hashlib.sha256()
    size = packed = 0
    with os.fdopen(descriptor, "rb") as file, archive.open(_make_entry(entry), "w") as target:
        modified = max(0, os.fstat(file.fileno()).st_mtime_ns)
        for piece in _read_pieces(file, at_once=name.endswith(".json")):
            masked = _mask(name, piece)
            if masked != piece and name in _UNTOUCHED:
                raise CheckError(
                    "The file holds what looks like a secret. hpcbert can't mask it here, because "
                    "its digest is on record.",
                    where=str(path),
                    hint="Nothing was written.",
                )
            original_hash.update(piece)
            packed_hash.update(masked)
            size, packed = size + len(piece), packed + len(masked)
            target.write(masked)
    original = {"bytes": size, "sha256": original_hash.hexdigest()}
    return {"bytes": packed, "sha256": packed_hash.hexdigest(), "changed": modified}, original


def _refuse_large(paths: Collection[Path], where: Path) -> None:
    """Refuse files that are too many or too large for an archive that can be read."""
    size = sum(map(size_of, paths))
    if len(paths) >= MAX_FILES or size > MAX_TOTAL_BYTES - _MOST_INDEX:
        raise UsageError(
            f"There are {size:,} bytes in {len(paths):,} files, which is too much for an archive.",
            where=str(where),
            hint="Nothing was written. Pack the directory with another program.",
        )


def _read_pieces(file: BinaryIO, *, at_once: bool) -> Iterator[bytes]:
    """Yield a file's content in pieces of lines that no secret spans; a document at once."""
    piece = file.read(_MOST_DOCUMENT) if at_once else b""
    while block := file.read(_PIECE):
        # To the line's end; a line that is longer is cut anywhere.
        piece += block + file.readline(_PIECE)
        # A private key that begins in the last lines may go on.
        key_start = piece.rfind(b"-----BEGIN ", max(0, len(piece) - _LONGEST_KEY))
        end = key_start if key_start > 0 else len(piece)
        yield piece[:end]
        piece = piece[end:]
    yield piece


def _mask(name: str, content: bytes) -> bytes:
    if name.endswith(".json"):
        return _mask_json(content)
    if name.endswith(".jsonl"):
        return b"".join(map(_mask_json, content.splitlines(keepends=True)))
    if name.endswith(".gz"):
        return content  # samples of the GPUs
    text = content.decode("utf-8", "surrogateescape")
    program = name == store.RECIPE or name.startswith("scripts/")
    return redact.mask_text(text, is_program=program).encode("utf-8", "surrogateescape")


def _mask_json(content: bytes) -> bytes:
    """Return a JSON document with its texts' secrets masked; mask a damaged one as plain text."""
    try:
        data = json.loads(content)
        masked = _mask_values(data)
    except (ValueError, RecursionError):
        return redact.mask_text(content.decode("latin-1")).encode("latin-1")
    if masked == data:
        return content
    return json.dumps(masked, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def _mask_values(data: Any, name: str = "") -> Any:
    if isinstance(data, dict):
        return {key: _mask_values(value, key) for key, value in data.items()}
    if isinstance(data, list):
        return [_mask_values(item) for item in data]
    return _mask_value(data, name) if isinstance(data, str) else data


# A thousand nodes are named in every run.
@lru_cache(maxsize=1 << 14)
def _mask_value(text: str, name: str) -> str:
    secret = redact.is_secret_name(name) and not redact.is_measure(name, text)
    return redact.MASK if text and secret else redact.mask_text(text)


@contextlib.contextmanager
def open_archive(path: Path) -> Iterator[Path]:
    """Unpack an archive into a temporary directory, which is removed afterwards.

    Raises:
        UsageError: It is not an archive of a campaign, damaged, hostile, or of a newer version.
        HpcbertError: There is no room for it.
    """
    with tempfile.TemporaryDirectory(prefix="hpcbert-") as folder:
        yield _unpack(path, Path(folder))


def _unpack(path: Path, folder: Path) -> Path:
    with open_zip(path) as archive:
        index = _read_index(archive, path)
        directory, packed_files = folder / index.campaign, dict(index.files)
        for info in archive.infolist():
            name = info.filename.removeprefix(f"{index.campaign}/")
            if info.is_dir() or name == INDEX:
                continue
            packed_file = packed_files.pop(name, None)
            if packed_file is None or not (name in _EXTRAS or evidence.is_evidence(name)):
                text = f"The archive has a file that does not belong there: {name!r}."
                raise UsageError(text, where=str(path))
            _unpack_file(archive, info, directory / name, packed_file, f"{path}: {name}")
    for name in packed_files:
        raise _change_error(f"{path}: {name}")
    store.write_json(directory / INDEX, asdict(index))
    if store.read_manifest(directory).id != index.campaign:
        raise UsageError("The archive's manifest belongs to another campaign.", where=str(path))
    return directory


def _read_index(archive: zipfile.ZipFile, path: Path) -> _Index:
    """Return archive.json's contents; the campaign's id is the archive's one folder."""
    error = UsageError(
        "This ZIP file is not an archive of a campaign.",
        where=str(path),
        hint="hpcbert archive makes archives. To read logs, unpack them first.",
    )
    folders = {info.filename.partition("/")[0] for info in archive.infolist()}
    indexes = [info for info in archive.infolist() if info.filename.endswith(f"/{INDEX}")]
    if len(folders) != 1 or len(indexes) != 1 or indexes[0].file_size > _MOST_INDEX:
        raise error
    try:
        index: _Index = decode(_Index, json.loads(archive.read(indexes[0])), file=str(path))
    except (ConfigError, ValueError, RecursionError):
        raise error from None
    if index.schema != SCHEMA:
        raise UsageError(
            f"The archive has schema {index.schema}; this hpcbert reads {SCHEMA}.",
            where=str(path),
            hint="Use the version of hpcbert that packed it, or a newer one.",
        )
    if {index.campaign} != folders or MANIFEST not in index.files:
        raise error
    return index


def _unpack_file(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, target: Path, packed: _PackedFile, where: str
) -> None:
    """Write an entry to a new file with its time; refuse one that is not what was packed."""
    digest = hashlib.sha256()
    with translate_errors("unpack to", target):
        target.parent.mkdir(parents=True, exist_ok=True)
        # zipfile stops at the declared size, and compares the checksum there.
        with target.open("xb") as file, archive.open(info) as source:
            while block := source.read(_BLOCK):
                digest.update(block)
                file.write(block)
        os.utime(target, ns=(packed.changed, packed.changed))
    if digest.hexdigest() != packed.sha256:
        raise _change_error(where)


def _change_error(where: str) -> UsageError:
    return UsageError(
        "The file differs from what was packed.",
        where=where,
        hint="Copy the archive again from its source.",
    )
