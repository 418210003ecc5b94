"""The fields of lines: which are there, whether they are whole, and their values.

Those of records, and the facts that a log states about its own run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import permutations, product

from hpcbert.logs.arithmetic import CannotReduceError
from hpcbert.logs.grammar import TEXT_FACTS, Fact, NumberGroup, Record
from hpcbert.logs.lines import Line, cut_line, find_lines, remove_labels
from hpcbert.logs.setting import FRACTIONS, Setting

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


def loose_float(text: bytes) -> float:
    """Return a number, NaN if the text is not one."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def whole_number(text: bytes) -> int:
    """Return a count.

    Raises:
        CannotReduceError: The text is not a count, or too long.
    """
    with suppress(ValueError):
        if len(text) <= DIGITS:
            return int(text)
    raise CannotReduceError("rule", f"{show_text(text)!r} is not a count")


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


# --- Facts ----------------------------------------------------------------------------------------

FactValue = int | str
# The only words that these facts may have.
_CHOICES = {"device_kind": ("gpu", "cpu"), "xla": ("true", "false")}
# Nodes may differ in these, so the first value stands for the run.
_FIRST_VALUE_HOLDS = ("version", "device")
_MAX_LENGTH = 80
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+")
# Two kinds of lines state the parts of one precision: FP8 is computed inside a run in 16 bits, and
# a program without fp16 may have bf16. MXFP8 is an FP8 whose recipe has a line of its own.
_NESTED = [("fp32", "bf16"), ("fp8", "mxfp8")]
_NESTED += product(("fp16", "bf16"), ("fp8", "mxfp8", "nvfp4"))
_INNER_PRECISION: dict[tuple[FactValue, ...], FactValue] = {
    pair: inner for outer, inner in _NESTED for pair in permutations((outer, inner))
}


class LogFacts:
    """The facts of one log.

    Attributes:
        values: The facts in lines, by their names in FACTS.
        suggested: What lines suggest, by the kind of line: the facts of the first such line.
    """

    def __init__(self) -> None:
        self.values: dict[str, FactValue] = {}
        self.suggested: dict[Fact, dict[str, FactValue]] = {}
        self._sources: dict[str, Fact] = {}
        self._counted: dict[Fact, int] = {}
        self._stated: dict[tuple[Fact, str], FactValue] = {}

    def add(self, fact: Fact, line: Line) -> None:
        """Take the facts of a line.

        Raises:
            CannotReduceError: It contradicts an earlier line.
        """
        matches = whole_matches(fact.match, line)
        if fact.counts:
            self._counted[fact] = self._counted.get(fact, 0) + len(matches)
        for match in matches:
            for name, text in read_fields(match, fact.numbers).items():
                value = parse_fact(fact, name, text)
                if value is None:
                    continue
                if fact.assumed:
                    self.suggested.setdefault(fact, {}).setdefault(name, value)
                    continue
                first_value = self._stated.setdefault((fact, name), value)
                log_value = self.values.setdefault(name, value)
                source = self._sources.setdefault(name, fact)
                pair = log_value, value
                if name == "precision" and first_value == value and pair in _INNER_PRECISION:
                    self.values[name] = _INNER_PRECISION[pair]
                elif log_value != value and name not in _FIRST_VALUE_HOLDS:
                    detail = f"the log says {name} = {log_value}, and later {value}"
                    if source.contains != fact.contains:
                        texts = f"{_quote_line_text(source)} and {_quote_line_text(fact)}"
                        detail += f", in lines with {texts}"
                    raise CannotReduceError("config", detail)

    def with_counts(self, setting: Setting) -> dict[str, FactValue]:
        """Return the facts, including those that follow from the number of some lines.

        Ranks that write at once tear each other's lines. If no line states the number, half of them
        must be whole: a run on half as many is something else.

        Raises:
            CannotReduceError: There are more such lines than another fact says, or far fewer.
        """
        values = dict(self.values)
        for fact, line_count in self._counted.items():
            name, stated = fact.counts, self.values.get(fact.counts)
            expected = getattr(setting, name) if "global_batch_size" in self.values else None
            is_torn = expected is not None and line_count < expected < 2 * line_count
            if stated is not None:
                is_torn = line_count < int(stated)
            if line_count < fact.least or is_torn:
                continue
            if values.setdefault(name, line_count) != line_count:
                line = fact.contains.decode(errors="replace").strip()
                detail = (
                    f"the log says {name} = {values[name]}, but {line_count} lines say {line!r}"
                )
                raise CannotReduceError("config", detail)
        return values


def _quote_line_text(fact: Fact) -> str:
    return repr(fact.contains.decode(errors="replace").strip(" .:|"))


def parse_fact(fact: Fact, name: str, text: bytes) -> FactValue | None:
    """Return a fact in hpcbert's form: a number, also `96.000` or `4,096`, or a word."""
    word = text.decode(errors="replace")
    word = fact.values.get(word, word)
    if fact.lists:
        word = str(len(set(filter(None, word.split(",")))))
    if name in _CHOICES:
        return word if word in _CHOICES[name] else None
    if name in FRACTIONS:
        return word if 0 < loose_float(text) < math.inf else None
    if name in TEXT_FACTS:
        return word.strip()[:_MAX_LENGTH] or None
    if _GROUPED.fullmatch(word):
        word = word.replace(",", "")
    if "." in word:
        word = word.rstrip("0").removesuffix(".")
    if not (word.isascii() and word.isdigit() and len(word) <= DIGITS):
        return None
    return int(word)
