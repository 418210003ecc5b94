"""The bytes of a log that was compressed, or written in another encoding: unpacked as it is read.

What a file is, its first bytes say, not its name. Memory stays bounded whatever is in it, and so
does time: a file that unpacks to more than MOST is none that a training wrote.
"""

from __future__ import annotations

import codecs
import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST = 1 << 29
_XZ_MEMORY = 1 << 27
SUFFIXES = ("gz", "xz", "bz2")


class UnpackError(Exception):
    """A file can't be unpacked; the message goes on after its name."""


class _Unpacker(Protocol):
    """Unpacks one stream of a format, so much at a time."""

    @property
    def eof(self) -> bool: ...

    def decompress(self, data: bytes, most: int, /) -> bytes: ...


class _Format(NamedTuple):
    """A way to compress.

    Attributes:
        name: What people call it.
        magic: What it begins with.
        start: Begins to unpack one stream; None where Python has nothing to do it with.
    """

    name: str
    magic: re.Pattern[bytes]
    start: Callable[[], _Unpacker] | None


def _gzip() -> _Unpacker:
    import zlib

    return zlib.decompressobj(wbits=31)


def _xz() -> _Unpacker:
    import lzma

    return lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)


def _bzip2() -> _Unpacker:
    import bz2

    return bz2.BZ2Decompressor()


_FORMATS = (
    _Format("gzip", re.compile(rb"\x1f\x8b\x08"), _gzip),
    _Format("xz", re.compile(rb"\xfd7zXZ\x00"), _xz),
    _Format("bzip2", re.compile(rb"BZh[1-9]1AY&SY"), _bzip2),
    _Format("zstd", re.compile(rb"\x28\xb5\x2f\xfd"), None),
    _Format("zip", re.compile(rb"PK\x03\x04"), None),
    _Format("lz4", re.compile(rb"\x04\x22\x4d\x18"), None),
    _Format("compress", re.compile(rb"\x1f\x9d"), None),
    _Format("7z", re.compile(rb"7z\xbc\xaf\x27\x1c"), None),
)
# The longer marks first: that of UTF-16 begins that of UTF-32.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# Where the zero bytes of ASCII text are, by the encoding: the remainder of their places.
_ZEROS = {
    "utf-32-le": (4, {1, 2, 3}),
    "utf-32-be": (4, {0, 1, 2}),
    "utf-16-le": (2, {1}),
    "utf-16-be": (2, {0}),
}
SAMPLE = 1 << 10
_LEAST = 16
_MOSTLY = 0.9


def is_plain(head: bytes) -> bool:
    """Say whether a file that begins with these bytes is read as it is."""
    return _format(head) is None and not encoding(head)


def is_bare(head: bytes) -> bool:
    """Say whether a file that begins with these bytes is its text, and nothing else."""
    return is_plain(head) and not head.startswith(codecs.BOM_UTF8)


def encoding(head: bytes) -> str:
    """Return the encoding of wide characters that text begins in; empty for bytes as they are."""
    named = next((name for mark, name in _MARKS if head.startswith(mark)), "")
    sample = head[:SAMPLE]
    if named or b"\x00" not in sample:
        return named
    return next((name for name in _ZEROS if _is_wide(sample, name)), "")


def unpacked(descriptor: int, size: int, chunk: int) -> Iterator[bytes]:
    """Yield the text of a file from its beginning, as UTF-8 where its characters were wide.

    Args:
        descriptor: The file, at its beginning.
        size: How much of it to read.
        chunk: Bytes of a piece, at most.

    Raises:
        UnpackError: It is damaged, cut short, too large, or compressed in a way unknown here.
        OSError: It can't be read.
    """
    stream = _raw(descriptor, size, chunk)
    first = next(stream, b"")
    form = _format(first)
    stream = _chain(first, stream)
    if form is not None:
        stream = _bounded(_decompressed(stream, form, chunk), form.name)
        first = next(stream, b"")
        stream = _chain(first, stream)
    wide = encoding(first)
    return _unmarked(_decoded(stream, wide) if wide else stream)


def _format(head: bytes) -> _Format | None:
    return next((one for one in _FORMATS if one.magic.match(head)), None)


def _is_wide(head: bytes, name: str) -> bool:
    """Say whether zero bytes lie where a text of wide characters has them, and nowhere else."""
    width, zeros = _ZEROS[name]
    whole = len(head) // width * width
    if whole < _LEAST * width:
        return False
    inside = [head[at] == 0 for at in range(whole) if at % width in zeros]
    outside = [head[at] == 0 for at in range(whole) if at % width not in zeros]
    return sum(inside) >= _MOSTLY * len(inside) and not any(outside)


def _raw(descriptor: int, size: int, chunk: int) -> Iterator[bytes]:
    while size > 0 and (data := os.read(descriptor, min(chunk, size))):
        size -= len(data)
        yield data


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _decompressed(stream: Iterator[bytes], form: _Format, most: int) -> Iterator[bytes]:
    """Yield what the streams of a file hold, one after the other, in pieces that are bounded."""
    if form.start is None:
        raise UnpackError(f"is compressed by {form.name}: unpack it first")
    unpacker = form.start()
    try:
        for packed in stream:
            data, full = packed, False
            while data or full:
                if unpacker.eof:
                    unpacker = form.start()
                piece = unpacker.decompress(data, most)
                yield piece
                full = len(piece) == most and not unpacker.eof
                data = _left(unpacker)
    except _errors() as error:
        raise UnpackError(f"can't be unpacked as {form.name}: {error}") from error
    if not unpacker.eof:
        raise UnpackError(f"is cut short: its {form.name} has no end")


def _errors() -> tuple[type[Exception], ...]:
    import lzma
    import zlib

    return zlib.error, lzma.LZMAError, ValueError, EOFError, OSError


def _left(unpacker: Any) -> bytes:
    """Return what an unpacker was given and did not take; streams may be padded with zeros."""
    if unpacker.eof:
        return bytes(unpacker.unused_data.lstrip(b"\x00"))
    return bytes(getattr(unpacker, "unconsumed_tail", b""))


def _bounded(stream: Iterator[bytes], name: str) -> Iterator[bytes]:
    size = 0
    for data in stream:
        size += len(data)
        if size > MOST:
            raise UnpackError(f"unpacks to more than {MOST >> 20} MiB of {name}: no log does")
        yield data


def _unmarked(stream: Iterator[bytes]) -> Iterator[bytes]:
    """Leave out the mark of the encoding, which is no part of the first line."""
    yield next(stream, b"").removeprefix(codecs.BOM_UTF8)
    yield from stream


def _decoded(stream: Iterator[bytes], name: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(name)(errors="replace")
    for data in stream:
        yield decoder.decode(data).encode("utf-8", "replace")
