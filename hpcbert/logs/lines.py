"""The bytes of a log as whole lines: bounded, with the effects of launchers undone.

Lines end at a newline or at a carriage return, so that a record glued to a progress bar is a line
of its own. What is undone, and where it was seen:

* A terminal (`docker run -t`) puts a carriage return before each newline; two of them put two.
* `srun -l` cuts lines after 1,024 bytes and labels the rest again, possibly after other ranks'
  lines (mlcommons/training_results_v1.0@50619b5, dgxa100_n8_ngc21.05_pytorch, 194 times).
* ANSI colours around time stamps (PaddlePaddle/Perf@0abb1f6).
* Compression and wide characters, by the file's first bytes, not its name. Memory and time are
  bounded for every content: what unpacks to more than MAX_UNPACKED does not come from training.
* Labels: `  0: ` of srun, `[1,0]<stdout>:` of mpirun, with a date before it under
  -timestamp-output and then in the middle of a line (PaddlePaddle/Perf@ee2e639), `vs003: ` of
  pdsh (Oneflow-Inc/DLPerf@c202878).
"""

from __future__ import annotations

import bz2
import codecs
import lzma
import os
import re
import zlib
from collections.abc import Callable, Generator, Iterator
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from hpcbert.system.files import open_file

MAX_UNPACKED = 1 << 29
_XZ_MEMORY = 1 << 27
SUFFIXES = ("gz", "xz", "bz2")


class UnpackError(Exception):
    """A file can't be unpacked; the message continues after its name."""


class _Format(NamedTuple):
    """A form of compression."""

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
# Longer than every magic.
_HEAD = 16
_DAMAGES = (zlib.error, lzma.LZMAError, ValueError, EOFError, OSError)


def is_plain(head: bytes) -> bool:
    """Return whether a file with these first bytes is neither compressed nor UTF-16."""
    return not head.startswith((*_MAGIC, *_UTF16))


def read_text(descriptor: int, size: int, chunk: int) -> Iterator[bytes]:
    """Yield the text of a file from its beginning, as UTF-8.

    Raises:
        UnpackError: It is damaged, cut short or too large.
        OSError: It can't be read.
    """
    read_blocks = _read_lines if is_plain(os.pread(descriptor, _HEAD, 0)) else _read_raw
    first, stream = _peek(read_blocks(descriptor, size, chunk))
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


def _read_lines(descriptor: int, size: int, chunk: int) -> Iterator[bytes]:
    """Yield blocks of a file, each cut after the last line that ends shortly before a chunk does.

    Nobody then has to copy a block only to move the rest of its last line into the next one.
    """
    position = 0
    for limit in range(chunk, size + chunk, chunk):
        end = min(limit, size)
        if end < size:
            low = max(position, end - LINE)
            line_end = os.pread(descriptor, end - low, low).rfind(b"\n") + 1
            end = low + line_end if line_end else end
        while position < end and (data := os.pread(descriptor, end - position, position)):
            position += len(data)
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


# --- Compressed logs, and UTF-16 ------------------------------------------------------------------

CHUNK = 1 << 18
LINE = 1 << 13
TAIL = 1 << 16
# Different logs differ here, except those with the same header and a long silence.
BEGINNING = 1 << 14
_SRUN_PAYLOAD = 1024
_BREAKS = b"\n\r"
_COMMON = b" .:-,=/_'0123456789abcdefghijklmnopqrstuvwxyz"

# Patterns are compiled only when a log needs them: most logs need none.
# From the first of a run alone: without a newline, each of a million would be tried to the end.
_RETURNS = rb"(?<!\r)\r+\n"
_ANSI = rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\n]*\x07|[@-Z\\^_])"
_HOLED = rb"[^\r\n]*\x00[^\r\n]*"
# As few steps as possible from one line's end to another's.
_SHORT_LINES = rb"(?s)(?:.{0,%d}\n)*" % _SRUN_PAYLOAD
_SRUN = rb" *(\d+): "
_MPI = rb"(?:\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4})?\[\d+,\d+\]<std(?:out|err|diag)>: ?"
_STARTS = rb"^ *\d+: |^\[[a-z]+\d+\]: ?|^[A-Za-z][\w.-]{0,63}: "
_LABELS = rb"(?m)(?:" + _STARTS + rb")"
# mpirun's labels may stand anywhere in a line, so searching for them takes ten times as long.
_LABELS_AND_MPI = rb"(?m)(?:" + _MPI + rb"|" + _STARTS + rb")+"
_RANK = rb"(?m)^ *(\d{1,9}): |^\[[a-z]+(\d{1,9})\]|\[\d+,(\d{1,9})\]<std"


class NotALogError(Exception):
    """The file at the path can't be read as a log; the message says why."""


