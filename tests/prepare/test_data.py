"""First records of training files, written byte by byte as their formats say."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcbert.prepare import data as prepare_data
from hpcbert.prepare import protobuf


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def message(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature_map(names: list[str]) -> bytes:
    """Return map<string, Feature> as field 1, each with a list of two numbers."""
    numbers = message(3, message(1, varint(7) + varint(300)))
    return b"".join(message(1, message(1, name.encode()) + message(2, numbers)) for name in names)


def tfrecord(names: list[str]) -> bytes:
    data = message(1, feature_map(names))
    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def masked(data: bytes) -> bytes:
    value = protobuf.crc32c(data)
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def npz(names: list[str]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for name in names:
            array = io.BytesIO()
            np.save(array, np.zeros(3))
            file.writestr(f"{name}.npy", array.getvalue())
    return content.getvalue()


def hdf5(path: Path, names: list[str], rows: int = 3) -> None:
    with h5py.File(path, "w") as file:
        for name in names:
            file[name] = np.zeros((rows, 4), dtype="i4")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


def test_the_checksum_is_castagnolis() -> None:
    # RFC 3720, appendix B.4
    assert protobuf.crc32c(bytes(32)) == 0x8A9136AA
    assert protobuf.crc32c(b"\xff" * 32) == 0x62A8AB43
    assert protobuf.crc32c(bytes(range(32))) == 0x46DD794E


def test_a_tfrecord_is_read_with_both_checksums(path: Path) -> None:
    path.write_bytes(tfrecord(["input_ids", "segment_ids"]) * 2)
    summary = prepare_data.read_first_record(path, "tfrecord", ["input_ids"])
    assert summary.endswith("CRC32C right, input_ids, segment_ids")


@pytest.mark.parametrize("at", [0, 9, 20, -1])
def test_a_flipped_bit_in_a_tfrecord_is_seen(path: Path, at: int) -> None:
    content = bytearray(tfrecord(["input_ids"]))
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="checksum is wrong"):
        prepare_data.read_first_record(path, "tfrecord")


def test_an_ofrecord_is_read(path: Path) -> None:
    data = feature_map(["input_ids", "next_sentence_labels"])
    path.write_bytes(struct.pack("<q", len(data)) + data)
    assert "next_sentence_labels" in prepare_data.read_first_record(path, "ofrecord", ["input_ids"])


def test_a_tfrecord_is_no_ofrecord_and_the_other_way_round(path: Path) -> None:
    data = feature_map(["input_ids"])
    path.write_bytes(struct.pack("<q", len(data)) + data)
    with pytest.raises(ValueError, match="checksum"):
        prepare_data.read_first_record(path, "tfrecord")
    path.write_bytes(tfrecord(["input_ids"]))
    with pytest.raises(ValueError, match=r"protocol buffer|no features|has no input_ids"):
        prepare_data.read_first_record(path, "ofrecord", ["input_ids"])


def test_hdf5_tells_rows_and_names(path: Path) -> None:
    hdf5(path, ["input_ids", "input_mask"])
    assert (
        prepare_data.read_first_record(path, "hdf5", ["input_mask"])
        == "HDF5, 3 rows, input_ids, input_mask"
    )


def test_hdf5_without_rows_is_refused(path: Path) -> None:
    hdf5(path, ["input_ids"], rows=0)
    with pytest.raises(ValueError, match="HDF5"):
        prepare_data.read_first_record(path, "hdf5")


def test_a_cut_hdf5_file_is_refused(path: Path) -> None:
    hdf5(path, ["input_ids"])
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(ValueError, match="HDF5 can't read it"):
        prepare_data.read_first_record(path, "hdf5")


def test_npz_tells_names(path: Path) -> None:
    path.write_bytes(npz(["input_ids", "valid_lengths"]))
    assert (
        prepare_data.read_first_record(path, "npz", ["input_ids"])
        == "npz, input_ids, valid_lengths"
    )


def test_a_zip_file_of_something_else_is_no_npz(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("readme.txt", "nothing")
    with pytest.raises(ValueError, match="is not an array"):
        prepare_data.read_first_record(path, "npz")


def test_text_has_four_fields_a_line(path: Path) -> None:
    path.write_bytes(gzip.compress(b"1 2 3;0 0 0;0 1 2;1\n1 2;0 0;0 1;0\n"))
    assert "3 tokens in the first sample" in prepare_data.read_first_record(path, "paddle-text")
    path.write_bytes(gzip.compress(b"a;b\n"))
    with pytest.raises(ValueError, match="2 fields"):
        prepare_data.read_first_record(path, "paddle-text")


def test_the_index_of_megatron_tells_sentences(path: Path) -> None:
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, 100, 11)
    path.write_bytes(head + bytes(64))
    assert (
        prepare_data.read_first_record(path, "megatron") == "index of 100 sentences in 10 documents"
    )


@pytest.mark.parametrize("form", prepare_data.RECORD_READERS)
@pytest.mark.parametrize(
    "content", [b"", b"\x00" * 7, b"\xff" * 4096, b"PK\x03\x04", b"\x1f\x8b\x08", b"<html>" * 99]
)
def test_what_is_something_else_is_refused_with_a_sentence(
    path: Path, form: str, content: bytes
) -> None:
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"\w+ \w+"):
        prepare_data.read_first_record(path, form, ["input_ids"])


@pytest.mark.parametrize(("form", "content"), [("tfrecord", tfrecord(["a"])), ("npz", npz(["a"]))])
def test_a_record_without_a_wanted_name_is_refused(path: Path, form: str, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ValueError, match="has no input_ids, input_mask"):
        prepare_data.read_first_record(path, form, ["input_ids", "a", "input_mask"])
