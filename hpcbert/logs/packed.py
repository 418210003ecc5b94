"""Unpack a log that was compressed, or written in UTF-16, while reading it.

The first bytes of a file say what it is, not its name. Memory stays bounded whatever is in it, and
so does time: a file that unpacks to more than MOST does not come from training.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

MAX_UNPACKED = 1 << 29
_XZ_MEMORY = 1 << 27
SUFFIXES = ("gz", "xz", "bz2")


class UnpackError(Exception):
    """A file can't be unpacked; the message continues after its name."""


class _Unpacker(Protocol):
    """Unpacks one stream of a format, a limited amount at a time."""

    @property
    def eof(self) -> bool: ...

    def decompress(self, data: bytes, max_bytes: int, /) -> bytes: ...


class _Format(NamedTuple):
    """A form of compression.

    Attributes:
        name: Its common name.
        magic: What such files begin with: one of these.
        start: Begins to unpack one stream.
    """

    name: str
    magic: tuple[bytes, ...]
    start: Callable[[], _Unpacker]


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
    _Format("gzip", (b"\x1f\x8b\x08",), _gzip),
    _Format("xz", (b"\xfd7zXZ\x00",), _xz),
    _Format("bzip2", tuple(b"BZh%d1AY&SY" % level for level in range(1, 10)), _bzip2),
)
_MAGIC = tuple(magic for form in _FORMATS for magic in form.magic)
# As many bytes of a file's beginning say what it is.
HEAD = 16
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def is_plain(head: bytes) -> bool:
    """Return whether a file that begins with these bytes is read as it is."""
    return not head.startswith((*_MAGIC, *_UTF16))


def is_plain_without_mark(head: bytes) -> bool:
    """Return whether a file that begins with these bytes is plain text, and nothing else."""
    return is_plain(head) and not head.startswith(codecs.BOM_UTF8)


def unpack_text(descriptor: int, size: int, chunk: int) -> Iterator[bytes]:
    """Yield the text of a file from its beginning, as UTF-8.

    Args:
        descriptor: The file, at its beginning.
        size: How much of it to read.
        chunk: Bytes of a piece, at most.

    Raises:
        UnpackError: It is damaged, cut short or too large.
        OSError: It can't be read.
    """
    stream = _read_raw(descriptor, size, chunk)
    first = next(stream, b"")
    form = _detect_format(first)
    stream = _chain(first, stream)
    if form is not None:
        stream = _limit_size(_decompress(stream, form, chunk), form.name)
        first = next(stream, b"")
        stream = _chain(first, stream)
    return _remove_byte_order_mark(_decode_utf16(stream) if first.startswith(_UTF16) else stream)


def _detect_format(head: bytes) -> _Format | None:
    return next((form for form in _FORMATS if head.startswith(form.magic)), None)


def _read_raw(descriptor: int, size: int, chunk: int) -> Iterator[bytes]:
    while size > 0 and (data := os.read(descriptor, min(chunk, size))):
        size -= len(data)
        yield data


def _chain(first: bytes, other_pieces: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from other_pieces


def _decompress(stream: Iterator[bytes], form: _Format, max_bytes: int) -> Iterator[bytes]:
    """Yield the contents of a file's streams, one after the other, in bounded pieces."""
    unpacker = form.start()
    try:
        for block in stream:
            data, is_full = block, False
            while data or is_full:
                if unpacker.eof:
                    unpacker = form.start()
                piece = unpacker.decompress(data, max_bytes)
                yield piece
                is_full = len(piece) == max_bytes and not unpacker.eof
                data = _unused_input(unpacker)
    except _unpack_errors() as error:
        raise UnpackError(f"can't be unpacked as {form.name}: {error}") from error
    if not unpacker.eof:
        raise UnpackError(f"is cut short: its {form.name} has no end")


def _unpack_errors() -> tuple[type[Exception], ...]:
    import lzma
    import zlib

    return zlib.error, lzma.LZMAError, ValueError, EOFError, OSError


def _unused_input(unpacker: Any) -> bytes:
    """Return what an unpacker was given and did not use; streams may be padded with zeros."""
    if unpacker.eof:
        return bytes(unpacker.unused_data.lstrip(b"\x00"))
    return bytes(getattr(unpacker, "unconsumed_tail", b""))


def _limit_size(stream: Iterator[bytes], name: str) -> Iterator[bytes]:
    size = 0
    for data in stream:
        size += len(data)
        if size > MAX_UNPACKED:
            raise UnpackError(
                f"unpacks to more than {MAX_UNPACKED >> 20} MiB of {name}, which is too much for a log"
            )
        yield data


def _remove_byte_order_mark(stream: Iterator[bytes]) -> Iterator[bytes]:
    """Leave out the byte order mark, which is not part of the first line."""
    yield next(stream, b"").removeprefix(codecs.BOM_UTF8)
    yield from stream


def _decode_utf16(stream: Iterator[bytes]) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
    for data in stream:
        yield decoder.decode(data).encode("utf-8", "replace")
