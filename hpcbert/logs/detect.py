"""The kind of a log that has no line of the framework it is read as."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from hpcbert.logs.fields import whole_matches
from hpcbert.logs.grammar import Grammar
from hpcbert.logs.lines import NotALogError, cut_line, find_lines, read_ends, read_pieces
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

    Never raises because of the file's content, or of what is in its place.

    Args:
        path: The log.
        grammars: How the logs of each framework are read.
        assumed: The assumed framework; if it has about as many lines, there are no others.
    """
    counts = dict.fromkeys(grammars, 0)
    bytes_read = 0
    try:
        with closing(read_pieces(path)) as pieces:
            for piece in pieces:
                for name, grammar in grammars.items():
                    counts[name] = min(
                        counts[name] + _count_records(piece, grammar), _ENOUGH_RECORDS
                    )
                bytes_read += len(piece)
                if bytes_read > _MAX_BYTES or max(counts.values(), default=0) == _ENOUGH_RECORDS:
                    break
    except NotALogError:
        pass
    highest_count = max(counts.values(), default=0)
    if counts.get(assumed, 0) * _FAR_FEWER >= highest_count:
        return ()
    return tuple(name for name, count in counts.items() if highest_count and count == highest_count)


def _count_records(piece: bytes, grammar: Grammar) -> int:
    """Return how many records of a grammar a piece of a log has, or enough of them."""
    count = 0
    for record in grammar.records:
        for start, _, _, end in find_lines(piece, (record.contains,)):
            line, _ = cut_line(piece, start, end, record.lines)
            if any(text in line.text for text in record.ignore):
                continue
            count += bool(whole_matches(record.match, line))
            if count >= _ENOUGH_RECORDS:
                return count
    return count


def explain_unread(path: Path, framework: str, similar_frameworks: tuple[str, ...]) -> Reason:
    """Return why a log has no line of a framework, or hardly any.

    Args:
        path: The log.
        framework: The framework it was read as.
        similar_frameworks: The frameworks whose lines it has.
    """
    message = f"{path.name} has no line of {framework}"
    if similar_frameworks:
        return Reason(
            "format", f"{message}, but looks like a log of {' or '.join(similar_frameworks)}"
        )
    try:
        is_empty = path.stat().st_size == 0
        head = read_ends(path)[0]
    except (OSError, NotALogError) as error:
        return Reason("no-log", f"{path.name} {error}")
    if is_empty:
        return Reason("incomplete", f"{path.name} is empty")
    # A file of only zero bytes has nothing left to read.
    if not head or sum(byte not in _TEXT for byte in head) > _BINARY * len(head):
        return Reason(
            "format", f"{path.name} is not a text file; if it is compressed, unpack it first"
        )
    return Reason(
        "incomplete", f"{message}: the run ended before the first, or it is another format"
    )
