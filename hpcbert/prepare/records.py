"""Reading the first record of a training file, in every format that a recipe may name.

Each reader returns one line about what it found and raises ValueError with a sentence where the
file is not what it should be. Nothing here needs the framework that wrote the file.
"""

from __future__ import annotations

import gzip
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

# A sample of BERT is a few kilobytes; a length beyond this is no length.
_LONGEST = 1 << 26
_HDF5 = b"\x89HDF\r\n\x1a\n"
_NUMPY = b"\x93NUMPY"
# NVIDIA/Megatron-LM@3860e99, megatron/data/indexed_dataset.py, MMapIndexedDataset.Index.
_MEGATRON = b"MMIDIDX\x00\x00"
_FIELDS = 4


def first(path: Path, form: str, keys: Sequence[str] = ()) -> str:
    """Read a file's first record.

    Args:
        path: The file.
        form: One of `FORMATS`.
        keys: Names that the record must have.

    Returns:
        What was found, for a person.

    Raises:
        ValueError: The file does not hold such a record.
        OSError: It can't be read.
    """
    found, names = FORMATS[form](path)
    missing = [key for key in keys if key not in names] if names is not None else []
    if missing:
        raise ValueError(f"its first record has no {', '.join(missing)}")
    return found


def _tfrecord(path: Path) -> tuple[str, set[str] | None]:
    """Length, its CRC, data, their CRC (tensorflow/tensorflow, core/lib/io/record_writer.cc)."""
    with path.open("rb") as file:
        head = file.read(12)
        if len(head) < 12:  # noqa: PLR2004
            raise ValueError("it is shorter than one TFRecord")
        length, check = struct.unpack("<QI", head)
        if masked_crc32c(head[:8]) != check or length > _LONGEST:
            raise ValueError("it does not begin with a TFRecord: the length's checksum is wrong")
        data = file.read(length + 4)
    if len(data) < length + 4:
        raise ValueError("its first TFRecord is cut off")
    if masked_crc32c(data[:length]) != struct.unpack("<I", data[length:])[0]:
        raise ValueError("its first TFRecord is damaged: the data's checksum is wrong")
    names = _features(data[:length], depth=2)
    return f"TFRecord of {length} bytes, CRC32C right, {_named(names)}", names


def _ofrecord(path: Path) -> tuple[str, set[str] | None]:
    """Length and data (Oneflow-Inc/oneflow, oneflow/core/record/ofrecord_reader.cpp)."""
    with path.open("rb") as file:
        head = file.read(8)
        length = struct.unpack("<q", head)[0] if len(head) == 8 else -1  # noqa: PLR2004
        if not 0 < length <= _LONGEST:
            raise ValueError("it does not begin with an OFRecord's length")
        data = file.read(length)
    if len(data) < length:
        raise ValueError("its first OFRecord is cut off")
    names = _features(data, depth=1)
    if not names:
        raise ValueError("its first OFRecord has no features")
    return f"OFRecord of {length} bytes, {_named(names)}", names


def _hdf5(path: Path) -> tuple[str, set[str] | None]:
    """The signature, and with h5py the names and a first row (HDF5 format, version 3, II.A)."""
    with path.open("rb") as file:
        starts = (0, *(512 << power for power in range(12)))
        if not any(_at(file.seek(start), file.read(8)) for start in starts):
            raise ValueError("it has no HDF5 signature")
    try:
        import h5py  # an extra: on a login node it may be missing
    except ImportError:
        return "HDF5 signature; without h5py its names can't be read", None
    try:
        with h5py.File(path, "r") as opened:
            rows = {name: len(one) for name, one in opened.items() if getattr(one, "shape", ())}
            for name in rows:
                opened[name][0]
    except (OSError, RuntimeError, LookupError, TypeError) as error:
        raise ValueError(f"HDF5 can't read it: {error}") from error
    if not rows:
        raise ValueError("it is an HDF5 file without a row")
    return f"HDF5, {max(rows.values())} rows, {_named(set(rows))}", set(rows)


