"""The formats that frameworks read, each with a writer and a reader of whole files."""

from __future__ import annotations

import functools
import gzip
import itertools
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcbert.prepare import protobuf
from hpcbert.prepare.data_samples import Samples
from hpcbert.prepare.protobuf import Dialect

Stream = Iterable[Samples]
# Tokens, segments and label of two sentences before masking.
Pair = tuple[list[int], list[int], int]
Item = TypeVar("Item")

_BLOCK = 4096
_NAMES = Samples._fields
# The same time for all members of a zip file: its bytes must not depend on when it was made.
_DATE = (1980, 1, 1, 0, 0, 0)


class DamagedError(Exception):
    """A file violates its format; the text says how."""


class DataFormat(NamedTuple):
    """One format of training data.

    Attributes:
        names: Returns the names of file `number` of `count`.
        write: Writes samples to new files of these names.
        read: Yields their samples, or the sentence pairs of formats without masked ones;
            raises `DamagedError`, ValueError or OSError.
        token_bytes: The most bytes of a file that a token takes.
        is_complete: Whether it holds whole samples. Two formats hold tokens before masking: their
            programs mask them.
        most_files: The most files that a directory may have; 0 for any number.
    """

    names: Callable[[int, int], tuple[str, ...]]
    write: Callable[[Sequence[Path], Stream], None]
    read: Callable[[Sequence[Path]], Iterator[Samples]]
    token_bytes: int
    is_complete: bool = True
    most_files: int = 0