class Line(NamedTuple):
    """A piece of a log in which a record was announced.

    Attributes:
        text: The bytes, without the line's end.
        whole_start, whole_end: Whether the piece really begins and ends where a line does. A
            number that touches an end that isn't the line's own may lack digits.
    """

    text: bytes
    whole_start: bool = True
    whole_end: bool = True

    def holds(self, match: re.Match[bytes]) -> bool:
        """Return whether a match is whole: it does not touch an end where the line may go on."""
        return (self.whole_start or match.start() > 0) and (
            self.whole_end or match.end() < len(match.string)
        )


def find_lines(data: bytes, texts: tuple[bytes, ...]) -> list[tuple[int, int, int, int]]:
    """Return the places of lines with one of the texts: (start, number of text, position, end).

    In the order of the log; a line appears once for each text in it. For a line that is longer than
    LINE to either side of the text, start and end are those of the piece to read.
    """
    matches = []
    for text, numbers in _group_by_text(texts):
        if not has_text(data, text):
            continue
        line_end, position = 0, data.find(text)
        while position >= 0:
            low = max(line_end, position - LINE)
            start = max(
                low, data.rfind(b"\n", low, position) + 1, data.rfind(b"\r", low, position) + 1
            )
            line_end = _end_of_line(data, position)
            matches += [(start, number, position, line_end) for number in numbers]
            position = data.find(text, line_end)
    matches.sort()
    return matches


@cache
def _group_by_text(texts: tuple[bytes, ...]) -> tuple[tuple[bytes, list[int]], ...]:
    """Return each text with its numbers: many facts are in one line, so it is searched once."""
    numbers_by_text: dict[bytes, list[int]] = {}
    for number, text in enumerate(texts):
        numbers_by_text.setdefault(text, []).append(number)
    return tuple(numbers_by_text.items())


def has_text(data: bytes, text: bytes) -> bool:
    """Return whether a piece of a log has a text; its rarest bytes are searched first."""
    # Finding that a byte is missing is ten times as fast as for a text.
    for byte in _rarest_first(text):
        if byte not in data:
            return False
    # In a large piece, CPython's search from the end is four times as fast as that from the start.
    return data.rfind(text) >= 0


@cache
def _rarest_first(text: bytes) -> tuple[int, ...]:
    return tuple(sorted(set(text), key=lambda byte: byte in _COMMON))


def cut_line(
    data: bytes, start: int, end: int, lines: int = 1, contains: bytes = b""
) -> tuple[Line, int]:
    """Return a piece that `find_lines` found, with the lines that follow, and their number.

    The number is `lines` if the piece is whole, because the next record begins after it.
    """
    count = 1
    while count < lines and _is_break(data, end) and end + 1 < len(data):
        line_end = _end_of_line(data, end + 1)
        if data.find(contains, end + 1, line_end) >= 0:
            count = lines
            break
        end = line_end
        count += 1
    whole_start = start == 0 or data[start - 1] in _BREAKS
    return Line(data[start:end], whole_start, _is_break(data, end)), count


def _is_break(data: bytes, position: int) -> bool:
    return position < len(data) and data[position] in _BREAKS


def _end_of_line(data: bytes, position: int) -> int:
    limit = min(position + LINE, len(data))
    newline = data.find(b"\n", position, limit)
    limit = limit if newline < 0 else newline
    carriage_return = data.find(b"\r", position, limit)
    return limit if carriage_return < 0 else carriage_return


def checksum_beginning(data: bytes) -> int:
    """Return a number that logs with an equal BEGINNING share; 0 if a log has none."""
    beginning = data[:BEGINNING]
    return zlib.crc32(beginning) + len(beginning)


def first_line_end(data: bytes) -> int:
    """Return the position of the first line's end."""
    ends = [position for position in (data.find(b"\n"), data.find(b"\r")) if position >= 0]
    return min(ends, default=len(data))


def remove_labels(text: bytes) -> bytes:
    """Return lines with launchers' labels replaced by line breaks."""
    return re.sub(_LABELS_AND_MPI if b"]<std" in text else _LABELS, b"\n", text)


def rank_of(text: bytes) -> int | None:
    """Return the rank that a launcher's label names, or None."""
    match = re.search(_RANK, text)
    return int(next(filter(None, match.groups()))) if match else None


def find_labelled_ranks(data: bytes) -> set[bytes]:
    """Return the ranks in mpirun's labels, as text."""
    has_labels = has_text(data, b"]<std")
    return set(re.findall(rb"\[\d+,(\d{1,9})\]<std", data)) if has_labels else set()


def open_log(path: Path) -> tuple[int, int]:
    """Open a log for reading; return its descriptor and its size.

    Raises:
        NotALogError: It is missing, unreadable, a directory, a pipe or a device.
    """
    try:
        return open_file(path)
    except OSError as error:
        raise NotALogError(f"can't be read: {error.strerror or error}") from error


