"""Read the first record of a training file, in every format that a recipe may name.

Each reader returns one line about its finding, and raises ValueError with a sentence if the file is
invalid. Nothing here needs the framework that wrote the file.
"""

from __future__ import annotations

import gzip
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from hpcbert.data import protobuf

Reader = Callable[[Path], tuple[str, set[str] | None]]


# Characters of a line of text at most.
_LONGEST_LINE = 1 << 26
_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_NUMPY_MAGIC = b"\x93NUMPY"
# NVIDIA/Megatron-LM@3860e99, megatron/data/indexed_dataset.py, MMapIndexedDataset.Index.
_MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
_PADDLE_FIELDS = 4


def read_first_record(path: Path, form: str, keys: Sequence[str] = ()) -> str:
    """Read a file's first record.

    Args:
        path: The file.
        form: One of `RECORD_READERS`.
        keys: Names that the record must have.

    Returns:
        The finding, for a person.

    Raises:
        ValueError: The file does not hold such a record.
        OSError: It can't be read.
    """
    description, names = RECORD_READERS[form](path)
    missing = [key for key in keys if key not in names] if names is not None else []
    if missing:
        raise ValueError(f"its first record has no {', '.join(missing)}")
    return description


def _protobuf_reader(dialect: protobuf.Dialect, name: str) -> Reader:
    def read(path: Path) -> tuple[str, set[str] | None]:
        with path.open("rb") as file:
            data = next(protobuf.read_records(file, dialect), b"")
        names = set(protobuf.read_features(data, dialect))
        if not names:
            raise ValueError(f"its first {name} has no features")
        checksum_note = "CRC32C right, " if dialect.checked else ""
        return f"{name} of {len(data)} bytes, {checksum_note}{_join_names(names)}", names

    return read


def _read_hdf5(path: Path) -> tuple[str, set[str] | None]:
    """The signature, and with h5py the names and a first row (HDF5 format, version 3, II.A)."""
    with path.open("rb") as file:
        starts = (0, *(512 << power for power in range(12)))
        if not any(file.seek(start) == start and file.read(8) == _HDF5_MAGIC for start in starts):
            raise ValueError("the file has no HDF5 signature")
    try:
        import h5py  # an extra: on a login node it may be missing
    except ImportError:
        return "HDF5 signature; reading its names needs h5py", None
    try:
        with h5py.File(path, "r") as hdf5_file:
            rows = {
                name: len(column)
                for name, column in hdf5_file.items()
                if getattr(column, "shape", ())
            }
            for name in rows:
                hdf5_file[name][0]
    except (OSError, RuntimeError, LookupError, TypeError) as error:
        raise ValueError(f"HDF5 can't read it: {error}") from error
    if not rows:
        raise ValueError("the HDF5 file has no rows")
    return f"HDF5, {max(rows.values())} rows, {_join_names(set(rows))}", set(rows)


def _read_npz(path: Path) -> tuple[str, set[str] | None]:
    """A zip file of arrays (numpy/numpy, numpy/lib/format.py)."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.namelist()
            for member in members:
                with archive.open(member) as file:
                    if file.read(6) != _NUMPY_MAGIC:
                        raise ValueError(f"its member {member} is not an array")
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise ValueError(f"the file is not an npz file: {error}") from error
    names = {member.removesuffix(".npy") for member in members}
    if not names:
        raise ValueError("the npz file has no arrays")
    return f"npz, {_join_names(names)}", names


def _read_paddle_text(path: Path) -> tuple[str, set[str] | None]:
    """A line of fields separated by semicolons (PaddlePaddle/models@b71cf63, BERT/reader)."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            line = file.readline(_LONGEST_LINE)
    except (gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"the file is not compressed text: {error}") from error
    fields = line.rstrip("\n").split(";")
    if len(fields) != _PADDLE_FIELDS:
        raise ValueError(f"its first line has {len(fields)} fields, not {_PADDLE_FIELDS}")
    return (
        f"{_PADDLE_FIELDS} fields a line, {len(fields[0].split())} tokens in the first sample",
        None,
    )


def _read_megatron(path: Path) -> tuple[str, set[str] | None]:
    with path.open("rb") as file:
        head = file.read(34)
    if not head.startswith(_MEGATRON_MAGIC) or len(head) < 34:  # noqa: PLR2004
        raise ValueError("the file is not the index of a memory-mapped data set")
    version, _, sentences, documents = struct.unpack("<QBQQ", head[9:])
    if version != 1:
        raise ValueError(f"its version is {version}, not 1")
    return f"index of {sentences} sentences in {max(documents - 1, 0)} documents", None


RECORD_READERS: dict[str, Reader] = {
    "tfrecord": _protobuf_reader(protobuf.TENSORFLOW, "TFRecord"),
    "hdf5": _read_hdf5,
    "npz": _read_npz,
    "ofrecord": _protobuf_reader(protobuf.ONEFLOW, "OFRecord"),
    "paddle-text": _read_paddle_text,
    "megatron": _read_megatron,
}


def _join_names(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "no names"
