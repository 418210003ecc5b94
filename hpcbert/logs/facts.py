"""The facts that a log states about its own run: settings, gathered line by line."""

from __future__ import annotations

import math
import re
from itertools import product

from hpcbert.logs.arithmetic import CannotReduceError
from hpcbert.logs.fields import DIGITS, loose_float, read_fields, whole_matches
from hpcbert.logs.grammar import TEXT_FACTS, Fact
from hpcbert.logs.lines import Line
from hpcbert.logs.setting import Setting

FactValue = int | str
# Numbers that are not whole; kept as the log prints them.
FRACTIONS = ("real_token_share", "model_flops")
# The only words that these facts may have.
_CHOICES = {"device_kind": ("gpu", "cpu"), "xla": ("true", "false")}
# Nodes may differ in these, so the first value stands for the run.
_FIRST_VALUE_HOLDS = ("version", "device")
_MAX_LENGTH = 80
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+")
# Two kinds of lines state the parts of one precision: FP8 is computed inside a run in 16 bits, and
# a program without fp16 may have bf16. MXFP8 is an FP8 whose recipe has a line of its own.
_INNER_PRECISION: dict[tuple[FactValue, FactValue], FactValue] = {
    pair: inner
    for outer, inner in (
        ("fp32", "bf16"),
        ("fp8", "mxfp8"),
        *product(("fp16", "bf16"), ("fp8", "mxfp8", "nvfp4")),
    )
    for pair in ((outer, inner), (inner, outer))
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
                if (
                    name == "precision"
                    and first_value == value
                    and (log_value, value) in _INNER_PRECISION
                ):
                    self.values[name] = _INNER_PRECISION[log_value, value]
                elif log_value != value and name not in _FIRST_VALUE_HOLDS:
                    detail = f"the log says {name} = {log_value}, and later {value}"
                    if source.contains != fact.contains:
                        texts = f"{_quote_line_text(source)} and {_quote_line_text(fact)}"
                        detail += f", in lines with {texts}"
                    raise CannotReduceError("config", detail)

    def with_counts(self, setting: Setting) -> dict[str, FactValue]:
        """Return the facts, including those that follow from the number of some lines.

        Raises:
            CannotReduceError: There are more such lines than another fact says, or far fewer.
        """
        values = dict(self.values)
        for fact, line_count in self._counted.items():
            if line_count < fact.least or self._is_torn(fact, line_count, setting):
                continue
            log_value = values.setdefault(fact.counts, line_count)
            if log_value != line_count:
                line = fact.contains.decode(errors="replace").strip()
                detail = (
                    f"the log says {fact.counts} = {log_value}, but {line_count} lines say {line!r}"
                )
                raise CannotReduceError("config", detail)
        return values

    def _is_torn(self, fact: Fact, line_count: int, setting: Setting) -> bool:
        """Return whether lines may be missing because they are torn.

        Ranks that write at once tear each other's lines. If no line states the number, half of them
        must be whole: a run on half as many is something else.
        """
        log_value = self.values.get(fact.counts)
        if log_value is not None:
            return line_count < int(log_value)
        expected = getattr(setting, fact.counts) if "global_batch_size" in self.values else None
        return expected is not None and line_count < int(expected) < 2 * line_count


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
