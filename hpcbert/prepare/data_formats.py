"""The formats that frameworks read: a writer of whole files and a reader of one sample for each.

TensorFlow and OneFlow frame records of features, which are protocol buffers: a tf.train.Example
holds Features, which hold a map of names to Feature; an OFRecord is that map
(tensorflow/tensorflow@v2.3.0, core/example/feature.proto; Oneflow-Inc/oneflow@v0.3.0,
core/record/record.proto). Nothing here needs either of them.
"""

from __future__ import annotations

import functools
import gzip
import itertools
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcbert.errors import describe_error
from hpcbert.prepare.data_samples import Samples

Numbers = NDArray[np.integer] | NDArray[np.floating]
Stream = Iterable[Samples]
# Values by the names that a file has.
Sample = dict[str, Numbers]

# What readers raise about a damaged file, besides ValueError.
_DAMAGE_ERRORS = (
    *(AttributeError, EOFError, LookupError, OverflowError, RuntimeError, TypeError),
    *(struct.error, zipfile.BadZipFile, zlib.error),
)


class DataFormat(NamedTuple):
    """One format of training data.

    Attributes:
        token_bytes: The most bytes of a file that a token takes.
        most_files: The most files that a directory may have; 0 for any number.
        packages: What it needs besides numpy, by the names to import.
    """

    names: Callable[[int, int], tuple[str, ...]]
    write: Callable[[Sequence[Path], Stream], None]
    read: Callable[[Path, int], Sample]
    token_bytes: int
    most_files: int = 0
    packages: tuple[str, ...] = ()


def read_sample(path: Path, form: str, number: int) -> Sample:
    """Return one sample of a file, counted from 0, by the names that the file has.

    Raises:
        ValueError: The file is not of this format, is damaged, or has no such sample.
        OSError: It can't be read.
        ImportError: Its package is missing.
    """
    with _translate_damage(form):
        return FORMATS[form].read(path, number)


def read_names(path: Path, form: str) -> list[str]:
    """Return the names in a file's first sample; a pickle, as GluonNLP's arrays are, stays closed.

    Raises:
        ValueError, OSError, ImportError: As `read_sample`.
    """
    if form != "npz":
        return sorted(read_sample(path, form, 0))
    # Opened here, because numpy leaves a file open if it is not a zip file.
    with _translate_damage(form), path.open("rb") as file:
        return sorted(np.load(file, allow_pickle=False).files)


@contextmanager
def _translate_damage(form: str) -> Iterator[None]:
    try:
        yield
    except (*_DAMAGE_ERRORS, OSError) as error:
        # Without a text of the system it is a library's, about the content.
        if isinstance(error, OSError) and error.strerror:
            raise
        raise ValueError(f"it can't be read as {form}: {describe_error(error)}") from error


# --- TFRecord and OFRecord ------------------------------------------------------------------------

# A sample of BERT is a few kilobytes; a length beyond this is damage.
_LONGEST = 1 << 26
_CONTINUATION = 0x80
_VARINT, _EIGHT_BYTES, _TEXT, _FOUR_BYTES = 0, 1, 2, 5
_FLOATS = 2  # the field number of a Feature's list of floats
_INT64_OF_ONEFLOW = 5


class Dialect(NamedTuple):
    """How one framework writes a record of features.

    Attributes:
        depth: How many messages lie around the map of features.
        integers: The field number of a Feature's list of integers.
        checked: Whether a record is framed by CRC-32C.
    """

    depth: int
    integers: int
    checked: bool


TENSORFLOW = Dialect(depth=2, integers=3, checked=True)
# record.proto: int32_list is 4, int64_list is 5.
ONEFLOW = Dialect(depth=1, integers=4, checked=False)


@functools.lru_cache(1 << 16)
def _encode_varint(value: int) -> bytes:
    """Return a non-negative integer, seven bits a byte, the lowest first."""
    encoded = bytearray()
    while value >= _CONTINUATION:
        encoded.append(value & 0x7F | _CONTINUATION)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _encode_field(number: int, content: bytes) -> bytes:
    return _encode_varint(number << 3 | _TEXT) + _encode_varint(len(content)) + content


