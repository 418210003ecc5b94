"""The facts that a log states about its own run: settings, gathered line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcbert.logs.arithmetic import CannotReduceError
from hpcbert.logs.fields import DIGITS, read_fields, whole_matches

if TYPE_CHECKING:
    from hpcbert.logs.grammar import Fact
    from hpcbert.logs.lines import Line

Value = int | str
WORDS = ("precision", "model", "version", "device", "device_kind")
_KINDS = ("gpu", "cpu")
# Nodes may differ in these, so the first value stands for the run.
_FIRST_COUNTS = ("version", "device")
_LONGEST = 80


class Stated:
    """The facts of one log.

    Attributes:
        values: The facts in lines, by their names in FACTS.
    """

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self._sources: dict[str, Fact] = {}
        self._counted: dict[Fact, int] = {}

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
                value = read(fact, name, text)
                if value is None:
                    continue
                known = self.values.setdefault(name, value)
                source = self._sources.setdefault(name, fact)
                if known != value and name not in _FIRST_COUNTS:
                    detail = f"the log says {name} = {known}, and later {value}"
                    if source.contains != fact.contains:
                        detail += f", in lines with {_key(source)} and {_key(fact)}"
                    raise CannotReduceError("config", detail)

    def with_counts(self) -> dict[str, Value]:
        """Return the facts, including those that follow from the number of some lines.

        Raises:
            CannotReduceError: There are more or fewer such lines than another fact says.
        """
        values = dict(self.values)
        for fact, number in self._counted.items():
            if number < fact.least:
                continue
            known = values.setdefault(fact.counts, number)
            if known != number:
                line = fact.contains.decode(errors="replace").strip()
                detail = f"the log says {fact.counts} = {known}, but {number} lines say {line!r}"
                raise CannotReduceError("config", detail)
        return values


def _key(fact: Fact) -> str:
    return repr(fact.contains.decode(errors="replace").strip(" .:|"))


def read(fact: Fact, name: str, text: bytes) -> Value | None:
    """Return a fact in hpcbert's form: a number, also `96.000`, or a word; None if neither."""
    word = text.decode(errors="replace")
    word = fact.values.get(word, word)
    if fact.lists:
        word = str(len(set(filter(None, word.split(",")))))
    if name == "device_kind":
        return word if word in _KINDS else None
    if name in WORDS:
        return word.strip()[:_LONGEST] or None
    if "." in word:
        word = word.rstrip("0").removesuffix(".")
    if not (word.isascii() and word.isdigit() and len(word) <= DIGITS):
        return None
    number, rest = divmod(int(word), fact.divide)
    return None if rest else number