def _group(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield some thousands of items at a time."""
    iterator = iter(items)
    while block := list(itertools.islice(iterator, _BLOCK)):
        yield block


# --- TFRecord and OFRecord ------------------------------------------------------------------------


def _read_numbers(feature: bytes) -> protobuf.Numbers:
    for number, inner in protobuf.read_fields(feature):
        content = b"".join(
            piece for inner_number, piece in protobuf.read_fields(inner) if inner_number == 1
        )
        if number == protobuf.FLOATS:
            if len(content) % 4:
                raise ValueError("a list of floats is cut off")
            return np.frombuffer(content, dtype="<f4")
        return _unpack_integers(content)
    return np.zeros(0, dtype=np.int64)


def _unpack_integers(content: bytes) -> NDArray[np.int64]:
    """Return varints as integers, int64 [count]."""
    digits = np.frombuffer(content, dtype=np.uint8)
    is_last = digits < protobuf.CONTINUATION
    if is_last.all():
        return digits.astype(np.int64)
    if not is_last[-1]:
        raise ValueError("a list of integers is cut off")
    ends = np.nonzero(is_last)[0]
    starts = np.concatenate([[0], ends[:-1] + 1])
    digit_index = np.arange(len(digits)) - np.repeat(starts, ends - starts + 1)
    if digit_index.max() > 9:  # noqa: PLR2004 - 64 bits take ten bytes
        raise ValueError("an integer has more than 64 bits")
    shifted = (digits & np.uint8(0x7F)).astype(np.uint64) << (7 * digit_index).astype(np.uint64)
    return np.add.reduceat(shifted, starts).astype(np.int64)


def decode_record(data: bytes, dialect: Dialect) -> dict[str, protobuf.Numbers]:
    """Return the features of one record.

    Raises:
        ValueError: The bytes are not such a record.
    """
    return {
        name: _read_numbers(feature)
        for name, feature in protobuf.read_features(data, dialect).items()
    }


def _split_samples(stream: Stream) -> Iterator[dict[str, protobuf.Numbers]]:
    """Yield samples as google-research/bert@eedf571, create_pretraining_data.py, names them."""
    for block in stream:
        fields = {**block._asdict(), "masked_lm_weights": block.masked_lm_weights}
        fields["next_sentence_labels"] = block.next_sentence_labels[:, None]
        for index in range(len(block.input_ids)):
            yield {name: values[index] for name, values in fields.items()}


def _write_records(paths: Sequence[Path], stream: Stream, *, dialect: Dialect) -> None:
    records = (protobuf.encode(features, dialect) for features in _split_samples(stream))
    with paths[0].open("wb") as file:
        protobuf.write_records(file, records, dialect)


def _read_records(paths: Sequence[Path], *, dialect: Dialect) -> Iterator[Samples]:
    with paths[0].open("rb") as file:
        records = protobuf.read_records(file, dialect)
        rows = (_select_columns(decode_record(record, dialect)) for record in records)
        for block in _group(rows):
            yield _stack_rows(block)


def _select_columns(features: dict[str, protobuf.Numbers]) -> list[protobuf.Numbers]:
    missing = [name for name in _NAMES if name not in features]
    if missing:
        raise DamagedError(f"a record has no {', '.join(missing)}")
    weights = features.get("masked_lm_weights")
    if weights is not None and not np.isfinite(weights).all():
        raise DamagedError("a weight is not a finite number")
    return [features[name] for name in _NAMES]


def _stack_rows(rows: Sequence[Sequence[protobuf.Numbers]]) -> Samples:
    try:
        columns = [np.stack(column) for column in zip(*rows, strict=True)]
    except ValueError as error:
        raise DamagedError("its samples differ in length") from error
    return _to_samples([*columns[:-1], columns[-1].reshape(len(rows), -1)[:, 0]])


def _to_samples(columns: Sequence[protobuf.Numbers]) -> Samples:
    """Return columns as samples; refuse a value that does not fit its type, never cut it."""
    kinds = [np.dtype(kind) for kind in ("i4", "i1", "i1", "i4", "i4", "i1")]
    for name, column, kind in zip(_NAMES, columns, kinds, strict=True):
        if column.dtype.kind not in "iu":
            raise DamagedError(f"{name} is not made of integers")
        if column.size and not 0 <= column.min() <= column.max() <= np.iinfo(kind).max:
            raise DamagedError(f"{name} has values out of range")
    return Samples(*(column.astype(kind) for column, kind in zip(columns, kinds, strict=True)))


# --- HDF5 of NVIDIA (DeepLearningExamples@fd9fecd, PyTorch BERT, create_pretraining_data.py) ------


def _write_hdf5(paths: Sequence[Path], stream: Stream) -> None:
    import h5py

    blocks = list(stream)
    # No compression and no times: the bytes depend only on the samples.
    with h5py.File(paths[0], "w", libver="earliest", track_order=False) as file:
        for name, columns in zip(_NAMES, zip(*blocks, strict=True), strict=True):
            file.create_dataset(name, data=np.concatenate(columns), track_times=False)


def _read_hdf5(paths: Sequence[Path]) -> Iterator[Samples]:
    import h5py

    try:
        with h5py.File(paths[0], "r") as file:
            missing = [name for name in _NAMES if name not in file]
            if missing:
                raise DamagedError(f"it has no {', '.join(missing)}")
            counts = {name: len(file[name]) for name in _NAMES}
            if len(set(counts.values())) > 1:
                raise DamagedError("its data sets differ in length")
            for start in range(0, counts["input_ids"], _BLOCK):
                yield _to_samples([file[name][start : start + _BLOCK] for name in _NAMES])
    except (RuntimeError, TypeError, KeyError) as error:
        raise DamagedError(f"HDF5 can't read it: {error}") from error


# --- npz of GluonNLP (dmlc/gluon-nlp@7b7bf60, scripts/bert/data/create_pretraining_data.py) -------


def _write_npz(paths: Sequence[Path], stream: Stream) -> None:
    blocks = list(stream)
    arrays = {
        name: np.concatenate(columns).astype("<i4")
        for name, columns in zip(_NAMES, zip(*blocks, strict=True), strict=True)
    }
    arrays["valid_lengths"] = arrays.pop("input_mask").sum(axis=1, dtype="<i4")
    weights = np.concatenate([block.masked_lm_weights for block in blocks]).astype("<f4")
    with zipfile.ZipFile(paths[0], "w", zipfile.ZIP_STORED) as archive:
        for name, values in {**arrays, "masked_lm_weights": weights}.items():
            member = zipfile.ZipInfo(f"{name}.npy", date_time=_DATE)
            with archive.open(member, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, values, version=(1, 0), allow_pickle=False)


def _read_npz(paths: Sequence[Path]) -> Iterator[Samples]:
    try:
        # Opened here, because numpy leaves a file open if it is not a zip file.
        with paths[0].open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError) as error:
        raise DamagedError(f"it is not an npz file: {error}") from error
    needed = {*_NAMES, "valid_lengths", "masked_lm_weights"} - {"input_mask"}
    if missing := sorted(needed - set(arrays)):
        raise DamagedError(f"it has no {', '.join(missing)}")
    if not np.isfinite(arrays["masked_lm_weights"]).all():
        raise DamagedError("a weight is not a finite number")
    ids, lengths = arrays["input_ids"], arrays["valid_lengths"]
    if ids.ndim != 2 or lengths.shape != ids.shape[:1]:  # noqa: PLR2004 - samples, tokens
        raise DamagedError("its arrays differ in length")
    arrays["input_mask"] = (np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int8)
    yield _to_samples([arrays[name] for name in _NAMES])


# --- Text of PaddlePaddle 1.8 (PaddlePaddle/models@b71cf63, BERT, reader/pretraining.py) ----------


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


def _read_text(paths: Sequence[Path]) -> Iterator[Samples]:
    try:
        with gzip.open(paths[0], "rt", encoding="utf-8") as file:
            for pairs in _group(map(_parse_pair, file)):
                yield _pad_pairs(pairs)
    except (gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DamagedError(f"it is not compressed text: {error}") from error


def _parse_pair(line: str) -> Pair:
    fields = line.rstrip("\n").split(";")
    if len(fields) != 4:  # noqa: PLR2004 - tokens, segments, positions, label
        raise DamagedError(f"a line has {len(fields)} fields, not 4")
    try:
        tokens, segments, positions = (
            [int(word) for word in field.split(" ")] for field in fields[:3]
        )
        label = int(fields[3])
    except ValueError as error:
        raise DamagedError("a line has something other than integers") from error
    if not len(tokens) == len(segments) == len(positions):
        raise DamagedError("a line has more tokens than segments or positions, or fewer")
    return tokens, segments, 1 - label


# --- Memory-mapped sentences of Megatron (NVIDIA/Megatron-LM@3860e99, data/indexed_dataset.py) ----

_MEGATRON = b"MMIDIDX\x00\x00"
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_INT32, _UINT16 = 4, 8


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
    head = struct.pack("<QBQQ", 1, _INT32, len(sizes), len(documents))
    with paths[1].open("wb") as file:
        file.write(_MEGATRON + head + lengths.tobytes())
        file.write(pointers.astype("<i8").tobytes() + documents.tobytes())


def _read_megatron(paths: Sequence[Path]) -> Iterator[Samples]:
    index = paths[1].read_bytes()
    if not index.startswith(_MEGATRON) or len(index) < 34:  # noqa: PLR2004 - its header
        raise DamagedError(f"{paths[1].name} is not an index of memory-mapped data")
    version, code, sentences, documents = struct.unpack_from("<QBQQ", index, len(_MEGATRON))
    if version != 1 or code not in _DTYPES:
        raise DamagedError(f"{paths[1].name} has version {version} and data of type {code}")
    if len(index) != 34 + 12 * sentences + 8 * documents:
        raise DamagedError(f"{paths[1].name} is cut off")
    sizes = np.frombuffer(index, "<i4", sentences, 34)
    if paths[0].stat().st_size != int(sizes.sum()) * np.dtype(_DTYPES[code]).itemsize:
        raise DamagedError("its sentences are not as long as its index says")
    tokens = np.memmap(paths[0], dtype=_DTYPES[code], mode="r") if sizes.sum() else np.zeros(0)
    for pairs in _group(_pair_sentences(tokens, sizes)):
        yield _pad_pairs(pairs)


def _pair_sentences(tokens: protobuf.Numbers, sizes: protobuf.Numbers) -> Iterator[Pair]:
    ends = np.cumsum(sizes, dtype=np.int64)
    starts = ends - sizes
    for number in range(0, len(sizes) - 1, 2):
        first = tokens[starts[number] : ends[number]].tolist()
        second = tokens[starts[number + 1] : ends[number + 1]].tolist()
        segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
        yield [0, *first, 0, *second, 0], segments, 0


def _pad_pairs(pairs: Sequence[Pair]) -> Samples:
    """Return sentence pairs as samples without predictions, padded to the longest."""
    longest = max(len(tokens) for tokens, _, _ in pairs)
    ids = np.zeros((len(pairs), longest), dtype=np.int64)
    mask, segments = np.zeros_like(ids), np.zeros_like(ids)
    for index, (pair_tokens, pair_segments, _) in enumerate(pairs):
        length = len(pair_tokens)
        ids[index, :length] = pair_tokens
        segments[index, :length] = pair_segments
        mask[index, :length] = 1
    empty = np.zeros((len(pairs), 0), dtype=np.int64)
    labels = np.array([label for _, _, label in pairs])
    return _to_samples([ids, mask, segments, empty, empty, labels])


FORMATS: dict[str, DataFormat] = {
    "tfrecord": DataFormat(
        lambda number, count: (f"training-{number:05d}-of-{count:05d}.tfrecord",),
        functools.partial(_write_records, dialect=protobuf.TENSORFLOW),
        functools.partial(_read_records, dialect=protobuf.TENSORFLOW),
        token_bytes=5,
    ),
    "ofrecord": DataFormat(
        lambda number, _: (f"part-{number}",),
        functools.partial(_write_records, dialect=protobuf.ONEFLOW),
        functools.partial(_read_records, dialect=protobuf.ONEFLOW),
        token_bytes=5,
    ),
    "hdf5": DataFormat(
        lambda number, _: (f"training_{number:05d}.hdf5",),
        _write_hdf5,
        _read_hdf5,
        token_bytes=6,
    ),
    "npz": DataFormat(
        lambda number, _: (f"training-{number:05d}.npz",),
        _write_npz,
        _read_npz,
        token_bytes=8,
    ),
    "paddle-text": DataFormat(
        lambda number, _: (f"training-{number:05d}.gz",),
        _write_text,
        _read_text,
        token_bytes=13,
        is_complete=False,
    ),
    "megatron": DataFormat(
        lambda _, __: ("training.bin", "training.idx"),
        _write_megatron,
        _read_megatron,
        token_bytes=4,
        is_complete=False,
        most_files=1,
    ),
}
