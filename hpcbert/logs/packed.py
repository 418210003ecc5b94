"""Unpack a log that was compressed, or written in UTF-16, while reading it.

The format is known from the first bytes of a file, not from its name. Memory and time are bounded
for every content: a file that unpacks to more than MAX_UNPACKED does not come from training.
"""

from __future__ import annotations

import bz2
import codecs
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

MAX_UNPACKED = 1 << 29
_XZ_MEMORY = 1 << 27
SUFFIXES = ("gz", "xz", "bz2")


class UnpackError(Exception):
    """A file can't be unpacked; the message continues after its name."""


class _Format(NamedTuple):
    """A form of compression.

    Attributes:
        name: Its common name.
        magic: The first bytes of such files: one of these.
        start: Begins to unpack one stream.
    """

    name: str
    magic: tuple[bytes, ...]
    start: Callable[[], Any]


_FORMATS = (
    _Format("gzip", (b"\x1f\x8b\x08",), partial(zlib.decompressobj, wbits=31)),
    _Format(
        "xz",
        (b"\xfd7zXZ\x00",),
        partial(lzma.LZMADecompressor, format=lzma.FORMAT_XZ, memlimit=_XZ_MEMORY),
    ),
    _Format("bzip2", tuple(b"BZh%d1AY&SY" % level for level in range(1, 10)), bz2.BZ2Decompressor),
)
_MAGIC = tuple(magic for form in _FORMATS for magic in form.magic)
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_DAMAGES = (zlib.error, lzma.LZMAError, ValueError, EOFError, OSError)


def is_plain(head: bytes) -> bool:
    """Return whether a file with these first bytes is neither compressed nor UTF-16."""
    return not head.startswith((*_MAGIC, *_UTF16))


def read_text(descriptor: int, size: int, chunk: int) -> Iterator[bytes]:
    """Yield the text of a file from its beginning, as UTF-8.

    Args:
        descriptor: The file, at its beginning.
        size: How much of it to read.
        chunk: Bytes of a piece, at most.

    Raises:
        UnpackError: It is damaged, cut short or too large.
        OSError: It can't be read.
    """
    first, stream = _peek(_read_raw(descriptor, size, chunk))
    form = next((form for form in _FORMATS if first.startswith(form.magic)), None)
    if form is not None:
        first, stream = _peek(_decompress(stream, form, chunk))
    if first.startswith(_UTF16):
        stream = _decode_utf16(stream)
    yield next(stream, b"").removeprefix(codecs.BOM_UTF8)
    yield from stream


def _peek(stream: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """Return the first piece of a stream, and the whole stream."""
    first = next(stream, b"")
    return first, chain((first,), stream)


def _read_raw(descriptor: int, size: int, chunk: int) -> Iterator[bytes]:
    while size > 0 and (data := os.read(descriptor, min(chunk, size))):
        size -= len(data)
        yield data


def _decompress(stream: Iterator[bytes], form: _Format, max_bytes: int) -> Iterator[bytes]:
    """Yield the contents of a file's streams, one after the other, in bounded pieces."""
    unpacker = form.start()
    size = 0
    try:
        for block in stream:
            data, is_full = block, False
            while data or is_full:
                if unpacker.eof:
                    unpacker = form.start()
                piece = unpacker.decompress(data, max_bytes)
                size += len(piece)
                if size > MAX_UNPACKED:
                    limit = f"{MAX_UNPACKED >> 20} MiB of {form.name}"
                    raise UnpackError(f"unpacks to more than {limit}, which is too much for a log")
                yield piece
                is_full = len(piece) == max_bytes and not unpacker.eof
                data = _unused_input(unpacker)
    except _DAMAGES as error:
        raise UnpackError(f"can't be unpacked as {form.name}: {error}") from error
    if not unpacker.eof:
        raise UnpackError(f"is cut short: its {form.name} has no end")


def _unused_input(unpacker: Any) -> bytes:
    """Return the input that an unpacker did not use; streams may be padded with zeros."""
    if unpacker.eof:
        return bytes(unpacker.unused_data.lstrip(b"\x00"))
    return bytes(getattr(unpacker, "unconsumed_tail", b""))


def _decode_utf16(stream: Iterator[bytes]) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
    for data in stream:
        yield decoder.decode(data).encode("utf-8", "replace")
