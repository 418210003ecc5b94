"""How one log is read: its program, its facts, and what each rule makes of it."""

from __future__ import annotations

from typing import NamedTuple

from hpcbert.campaign.foreign import LogReader
from hpcbert.campaign.recognition import Choice
from hpcbert.errors import UsageError
from hpcbert.logs.explanation import StatedFact, list_facts
from hpcbert.logs.layout import FIELDS, LogFile, printable_path
from hpcbert.logs.setting import END
from hpcbert.logs.window import counted_part


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
