"""Which framework's log a file is, and where its records are."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path

from hpcbert.logs.arithmetic import CannotReduceError, count_completed
from hpcbert.logs.fields import (
    has_field,
    record_lines,
    record_matches,
    whole_matches,
    whole_number,
)
from hpcbert.logs.grammar import Grammar, Record
from hpcbert.logs.lines import NotALogError, cut_line, find_lines, read_ends, read_pieces
from hpcbert.logs.setting import Setting, UnknownError
from hpcbert.model import Reason

# A framework's lines appear near the beginning of its log.
_MAX_BYTES = 1 << 23
# A framework with similar lines matches fewer lines, and rarely as many.
_ENOUGH_RECORDS = 20
_FAR_FEWER = 4
_TEXT = frozenset((*b"\t\n\r\x1b\b\f", *range(0x20, 0x100)))
_BINARY = 0.1


def find_frameworks(
    path: Path, grammars: Mapping[str, Grammar], assumed: str = ""
) -> tuple[str, ...]:
    """Return the frameworks whose lines a log has, those with the most of them.

    Never raises, whatever the path leads to.

    Args:
        assumed: The assumed framework; if it has about as many lines, there are no others.
    """
    counts = dict.fromkeys(grammars, 0)
    # To say what a log looks like, similar records are enough.
    unsigned = {name for name, grammar in grammars.items() if grammar.signs and not assumed}
    excluded: set[str] = set()
    bytes_read = 0
    with suppress(NotALogError), closing(read_pieces(path)) as pieces:
        for piece in pieces:
            for name, grammar in grammars.items():
                count = counts[name] + _count_records(piece, grammar)
                counts[name] = min(count, _ENOUGH_RECORDS)
                if any(sign in piece for sign in grammar.signs):
                    unsigned.discard(name)
                texts = tuple(other.contains for other in grammar.others) if not assumed else ()
                for start, index, _, end in find_lines(piece, texts):
                    if whole_matches(grammar.others[index].match, cut_line(piece, start, end)[0]):
                        excluded.add(name)
            bytes_read += len(piece)
            if bytes_read > _MAX_BYTES or max(counts.values(), default=0) == _ENOUGH_RECORDS:
                break
    counts |= dict.fromkeys(unsigned | excluded, 0)
    highest_count = max(counts.values(), default=0)
    if counts.get(assumed, 0) * _FAR_FEWER >= highest_count:
        return ()
    return tuple(name for name, count in counts.items() if highest_count and count == highest_count)


def _count_records(piece: bytes, grammar: Grammar) -> int:
    """Return the number of a grammar's records in a piece of a log, counted up to a limit."""
    count = 0
    for record in grammar.records:
        for _, line in record_lines(piece, record):
            is_ignored = any(text in line.text for text in record.ignore)
            count += bool(not is_ignored and whole_matches(record.match, line))
            if count >= _ENOUGH_RECORDS:
                return count
    return count


def explain_unread(path: Path, framework: str, similar_frameworks: tuple[str, ...]) -> Reason:
    """Return the reason for a log with few lines of a framework, or none."""
    message = f"{path.name} has no line of {framework}"
    if similar_frameworks:
        names = " or ".join(similar_frameworks)
        return Reason("format", f"{message}, but looks like a log of {names}")
    detail = f"{message}: the run ended before the first, or it is another format"
    return find_obstacle(path) or Reason("incomplete", detail)


def find_obstacle(path: Path) -> Reason | None:
    """Return why a file can't be the log of any program; None if it is a text."""
    try:
        head = read_ends(path)[0]
        is_empty = path.stat().st_size == 0
    except (OSError, NotALogError) as error:
        return Reason("no-log", f"{path.name} {error}")
    if is_empty:
        return Reason("incomplete", f"{path.name} is empty")
    # A file of only zero bytes has nothing left to read.
    if not head or sum(byte not in _TEXT for byte in head) > _BINARY * len(head):
        detail = f"{path.name} is not a text file; if it is compressed, unpack it first"
        return Reason("format", detail)
    return None


def find_record(path: Path, record: Record, setting: Setting) -> int:
    """Return the iterations at a log's first record after the warm-up; else the warm-up's."""
    places: set[int] = set()
    with suppress(NotALogError), closing(read_pieces(path)) as pieces:
        for piece in pieces:
            for match in record_matches(piece, record):
                if not record.has("iteration"):
                    places.add((len(places) + 1) * (record.every or 1))
                elif has_field(match, "iteration"):
                    with suppress(CannotReduceError, UnknownError):
                        number = whole_number(match["iteration"])
                        places.add(int(count_completed(record, number, setting)))
    return next((place for place in sorted(places)[:-1] if place >= setting.skip), setting.skip)
