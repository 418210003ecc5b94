"""What logs leave open and hpcbert settles itself: rule, window, and the values that it assumes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hpcbert.campaign.pooling import ReadLog
from hpcbert.campaign.user_settings import UserSettings, guess_shape
from hpcbert.logs.grammar import Grammar, Rule
from hpcbert.logs.layout import LogFile
from hpcbert.logs.scan import Reading
from hpcbert.logs.setting import END, Setting, Window, model_heading
from hpcbert.logs.window import counted_part

_OPTIONS = {
    "nodes": "--nodes",
    "gpus_per_node": "--gpus-per-node",
    "gpus": "--nodes with --gpus-per-node",
    "batch_size_per_device": "--batch-size",
    "precision": "--precision",
    "model": "--model",
}
# Codes of reasons that speak against a rule rather than against a run.
_AGAINST_RULE = {"rule", "contradiction", "window"}
# The number of another rule or window might be the one that nothing is compared with.
_FINAL = {"contradiction"}
_SOURCES = {
    "sequence_length": "the recipe's",
    "packing": "the only one that its batch sizes allow",
}
# Logs of one folder that are read by further rules, while none has a number.
_MAX_TRIED = 8


class Choice(NamedTuple):
    """How the logs of one framework in one folder are read."""

    rule: Rule
    window: Window


class Assumption(NamedTuple):
    """A value that hpcbert chose because the user did not.

    Attributes:
        name: What it is about: a name of a setting, or `framework`, `rule`, `window`, `repeats`.
        reason: A clause.
        option: The option that overrides it.
    """

    framework: str
    name: str
    value: str
    reason: str
    option: str


@dataclass
class Assumptions:
    """The assumptions behind some tables, and how many logs each is about."""

    _counts: dict[Assumption, int] = field(default_factory=dict)

    def add(self, assumption: Assumption) -> None:
        """Take an assumption about one more log."""
        self._counts[assumption] = self._counts.get(assumption, 0) + 1

    def add_choice(self, framework: str, choice: Choice, default: Choice) -> None:
        """Take the choice for one log, as far as it differs from the default."""
        rule, window = choice
        reason = f"the default, {default.rule.name}, does not give a number for each log"
        if rule != default.rule:
            self.add(Assumption(framework, "rule", rule.name, reason, "--rule"))
        if window != default.window:
            counted = counted_part(
                rule, Setting().skip if window.skip is None else window.skip, END
            )
            reason = "the protocol's has no number"
            self.add(Assumption(framework, "window", counted.counted, reason, "--skip and --iters"))

    def texts(self) -> tuple[str, ...]:
        """Return a line for each, with all values that have the same reason."""
        values: dict[tuple[str, ...], list[str]] = {}
        counts: dict[tuple[str, ...], int] = {}
        for (framework, name, value, reason, option), count in self._counts.items():
            key = (framework, name, reason, option)
            values.setdefault(key, []).append(value)
            counts[key] = counts.get(key, 0) + count
        texts = (
            f"{key[0]}: {key[1]} = {', '.join(values[key])} ({count} log{'s' if count > 1 else ''})"
            f": {key[2]}; {key[3]} {'override' if ' and ' in key[3] else 'overrides'} it"
            for key, count in counts.items()
        )
        # A name may have several lines.
        return tuple(" ".join(text.split()) for text in texts)

    def data(self) -> list[dict[str, str | int]]:
        """Return them for a JSON document."""
        return [{**entry._asdict(), "logs": count} for entry, count in self._counts.items()]


def list_assumed(
    read_log: ReadLog, user_settings: UserSettings
) -> Iterator[tuple[str, str, str, str]]:
    """Yield what a log's number or its place in a table rests on and nobody states.

    Returns:
        Name, value, reason and the option that overrides it.
    """
    log, reading = read_log.log, read_log.reading
    setting, facts = reading.setting, dict(reading.facts)
    for name, value, reason in reading.assumed:
        yield name, str(value), reason, _OPTIONS.get(name, f"--set {name}")
    for name in ("batch_size", "precision", "nodes", "gpus_per_node", "gpus"):
        setting_name = "batch_size_per_device" if name == "batch_size" else name
        is_own = name != "gpus" and getattr(user_settings, name) is not None
        if log.name and name in log.name.guesses and setting_name not in facts and not is_own:
            value = str(getattr(log, name))
            yield setting_name, value, "the file's name states it", _OPTIONS[setting_name]
    sources = dict(setting.sources)
    if sources.get("nodes", "").endswith(".json") and "nodes" not in facts:
        shape = f"{setting.nodes} with {setting.gpus_per_node} GPUs each"
        yield "nodes", shape, f"{sources['nodes']} states it", "--nodes with --gpus-per-node"
    likely = guess_shape(setting)
    if likely and likely.gpus > 1:
        value = f"{likely.nodes} with {likely.gpus_per_node} GPUs each"
        reason = "only their GPUs are known, and a node usually has 8"
        yield "nodes", value, reason, "--gpus-per-node"
    if not (user_settings.model or log.model or model_heading(setting)):
        yield "model", read_log.model, "the log states none; it is the recipe's", "--model"
    stated = {*facts, *dict(user_settings.settings)}
    for name in ("sequence_length", "packing"):
        if getattr(setting, name) and name not in stated and reading.throughput:
            reason = f"the log does not state it; it is {_SOURCES[name]}"
            yield name, str(getattr(setting, name)), reason, f"--set {name}"


_Read = Callable[[LogFile, Choice], Reading]
_Windows = Callable[[Rule, Sequence[LogFile]], Iterator[Window]]


def choose_rule(
    logs: Sequence[LogFile], grammar: Grammar, default: Rule, windows: _Windows, read: _Read
) -> Rule:
    """Return the default rule, unless it gives no number.

    Otherwise the first rule that gives a number for all logs, that speaks against no log, or that
    gives a number for some; one with a caution only if no other gives any. If two numbers of a log
    contradict each other, the default stays. Rules that measure the protocol's window come before
    those that go to the end; only the default does both first.
    """
    candidates = [rule for rule in grammar.rules if rule != default and not rule.caution]
    trials = [(default, slice(None)), *((rule, slice(1)) for rule in candidates)]
    trials += [(rule, slice(1, None)) for rule in candidates]
    # A rule that includes too much time is the last resort; its caution is printed.
    trials += [
        (rule, slice(None)) for rule in grammar.rules if rule.caution and rule.side == "below"
    ]
    ranked: dict[int, Rule] = {}
    for rule, part in trials:
        if ranked and rule.caution:
            break
        rule_windows = [*windows(rule, logs)][part]
        readings = [_read_first(log, rule, rule_windows, read) for log in logs[:_MAX_TRIED]]
        measured = [reading for reading in readings if reading and reading.throughput]
        codes = {reason.code for reading in readings if reading for reason in reading.reasons}
        is_complete, is_contradicted = len(measured) == len(readings), codes & _AGAINST_RULE
        is_decided = codes & _FINAL or (measured and not is_contradicted)
        if is_complete or (rule == default and is_decided):
            return rule
        if measured:
            ranked.setdefault(1 if is_contradicted else 0, rule)
    return ranked[min(ranked)] if ranked else default


def _read_first(log: LogFile, rule: Rule, windows: Sequence[Window], read: _Read) -> Reading | None:
    """Return the reading by the first window with a number, else by the last."""
    reading = None
    for window in windows:
        reading = read(log, Choice(rule, window))
        if _is_decided(reading):
            break
    return reading


def _is_decided(reading: Reading) -> bool:
    """Return whether no other window is tried: there is a number, or a contradiction of two."""
    return bool(reading.throughput) or any(reason.code in _FINAL for reason in reading.reasons)


def choose_window(
    logs: Sequence[LogFile], rule: Rule, windows: _Windows, read: _Read
) -> Window | None:
    """Return the first window in which a rule gives a number, or a contradiction, for a log.

    If none does, and the first does not fit the records, it is the first in which a log is cut off.
    """
    codes: dict[Window, set[str]] = {}
    for window in windows(rule, logs):
        readings = [read(log, Choice(rule, window)) for log in logs[:_MAX_TRIED]]
        if any(map(_is_decided, readings)):
            return window
        codes[window] = {reason.code for reading in readings for reason in reading.reasons}
    if "window" not in next(iter(codes.values())):
        return None
    return next((window for window in codes if "incomplete" in codes[window]), None)
