"""How one log is read: its program, its facts, and what each rule makes of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from hpcbert.campaign.foreign import LogReader
from hpcbert.campaign.recognition import Choice
from hpcbert.errors import UsageError
from hpcbert.logs.facts import FactValue, parse_fact
from hpcbert.logs.fields import read_fields, whole_matches
from hpcbert.logs.grammar import Grammar
from hpcbert.logs.layout import FIELDS, LogFile, printable_path
from hpcbert.logs.lines import (
    CHUNK,
    NotALogError,
    UnpackError,
    cut_line,
    find_lines,
    open_log,
    read_pieces,
    read_text,
)
from hpcbert.logs.setting import END
from hpcbert.logs.window import counted_part

# --- The facts in a log's lines -------------------------------------------------------------------

# Facts are in a log's header, some in its last lines; more is not searched.
_MAX_BYTES = 1 << 26
_MAX_TEXT = 160


class StatedFact(NamedTuple):
    """A fact and the first line that states it.

    Attributes:
        line: Its number in the file, from 1; 0 if it is not there in this form.
        lines: How many lines state the same.
        is_assumed: Whether the line only suggests it.
    """

    name: str
    value: FactValue
    line: int
    text: str
    lines: int
    is_assumed: bool


def list_facts(path: Path, grammar: Grammar) -> tuple[StatedFact, ...]:
    """Return the facts in a log's lines, in their order; lines that are counted, too.

    Never raises, whatever the path leads to.
    """
    first_lines: dict[tuple[str, FactValue, bool], bytes] = {}
    counts: dict[tuple[str, FactValue, bool], int] = {}
    for key, text in _read_facts(path, grammar):
        first_lines.setdefault(key, text)
        counts[key] = counts.get(key, 0) + 1
    raw_text = b"".join(_read_raw(path))
    facts = []
    for (name, value, is_assumed), text in first_lines.items():
        shown_text = " ".join(text.decode(errors="replace").split())[:_MAX_TEXT]
        count = counts[name, value, is_assumed]
        number = _find_line(raw_text, text)
        is_counted = value == ""
        facts.append(
            StatedFact(name, count if is_counted else value, number, shown_text, count, is_assumed)
        )
    return tuple(facts)


def _read_facts(
    path: Path, grammar: Grammar
) -> Iterator[tuple[tuple[str, FactValue, bool], bytes]]:
    """Yield name, value and kind of each fact, with its line; for counted lines no value."""
    texts = tuple(fact.contains for fact in grammar.all_facts)
    bytes_read = 0
    with suppress(NotALogError), closing(read_pieces(path)) as pieces:
        for piece in pieces:
            for start, index, _, end in find_lines(piece, texts):
                fact, line = grammar.all_facts[index], cut_line(piece, start, end)[0]
                matches = whole_matches(fact.match, line)
                if matches and fact.counts:
                    yield (f"{fact.counts} (lines)", "", False), line.text
                for match in matches:
                    for name, text in read_fields(match, fact.numbers).items():
                        value = parse_fact(fact, name, text)
                        if value is not None:
                            yield (name, value, bool(fact.assumed)), line.text
            bytes_read += len(piece)
            if bytes_read > _MAX_BYTES:
                return


def _read_raw(path: Path) -> Iterator[bytes]:
    with suppress(NotALogError, UnpackError, OSError):
        descriptor, size = open_log(path)
        try:
            yield from read_text(descriptor, min(size, _MAX_BYTES), CHUNK)
        finally:
            os.close(descriptor)


def _find_line(raw_text: bytes, text: bytes) -> int:
    # `srun -l` cuts lines after 1,024 bytes.
    position = raw_text.find(text.strip()[:_MAX_TEXT])
    return raw_text.count(b"\n", 0, position) + 1 if position >= 0 else 0


# --- What each rule makes of it -------------------------------------------------------------------


class RuleOutcome(NamedTuple):
    """What a rule makes of a log.

    Attributes:
        window: The part that it measures: the protocol's, or to the end where that has none.
        throughput: Samples per second; None if there is a reason.
        is_chosen: Whether `collect` reads the log by it.
    """

    rule: str
    window: str
    throughput: float | None
    reasons: tuple[str, ...]
    is_chosen: bool


class LogExplanation(NamedTuple):
    """How a log is read.

    Attributes:
        framework: Its recipe; empty if unknown.
        problem: Why it can't be read; empty if it can.
        named: What its path says, by the names of a pattern's fields.
    """

    path: str
    framework: str
    problem: str
    named: dict[str, str]
    facts: tuple[StatedFact, ...] = ()
    outcomes: tuple[RuleOutcome, ...] = ()


def explain_log(reader: LogReader, log: LogFile) -> LogExplanation:
    """Return how a log is read, whether or not it has a number."""
    path = printable_path(log.path)
    named = {name: str(value) for name in FIELDS if (value := getattr(log, name)) not in (None, 0)}
    try:
        framework = reader.recognise(log)
        reader.choose_rules([log])
        choice = reader.choice(log)
        outcomes = []
        for rule in framework.grammar.rules:
            protocol = Choice(rule, reader.window)
            to_end = Choice(rule, reader.window._replace(iters=END))
            tried = [choice] if rule == choice.rule else [protocol, to_end]
            outcomes.append(_try_choices(reader, log, tried, is_chosen=rule == choice.rule))
    except UsageError as error:
        return LogExplanation(path, "", f"{error.message} {error.hint}".strip(), named)
    facts = list_facts(log.path, framework.grammar)
    setting = reader.setting(log, choice.window)
    facts += tuple(
        StatedFact(name, getattr(setting, name), 0, f"of {source}", 1, is_assumed=True)
        for name, source in setting.sources
        if source.endswith(".json")
    )
    return LogExplanation(path, framework.name, "", named, facts, tuple(outcomes))


def _try_choices(
    reader: LogReader, log: LogFile, choices: list[Choice], *, is_chosen: bool
) -> RuleOutcome:
    """Return the outcome of the first choice with a number, else of the last."""
    outcomes = []
    for rule, window in choices:
        reading = reader.read_by(log, Choice(rule, window))
        reasons = [str(reason) for reason in reading.reasons]
        reasons += [f"{reading.missing} is unknown"] if reading.missing else []
        setting = reading.setting
        iters = setting.iters if window.iters is None else window.iters
        counted = counted_part(rule, setting.skip, iters).counted
        throughput = None if reasons else reading.throughput
        outcomes.append(RuleOutcome(rule.name, counted, throughput, tuple(reasons), is_chosen))
    return next((outcome for outcome in outcomes if outcome.throughput), outcomes[-1])