def read_pieces(path: Path, chunk: int = CHUNK) -> Generator[bytes]:
    """Yield a log from its beginning to its present end, in pieces of whole lines.

    Only the last line of the last piece may lack its end. A piece is empty if a line is longer than
    it; one of more than some CHUNKs is skipped: it can't contain a record.

    Args:
        chunk: Bytes to read at once, at most CHUNK.

    Raises:
        NotALogError: It can't be read.
    """
    descriptor, size = open_log(path)
    labels = _Joiner()
    remainder, is_skipping = b"", False
    try:
        for block in read_text(descriptor, size, chunk):
            data = remainder + block
            end = data.rfind(b"\n") + 1 or data.rfind(b"\r") + 1
            start = 0
            if is_skipping and end:
                start, is_skipping = _first_break(data[:end]), False
            remainder = data[end:]
            if len(remainder) > CHUNK:
                remainder, is_skipping = b"", True
            yield _clean(labels.join(_normalize_line_ends(data[start:end])))
        if remainder and not is_skipping:
            yield _clean(_normalize_line_ends(remainder))
    except UnpackError as error:
        raise NotALogError(str(error)) from error
    except OSError as error:
        raise NotALogError(f"can't be read to its end: {error.strerror}") from error
    finally:
        os.close(descriptor)


def read_ends(path: Path) -> tuple[bytes, bytes]:
    """Return the first and the last TAIL bytes of a log, the latter beginning with a whole line.

    Raises:
        NotALogError: It can't be read.
    """
    descriptor, size = open_log(path)
    try:
        head = os.pread(descriptor, TAIL, 0)
        if not is_plain(head):
            head, data, size = _unpack_ends(descriptor, size)
        else:
            data = os.pread(descriptor, TAIL, size - TAIL) if size > TAIL else head
    except UnpackError as error:
        raise NotALogError(str(error)) from error
    except OSError as error:
        raise NotALogError(f"can't be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
    clean_head = _clean(_normalize_line_ends(head))
    if size <= TAIL:
        return clean_head, clean_head
    return clean_head, _clean(_normalize_line_ends(data[_first_break(data) :]))


def _unpack_ends(descriptor: int, size: int) -> tuple[bytes, bytes, int]:
    head = tail = b""
    total = 0
    for data in read_text(descriptor, size, CHUNK):
        total += len(data)
        head += data[: TAIL - len(head)]
        tail = (tail + data)[-TAIL:]
    return head, tail, total


def _first_break(data: bytes) -> int:
    return min(first_line_end(data) + 1, len(data))


def _normalize_line_ends(data: bytes) -> bytes:
    """Return lines that end at a newline alone where a terminal put carriage returns before it."""
    # A single byte is searched thirty times as fast as a text.
    return re.sub(_RETURNS, b"\n", data) if b"\r" in data else data


def _clean(data: bytes) -> bytes:
    """Remove colours, and whole lines that contain a hole of zero bytes.

    A file system leaves such a hole for pages that were never written: the digits on either side of
    it belong to different numbers.
    """
    if b"\x1b" in data:
        data = _normalize_line_ends(re.sub(_ANSI, b"", data))
    if b"\x00" in data:
        data = re.sub(_HOLED, b"", data)
    return data


def _has_long_line(data: bytes) -> bool:
    """Return whether a line is longer than those that srun cuts; reads only a few of the bytes."""
    match = re.match(_SHORT_LINES, data)
    return match is not None and match.end() < len(data) - _SRUN_PAYLOAD


def _is_cut(line: bytes) -> bool:
    label = re.match(_SRUN, line)
    return label is not None and len(line) - label.end() == _SRUN_PAYLOAD


class _Joiner:
    """Joins lines that `srun -l` cut, over the pieces of one log."""

    def __init__(self) -> None:
        self._open: dict[bytes, bytes] = {}

    def join(self, data: bytes) -> bytes:
        """Return the lines, each cut one put together at the place of its last part."""
        if not self._open and not _has_long_line(data):
            return data
        lines = data.split(b"\n")
        if not self._open and not any(_is_cut(line) for line in lines if len(line) > _SRUN_PAYLOAD):
            return data
        return b"\n".join(joined for line in lines if (joined := self._line(line)) is not None)

    def _line(self, line: bytes) -> bytes | None:
        label = re.match(_SRUN, line)
        if label is None:
            return line
        payload = line[label.end() :]
        beginning = self._open.pop(label[1], b"")
        if len(payload) == _SRUN_PAYLOAD and len(beginning) < CHUNK:
            self._open[label[1]] = (beginning or label[0]) + payload
            return None
        return beginning + payload if beginning else line
