"""What logs leave open and hpcbert settles itself: rule, window, and the values that it assumes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hpcbert.campaign.pooling import ReadLog
from hpcbert.campaign.user_settings import UserSettings
from hpcbert.logs.grammar import Grammar, Rule
from hpcbert.logs.layout import LogFile
from hpcbert.logs.scan import Reading
from hpcbert.logs.setting import END, Window, model_heading

_OPTIONS = {
    "nodes": "--nodes",
    "gpus_per_node": "--gpus-per-node",
    "gpus": "--nodes with --gpus-per-node",
    "batch_size_per_device": "--batch-size",
    "precision": "--precision",
    "model": "--model",
}
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
        if choice.rule != default.rule:
            reason = f"rule {default.rule.name} gives no number"
            self.add(Assumption(framework, "rule", choice.rule.name, reason, "--rule"))
        if choice.window != default.window:
            reason = "no log reaches the last iteration of the protocol"
            self.add(Assumption(framework, "window", "to the end of each run", reason, "--iters"))

    def texts(self) -> tuple[str, ...]:
        """Return a line for each, in the order in which they came."""
        return tuple(
            f"{framework}: {name} = {value} ({count} log{'s' if count > 1 else ''}): {reason}; "
            f"{option} overrides it"
            for (framework, name, value, reason, option), count in self._counts.items()
        )

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
    if not (user_settings.model or log.model or model_heading(setting)):
        yield "model", read_log.model, "the log states none; it is the recipe's", "--model"
    stated = {*facts, *dict(user_settings.settings)}
    for name in ("sequence_length", "packing"):
        if getattr(setting, name) and name not in stated and reading.throughput:
            reason = f"the log does not state it; it is {_SOURCES[name]}"
            yield name, str(getattr(setting, name)), reason, f"--set {name}"


def list_choices(grammar: Grammar, default: Choice, *, is_rule_fixed: bool) -> Iterator[Choice]:
    """Yield the ways to read a log: the default rule first, then the others.

    Args:
        grammar: How the framework's logs are read.
        default: The chosen rule, or the recipe's default, with the chosen window.
        is_rule_fixed: Whether the user chose the rule.
    """
    windows = [default.window]
    if default.window.iters is None:
        windows.append(default.window._replace(iters=END))
    yield from (Choice(default.rule, window) for window in windows)
    if is_rule_fixed:
        return
    rules = [rule for rule in grammar.rules if rule != default.rule and not rule.caution]
    yield from (Choice(rule, window) for window in windows for rule in rules)


def choose_reading(
    logs: Sequence[LogFile],
    choices: Iterable[Choice],
    default: Choice,
    read: Callable[[LogFile, Choice], Reading],
) -> Choice:
    """Return the first choice that gives a number for one of the logs, else the default."""
    for choice in choices:
        if any(read(log, choice).throughput for log in logs[:_MAX_TRIED]):
            return choice
    return default