def _at(_: int, read: bytes) -> bool:
    return read == _HDF5


def _npz(path: Path) -> tuple[str, set[str] | None]:
    """A zip file of arrays (numpy/numpy, numpy/lib/format.py)."""
    try:
        with zipfile.ZipFile(path) as opened:
            members = opened.namelist()
            for member in members:
                with opened.open(member) as file:
                    if file.read(6) != _NUMPY:
                        raise ValueError(f"its member {member} is no array")
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise ValueError(f"it is no npz file: {error}") from error
    names = {member.removesuffix(".npy") for member in members}
    if not names:
        raise ValueError("it is an npz file without arrays")
    return f"npz, {_named(names)}", names


def _gzip_text(path: Path) -> tuple[str, set[str] | None]:
    """A line of fields parted by semicolons (PaddlePaddle/models@b71cf63, BERT/reader)."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            line = file.readline(_LONGEST)
    except (gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"it is no compressed text: {error}") from error
    fields = line.rstrip("\n").split(";")
    if len(fields) != _FIELDS:
        raise ValueError(f"its first line has {len(fields)} fields, not {_FIELDS}")
    return f"{_FIELDS} fields a line, {len(fields[0].split())} tokens in the first sample", None


def _megatron(path: Path) -> tuple[str, set[str] | None]:
    with path.open("rb") as file:
        head = file.read(34)
    if not head.startswith(_MEGATRON) or len(head) < 34:  # noqa: PLR2004
        raise ValueError("it is no index of a memory-mapped data set")
    version, _, sentences, documents = struct.unpack("<QBQQ", head[9:])
    if version != 1:
        raise ValueError(f"its version is {version}, not 1")
    return f"index of {sentences} sentences in {max(documents - 1, 0)} documents", None


FORMATS: dict[str, Callable[[Path], tuple[str, set[str] | None]]] = {
    "tfrecord": _tfrecord,
    "hdf5": _hdf5,
    "npz": _npz,
    "ofrecord": _ofrecord,
    "gzip-text": _gzip_text,
    "megatron": _megatron,
}


def _named(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "no names"


# --- Protocol buffers: names in map<string, Feature>, nothing more --------------------------------


def _features(data: bytes, *, depth: int) -> set[str]:
    """Return the keys of a map that is the first field of `depth - 1` nested messages.

    An Example holds Features, which hold the map; an OFRecord is the map.

    Raises:
        ValueError: The bytes are no such message.
    """
    names = set()
    for number, inner in _fields(data):
        if number == 1 and depth > 1:
            names |= _features(inner, depth=depth - 1)
        elif number == 1:
            names |= {key.decode("utf-8", "replace") for at, key in _fields(inner) if at == 1}
    return names


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of every length-delimited field."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 2:  # noqa: PLR2004 - length-delimited
            size, at = _varint(data, at)
            if at + size > len(data):
                raise ValueError("its first record is no protocol buffer")
            yield tag >> 3, data[at : at + size]
            at += size
        elif kind == 0:
            _, at = _varint(data, at)
        elif kind in {1, 5}:
            at += 8 if kind == 1 else 4
        else:
            raise ValueError("its first record is no protocol buffer")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:  # noqa: PLR2004 - bits
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:  # noqa: PLR2004 - the last one has no continuation bit
            return value, at
    raise ValueError("its first record is no protocol buffer")


# --- CRC-32C (Castagnoli), reflected; RFC 3720, appendix B.4 --------------------------------------


def _crc_table() -> tuple[int, ...]:
    entries = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        entries.append(value)
    return tuple(entries)


_CRC = _crc_table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of some bytes."""
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _CRC[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """Return it as TFRecord stores it (tensorflow/tensorflow, core/lib/hash/crc32c.h)."""
    value = crc32c(data)
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF
