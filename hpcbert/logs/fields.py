"""The fields of records: which are there, whether they are whole, and their values."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from hpcbert.logs.arithmetic import CannotReduceError
from hpcbert.logs.grammar import NumberGroup, Record
from hpcbert.logs.lines import Line, cut_line, find_lines, remove_labels

_SHOWN = 40
# More than any count in a log has; Python refuses to read numbers of thousands of digits.
DIGITS = 18


def whole_matches(pattern: re.Pattern[bytes], line: Line) -> list[re.Match[bytes]]:
    """Return the whole matches in a line, with or without launchers' labels."""
    matches = list(pattern.finditer(line.text))
    matches = matches or list(pattern.finditer(remove_labels(line.text)))
    if line.whole_start and line.whole_end:
        return matches
    return [match for match in matches if line.holds(match)]


def record_lines(data: bytes, record: Record) -> Iterator[tuple[int, Line]]:
    """Yield the lines that may be records of a kind, each with its place."""
    for start, _, _, end in find_lines(data, (record.contains,)):
        yield start, cut_line(data, start, end, record.lines, record.contains)[0]


def record_matches(data: bytes, record: Record) -> Iterator[re.Match[bytes]]:
    """Yield the whole matches of a kind of record."""
    for _, line in record_lines(data, record):
        yield from whole_matches(record.match, line)


def read_fields(match: re.Match[bytes], numbers: tuple[NumberGroup, ...]) -> dict[str, bytes]:
    """Return the fields of a match, each number with everything that touches it."""
    fields = match.groupdict()
    if None in fields.values():
        fields = {name: text for name, text in fields.items() if text is not None}
    for number in numbers:
        if number.name in fields:
            fields[number.name] = number.read(match)
    return fields


def is_copy(
    record: tuple[float | None, dict[str, bytes]],
    other_record: tuple[float | None, dict[str, bytes]],
) -> bool:
    """Return whether two records (iteration, fields) are copies of one line.

    They have the same time or, if lines have none, the same fields. Either may be torn.
    """
    if record[0] != other_record[0]:
        return False
    names = ["time"] if "time" in record[1] else list(record[1])
    pairs = [(record[1][name], other_record[1].get(name, b"")) for name in names]
    return all(
        value.startswith(other_value) or other_value.startswith(value)
        for value, other_value in pairs
    )


def has_field(match: re.Match[bytes], name: str) -> bool:
    """Return whether a field took part in a match; optional ones may not."""
    return name in match.re.groupindex and match[name] is not None


def loose_float(text: bytes) -> float:
    """Return a number, NaN if the text is not one."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def whole_number(text: bytes) -> int:
    """Return a count.

    Raises:
        ValueError: The text is not a count, or too long.
    """
    if len(text) > DIGITS:
        raise ValueError(show_text(text))
    return int(text)


def show_text(text: bytes) -> str:
    """Return the beginning of a log's text for a message; undecodable bytes are replaced."""
    return text[:_SHOWN].decode(errors="replace")


def check_loss(fields: dict[str, bytes], iteration: int) -> None:
    """Refuse a loss that is not finite, or a nonzero count of iterations with such losses.

    Raises:
        CannotReduceError: The loss was not finite.
    """
    loss = fields.get("loss")
    if loss is not None and not math.isfinite(loose_float(loss)):
        raise CannotReduceError("loss", f"the loss is {show_text(loss)} at iteration {iteration}")
    if "nan" in fields and whole_number(fields["nan"]):
        raise CannotReduceError("loss", f"a loss up to iteration {iteration} was not finite")