def encode_record(values: Mapping[str, Numbers], dialect: Dialect) -> bytes:
    """Return one record; integers are not negative, int8 holds only 0 and 1."""
    data = b""
    for name, column in values.items():
        number = dialect.integers
        if column.dtype.kind == "f":
            number, packed = _FLOATS, column.astype("<f4").tobytes()
        elif column.dtype == "i1":
            packed = column.tobytes()  # 0 and 1 are their own varints
        else:
            packed = b"".join([_encode_varint(value) for value in column.tolist()])
        feature = _encode_field(number, _encode_field(1, packed))
        data += _encode_field(1, _encode_field(1, name.encode()) + _encode_field(2, feature))
    for _ in range(dialect.depth - 1):
        data = _encode_field(1, data)
    return data


def decode_record(data: bytes, dialect: Dialect) -> Sample:
    """Return the features of one record.

    Raises:
        ValueError: The bytes are not such a record.
    """
    for _ in range(dialect.depth - 1):
        data = b"".join(content for number, content in _read_fields(data) if number == 1)
    features: Sample = {}
    for number, entry in _read_fields(data):
        if number == 1:
            entry_fields = dict(_read_fields(entry))
            name = entry_fields.get(1, b"").decode("utf-8", "replace")
            features[name] = _decode_numbers(entry_fields.get(2, b""), dialect)
    return features


def _decode_numbers(feature: bytes, dialect: Dialect) -> Numbers:
    values: list[int] = []
    for number, inner in _read_fields(feature):
        content = b"".join(
            piece for inner_number, piece in _read_fields(inner) if inner_number == 1
        )
        if number == _FLOATS:
            return np.frombuffer(content, dtype="<f4")
        if number not in {dialect.integers, _INT64_OF_ONEFLOW}:
            return np.frombuffer(content, dtype="u1")  # text
        position = 0
        while position < len(content):
            value, position = _read_varint(content, position)
            values.append(value)
    return np.array(values, dtype=np.uint64).astype(np.int64)


