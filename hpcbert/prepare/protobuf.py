"""Records of features, as TensorFlow and OneFlow frame them: protocol buffers, lengths, CRC-32C.

A tf.train.Example holds Features, which hold a map of names to Feature; an OFRecord is that map
(tensorflow/tensorflow@v2.3.0, core/example/feature.proto; Oneflow-Inc/oneflow@v0.3.0,
core/record/record.proto). Nothing here needs either of them.
"""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.integer] | NDArray[np.floating]

# A sample of BERT is a few kilobytes; a length beyond this is damage.
_LONGEST = 1 << 26
CONTINUATION = 0x80
_VARINT, _EIGHT_BYTES, _TEXT, _FOUR_BYTES = 0, 1, 2, 5
# Field numbers of Feature, by dialect.
FLOATS = 2


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
def encode_varint(value: int) -> bytes:
    """Return a non-negative integer, seven bits a byte, the lowest first."""
    encoded = bytearray()
    while value >= CONTINUATION:
        encoded.append(value & 0x7F | CONTINUATION)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _crc_of(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value


_CRC = tuple(_crc_of(byte) for byte in range(256))


def _pack_numbers(values: Numbers) -> bytes:
    """Return integers as varints, floats as little-endian."""
    if values.dtype.kind == "f":
        return values.astype("<f4").tobytes()
    if values.dtype == "i1":
        return values.tobytes()  # 0 and 1 are their own varints
    return b"".join([encode_varint(value) for value in values.tolist()])


def _encode_field(number: int, content: bytes) -> bytes:
    return encode_varint(number << 3 | _TEXT) + encode_varint(len(content)) + content


def encode(values: Mapping[str, Numbers], dialect: Dialect) -> bytes:
    """Return one record; integers are not negative, int8 holds only 0 and 1."""
    data = b""
    for name, column in values.items():
        number = FLOATS if column.dtype.kind == "f" else dialect.integers
        feature = _encode_field(number, _encode_field(1, _pack_numbers(column)))
        data += _encode_field(1, _encode_field(1, name.encode()) + _encode_field(2, feature))
    for _ in range(dialect.depth - 1):
        data = _encode_field(1, data)
    return data


def read_features(data: bytes, dialect: Dialect) -> dict[str, bytes]:
    """Return the features of one record by name, each still a message.

    Raises:
        ValueError: The bytes are not such a record.
    """
    for _ in range(dialect.depth - 1):
        data = b"".join(content for number, content in read_fields(data) if number == 1)
    messages = {}
    for number, entry in read_fields(data):
        if number == 1:
            entry_fields = dict(read_fields(entry))
            name = entry_fields.get(1, b"").decode("utf-8", "replace")
            messages[name] = entry_fields.get(2, b"")
    return messages


def read_fields(data: bytes) -> Iterator[tuple[int, bytes]]:
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
        if byte < CONTINUATION:
            return value, position
    raise ValueError("it is not a protocol buffer")


def write_records(file: BinaryIO, records: Iterable[bytes], dialect: Dialect) -> None:
    """Write records one after the other, framed as the dialect has it."""
    for record in records:
        length = struct.pack("<Q", len(record))
        if dialect.checked:
            file.write(length + _masked_crc(length) + record + _masked_crc(record))
        else:
            file.write(length + record)


def read_records(file: BinaryIO, dialect: Dialect) -> Iterator[bytes]:
    """Yield the records of a file.

    Raises:
        ValueError: It is cut off, or a checksum is wrong.
    """
    extra = 4 if dialect.checked else 0
    while head := file.read(8 + extra):
        if len(head) < 8 + extra:
            raise ValueError("a record's length is cut off")
        (length,) = struct.unpack("<Q", head[:8])
        if extra and _masked_crc(head[:8]) != head[8:]:
            raise ValueError("a length's checksum is wrong")
        if not 0 < length <= _LONGEST:
            raise ValueError("a record's length is impossible")
        data = file.read(length + extra)
        if len(data) < length + extra:
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
        value = value >> 8 ^ _CRC[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF
