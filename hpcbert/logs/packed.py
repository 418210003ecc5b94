"""Unpack a log that was compressed, or written in UTF-16, while reading it.

The first bytes of a file say what it is, not its name. Memory stays bounded whatever is in it, and
so does time: a file that unpacks to more than MOST does not come from training.
"""

from __future__ import annotations

import codecs
import os
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST = 1 << 29
_XZ_MEMORY = 1 << 27
SUFFIXES = ("gz", "xz", "bz2")


class UnpackError(Exception):
    """A file can't be unpacked; the message continues after its name."""


class _Unpacker(Protocol):
    """Unpacks one stream of a format, a limited amount at a time."""

    @property
    def eof(self) -> bool: ...

    def decompress(self, data: bytes, most: int, /) -> bytes: ...


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


def is_bare(head: bytes) -> bool:
    """Return whether a file that begins with these bytes is plain text, and nothing else."""
    return is_plain(head) and not head.startswith(codecs.BOM_UTF8)


def unpacked(descriptor: int, size: int, chunk: int) -> Iterator[bytes]:
    """Yield the text of a file from its beginning, as UTF-8.

    Args:
        descriptor: The file, at its beginning.
        size: How much of it to read.
        chunk: Bytes of a piece, at most.

    Raises:
        UnpackError: It is damaged, cut short or too large.
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
    return _unmarked(_decoded(stream) if first.startswith(_UTF16) else stream)


def _format(head: bytes) -> _Format | None:
    return next((form for form in _FORMATS if head.startswith(form.magic)), None)


def _raw(descriptor: int, size: int, chunk: int) -> Iterator[bytes]:
    while size > 0 and (data := os.read(descriptor, min(chunk, size))):
        size -= len(data)
        yield data


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _decompressed(stream: Iterator[bytes], form: _Format, most: int) -> Iterator[bytes]:
    """Yield the contents of a file's streams, one after the other, in bounded pieces."""
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
    """Return what an unpacker was given and did not use; streams may be padded with zeros."""
    if unpacker.eof:
        return bytes(unpacker.unused_data.lstrip(b"\x00"))
    return bytes(getattr(unpacker, "unconsumed_tail", b""))


def _bounded(stream: Iterator[bytes], name: str) -> Iterator[bytes]:
    size = 0
    for data in stream:
        size += len(data)
        if size > MOST:
            raise UnpackError(
                f"unpacks to more than {MOST >> 20} MiB of {name}, which is too much for a log"
            )
        yield data


def _unmarked(stream: Iterator[bytes]) -> Iterator[bytes]:
    """Leave out the byte order mark, which is not part of the first line."""
    yield next(stream, b"").removeprefix(codecs.BOM_UTF8)
    yield from stream


def _decoded(stream: Iterator[bytes]) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
    for data in stream:
        yield decoder.decode(data).encode("utf-8", "replace")