def _read_fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of every field; a lone integer as its own varint."""
    position = 0
    while position < len(data):
        tag, position = _read_varint(data, position)
        begin, kind = position, tag & 7
        if kind == _TEXT:
            size, begin = _read_varint(data, position)
            position = begin + size
        elif kind == _VARINT:
            _, position = _read_varint(data, position)
        elif kind in {_EIGHT_BYTES, _FOUR_BYTES}:
            position += 8 if kind == _EIGHT_BYTES else 4
        else:
            raise ValueError("it is not a protocol buffer")
        if position > len(data):
            raise ValueError("it is not a protocol buffer")
        yield tag >> 3, data[begin:position]


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data) and shift < 64:  # noqa: PLR2004 - bits
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < _CONTINUATION:
            return value, position
    raise ValueError("it is not a protocol buffer")


def _write_records(paths: Sequence[Path], stream: Stream, *, dialect: Dialect) -> None:
    """Write samples as google-research/bert@eedf571, create_pretraining_data.py, names them."""
    with paths[0].open("wb") as file:
        for block in stream:
            fields = {**block._asdict(), "masked_lm_weights": block.masked_lm_weights}
            fields["next_sentence_labels"] = block.next_sentence_labels[:, None]
            for index in range(len(block.input_ids)):
                row = {name: values[index] for name, values in fields.items()}
                record = encode_record(row, dialect)
                length = struct.pack("<Q", len(record))
                if dialect.checked:
                    file.write(length + _masked_crc(length) + record + _masked_crc(record))
                else:
                    file.write(length + record)


def _read_record(path: Path, number: int, *, dialect: Dialect) -> Sample:
    with path.open("rb") as file:
        record = next(itertools.islice(_read_frames(file, dialect), number, None))
    features = decode_record(record, dialect)
    if not features:
        raise ValueError("a record has no features")
    return features


def _read_frames(file: BinaryIO, dialect: Dialect) -> Iterator[bytes]:
    extra = 4 if dialect.checked else 0
    while True:
        head = file.read(8 + extra)
        if len(head) < 8 + extra:
            raise ValueError("it has no such record")
        (length,) = struct.unpack("<Q", head[:8])
        if extra and _masked_crc(head[:8]) != head[8:]:
            raise ValueError("a length's checksum is wrong")
        data = file.read(min(length, _LONGEST) + extra)
        if length == 0 or len(data) < length + extra:
            raise ValueError("a record is cut off")
        if extra and _masked_crc(data[:length]) != data[length:]:
            raise ValueError("a record's checksum is wrong")
        yield data[:length]


def _masked_crc(data: bytes) -> bytes:
    """Return the masked CRC-32C of TFRecord (tensorflow, core/lib/hash/crc32c.h)."""
    try:
        from google_crc32c import value as checksum  # 200 times as fast
    except ImportError:  # enough for one record: `hpcbert prepare` needs no extra
        checksum = crc32c
    value = checksum(data)
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli, reflected) of some bytes; RFC 3720, appendix B.4."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


# --- HDF5 of NVIDIA (DeepLearningExamples@fd9fecd, PyTorch BERT, create_pretraining_data.py) ------


def _write_hdf5(paths: Sequence[Path], stream: Stream) -> None:
    import h5py

    samples = _join_blocks(stream)
    # No compression and no times: the bytes depend only on the samples.
    with h5py.File(paths[0], "w", libver="earliest", track_order=False) as file:
        for name, column in samples._asdict().items():
            file.create_dataset(name, data=column, track_times=False)


def _join_blocks(stream: Stream) -> Samples:
    return Samples(*map(np.concatenate, zip(*stream, strict=True)))


def _read_hdf5(path: Path, number: int) -> Sample:
    import h5py  # an extra: on a login node it may be missing

    with h5py.File(path, "r") as columns:
        rows = {name: column for name, column in columns.items() if getattr(column, "shape", ())}
        sample = {name: np.asarray(column[number]) for name, column in rows.items()}
    if not sample:
        raise ValueError("the HDF5 file has no rows")
    return sample


# --- npz of GluonNLP (dmlc/gluon-nlp@7b7bf60, scripts/bert/data/create_pretraining_data.py) -------


def _write_npz(paths: Sequence[Path], stream: Stream) -> None:
    samples = _join_blocks(stream)
    arrays: dict[str, Any] = {
        name: array.astype("<i4") for name, array in samples._asdict().items()
    }
    arrays["valid_lengths"] = arrays.pop("input_mask").sum(axis=1, dtype="<i4")
    np.savez(paths[0], **arrays, masked_lm_weights=samples.masked_lm_weights.astype("<f4"))


def _read_npz(path: Path, number: int) -> Sample:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        sample = {name: np.asarray(archive[name])[number] for name in archive.files}
    if not sample:
        raise ValueError("the npz file has no arrays")
    return sample


# --- Text of PaddlePaddle 1.8 (PaddlePaddle/models@b71cf63, BERT, reader/pretraining.py) ----------

_LONGEST_LINE = 1 << 26
_FIELDS = 4  # tokens, segments, positions, label


def _write_text(paths: Sequence[Path], stream: Stream) -> None:
    # Stored, because compressors differ between releases of zlib.
    with paths[0].open("wb") as raw, gzip.GzipFile("", "wb", 0, raw, mtime=0) as file:
        for block in stream:
            originals, lengths = block.originals, block.lengths
            for index, length in enumerate(lengths.tolist()):
                tokens = originals[index, :length].tolist()
                segments = block.segment_ids[index, :length].tolist()
                # Its label is 1 if the second sentence follows the first.
                fields = (tokens, segments, range(length))
                line = ";".join(" ".join(map(str, field)) for field in fields)
                file.write(f"{line};{1 - block.next_sentence_labels[index]}\n".encode())


def _read_text(path: Path, number: int) -> Sample:
    line = ""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for _ in range(number + 1):
            line = file.readline(_LONGEST_LINE)
    fields = line.rstrip("\n").split(";")
    if len(fields) != _FIELDS:
        raise ValueError(f"a line has {len(fields)} fields, not {_FIELDS}")
    tokens, segments, _, label = (np.array(field.split(), dtype=np.int64) for field in fields)
    return {"input_ids": tokens, "segment_ids": segments, "next_sentence_labels": 1 - label}


# --- Memory-mapped sentences of Megatron (NVIDIA/Megatron-LM@3860e99, data/indexed_dataset.py) ----

_MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
_HEAD = struct.Struct("<QBQQ")  # version, type, sentences, documents
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_INT32 = 4


def _write_megatron(paths: Sequence[Path], stream: Stream) -> None:
    """Write each sample as a document of two sentences; Megatron itself pairs and masks."""
    sizes = []
    with paths[0].open("wb") as file:
        for block in stream:
            originals, seconds = block.originals, block.segment_ids.argmax(axis=1)
            for index, length in enumerate(block.lengths.tolist()):
                row = originals[index]
                # Without [CLS] and the [SEP] that ends each sentence.
                for sentence in (row[1 : seconds[index] - 1], row[seconds[index] : length - 1]):
                    file.write(sentence.astype("<i4").tobytes())
                    sizes.append(len(sentence))
    lengths = np.array(sizes, dtype="<i4")
    pointers = np.concatenate([[0], np.cumsum(lengths[:-1], dtype=np.int64) * 4])
    documents = np.arange(0, len(sizes) + 1, 2, dtype="<i8")
    with paths[1].open("wb") as file:
        file.write(_MEGATRON_MAGIC + _HEAD.pack(1, _INT32, len(sizes), len(documents)))
        file.write(lengths.tobytes() + pointers.astype("<i8").tobytes() + documents.tobytes())


def _read_megatron(path: Path, number: int) -> Sample:
    """Read two sentences: `path` is the index or the data next to it."""
    index, start = path.with_suffix(".idx"), len(_MEGATRON_MAGIC) + _HEAD.size
    with index.open("rb") as file:
        head = file.read(start)
    if not head.startswith(_MEGATRON_MAGIC):
        raise ValueError(f"{index.name} is not an index of memory-mapped data")
    version, code, sentences, _ = _HEAD.unpack_from(head, len(_MEGATRON_MAGIC))
    if version != 1:
        raise ValueError(f"{index.name} has version {version}, not 1")
    if sentences < 2 * number + 2:
        raise ValueError(f"{index.name} has only {sentences} sentences")
    kind = np.dtype(_DTYPES[code])
    sizes = np.fromfile(index, "<i4", 2 * number + 2, offset=start).astype(np.int64)
    begin, first_size, second_size = int(sizes[:-2].sum()), int(sizes[-2]), int(sizes[-1])
    count = first_size + second_size
    tokens = np.fromfile(path.with_suffix(".bin"), kind, count, offset=begin * kind.itemsize)
    if len(tokens) < count:
        raise ValueError("its sentences are cut off")
    # With room for [CLS] and the [SEP] behind each sentence.
    ids = np.insert(tokens.astype(np.int64), [0, first_size, count], 0)
    segments = np.repeat([0, 1], [first_size + 2, second_size + 1])
    return {"input_ids": ids, "segment_ids": segments, "next_sentence_labels": np.array(0)}


FORMATS: dict[str, DataFormat] = {
    "tfrecord": DataFormat(
        lambda number, count: (f"training-{number:05d}-of-{count:05d}.tfrecord",),
        functools.partial(_write_records, dialect=TENSORFLOW),
        functools.partial(_read_record, dialect=TENSORFLOW),
        token_bytes=5,
        packages=("google_crc32c",),
    ),
    "ofrecord": DataFormat(
        lambda number, _: (f"part-{number}",),
        functools.partial(_write_records, dialect=ONEFLOW),
        functools.partial(_read_record, dialect=ONEFLOW),
        token_bytes=5,
    ),
    "hdf5": DataFormat(
        lambda number, _: (f"training_{number:05d}.hdf5",),
        _write_hdf5,
        _read_hdf5,
        token_bytes=6,
        packages=("h5py",),
    ),
    "npz": DataFormat(
        lambda number, _: (f"training-{number:05d}.npz",), _write_npz, _read_npz, token_bytes=8
    ),
    "paddle-text": DataFormat(
        lambda number, _: (f"training-{number:05d}.gz",), _write_text, _read_text, token_bytes=13
    ),
    "megatron": DataFormat(
        lambda _, __: ("training.bin", "training.idx"),
        _write_megatron,
        _read_megatron,
        token_bytes=4,
        most_files=1,
    ),
}
