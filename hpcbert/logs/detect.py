"""The kind of a log that has no line of the framework it is read as."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from hpcbert.logs.fields import whole_matches
from hpcbert.logs.lines import NotALogError, bodies, cut_line, ends, find_lines
from hpcbert.model import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hpcbert.logs.grammar import Grammar

# A framework's lines appear near the beginning of its log.
_FAR = 1 << 23
# A framework with similar lines matches fewer lines, and rarely as many.
_ENOUGH = 20
_FAR_FEWER = 4
_TEXT = frozenset((*b"\t\n\r\x1b\b\f", *range(0x20, 0x100)))
_BINARY = 0.1


def kinds(path: Path, grammars: Mapping[str, Grammar], own: str = "") -> tuple[str, ...]:
    """Return the frameworks whose lines a log has, those with the most of them.

    Never raises because of the file's content, or of what is in its place.

    Args:
        path: The log.
        grammars: How the logs of each framework are read.
        own: The assumed framework; if it has about as many lines, there are no others.
    """
    counts = dict.fromkeys(grammars, 0)
    seen = 0
    try:
        with closing(bodies(path)) as pieces:
            for data in pieces:
                for name, grammar in grammars.items():
                    counts[name] = min(counts[name] + _lines(data, grammar), _ENOUGH)
                seen += len(data)
                if seen > _FAR or max(counts.values(), default=0) == _ENOUGH:
                    break
    except NotALogError:
        pass
    most = max(counts.values(), default=0)
    if counts.get(own, 0) * _FAR_FEWER >= most:
        return ()
    return tuple(name for name, count in counts.items() if most and count == most)


def _lines(data: bytes, grammar: Grammar) -> int:
    """Return how many records of a grammar a piece of a log has, or enough of them."""
    found = 0
    for record in grammar.records:
        for start, _, _, end in find_lines(data, (record.contains,)):
            line, _ = cut_line(data, start, end, record.lines)
            if any(text in line.text for text in record.ignore):
                continue
            found += bool(whole_matches(record.match, line))
            if found >= _ENOUGH:
                return found
    return found


def unread(path: Path, framework: str, alike: tuple[str, ...]) -> Reason:
    """Return why a log has no line of a framework, or hardly any.

    Args:
        path: The log.
        framework: The framework it was read as.
        alike: The frameworks whose lines it has.
    """
    none = f"{path.name} has no line of {framework}"
    if alike:
        return Reason("format", f"{none}, but looks like a log of {' or '.join(alike)}")
    try:
        empty = path.stat().st_size == 0
        head = ends(path)[0]
    except (OSError, NotALogError) as error:
        return Reason("no-log", f"{path.name} {error}")
    if empty:
        return Reason("incomplete", f"{path.name} is empty")
    # A file of only zero bytes has nothing left to read.
    if not head or sum(byte not in _TEXT for byte in head) > _BINARY * len(head):
        return Reason(
            "format", f"{path.name} is not a text file; if it is compressed, unpack it first"
        )
    return Reason("incomplete", f"{none}: the run ended before the first, or it is another format")
