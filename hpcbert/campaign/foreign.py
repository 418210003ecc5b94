"""Logs that hpcbert never submitted, read one by one: framework, rule, window, known facts.

What a log leaves open, hpcbert settles itself, and notes it as an assumption.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from hpcbert.config import places
from hpcbert.config.toml import read as read_toml
from hpcbert.errors import ConfigError, UsageError, format_count
from hpcbert.logs import failures
from hpcbert.logs import grammar as grammars
from hpcbert.logs.fields import FactValue, parse_fact, read_fields, whole_matches
from hpcbert.logs.grammar import Grammar, Rule
from hpcbert.logs.layout import FIELDS, LogFile, printable_path
from hpcbert.logs.lines import NotALogError, cut_line, find_lines, read_ends, read_pieces
from hpcbert.logs.scan import (
    Reading,
    find_frameworks,
    find_obstacle,
    find_places,
    read,
    read_to_end,
)
from hpcbert.logs.setting import END, Setting, Window, model_facts
from hpcbert.logs.window import counted_part
from hpcbert.model import Counted, Reason, Shape
from hpcbert.system import files
from hpcbert.system.decode import decode, did_you_mean
from hpcbert.system.grouping import group

# Codes of reasons that speak against a rule rather than against a run.
_AGAINST_RULE = {"rule", "contradiction", "window"}
# The number of another rule or window might be the one that nothing is compared with.
_FINAL = {"contradiction"}
# Logs of one folder that are read by further rules, while none has a number.
_MAX_TRIED = 8


# --- What users and paths state ------------------------------------------------------------------

OPTIONS = {
    "nodes": "--nodes",
    "gpus_per_node": "--gpus-per-node",
    "gpus": "--nodes and --gpus-per-node",
    "batch_size_per_device": "--batch-size",
    "precision": "--precision",
    "model": "--model",
}
# What paths and options state, and the names of that in a setting.
_STATED = {
    "nodes": "nodes",
    "gpus_per_node": "gpus_per_node",
    "batch_size": "batch_size_per_device",
    "precision": "precision",
}
_SETTABLE = ("accumulation", "global_batch_size", "packing", "sequence_length")
_USUAL_GPUS = 8
_COUNT = re.compile(r"[1-9][0-9]{0,8}")


class UnknownLogError(UsageError):
    """A required fact about one log is unknown; the other logs can still be collected."""


class UserSettings(NamedTuple):
    """The user's settings for logs; those of `--set` by the names that a log's facts use."""

    framework: str = ""
    model: str = ""
    nodes: int | None = None
    gpus_per_node: int | None = None
    batch_size: int | None = None
    precision: str | None = None
    settings: tuple[tuple[str, int], ...] = ()


class CollectRequest(NamedTuple):
    """The runs to collect, and the settings.

    Attributes:
        rule: Name of a rule; empty for each framework's default.
        pattern: How to read the paths of logs; empty for DLPerf's layout.
        require_all: Whether a point with fewer valid runs than requested gets no number.
        as_repeats: Whether all logs of a point are repeats, whatever their names.
    """

    rule: str = ""
    pattern: str = ""
    known: UserSettings = UserSettings()
    window: Window = Window()
    require_all: bool = False
    as_repeats: bool = False


def parse_settings(words: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Read the values of `--set NAME=VALUE`.

    Raises:
        UsageError: A name is unknown or appears twice, or its value is not a whole number above 0.
    """
    settings: dict[str, int] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in _SETTABLE:
            hint = did_you_mean(name, _SETTABLE)
            raise UsageError(f"--set of logs does not support {name!r}.", hint=hint)
        if name in settings:
            raise UsageError(f"--set has {name} twice.")
        if not _COUNT.fullmatch(value):
            raise UsageError(f"--set {name} must be a whole number above 0, not {value!r}.")
        settings[name] = int(value)
    return tuple(settings.items())


def make_setting(log: LogFile, user: UserSettings, window: Window) -> Setting:
    """Return the settings that a log's path, the user and the system's description state.

    The user's words outweigh a name that has no documented form, and the description.
    """
    is_unstated = log.nodes is None and log.gpus_per_node is None and user.nodes is None
    if is_unstated and log.gpus and user.gpus_per_node and log.gpus < user.gpus_per_node:
        # The user's GPUs per node are those of the machine: the run used some of one node.
        user = user._replace(nodes=1, gpus_per_node=log.gpus)
    settings, model = dict(user.settings), model_facts(user.model or log.model or "")
    typed, stated = list_stated(user), list_stated(log)
    for key in log.guesses:
        if _STATED.get(key) in typed:
            stated.pop(_STATED[key], None)
    for name, value in stated.items():
        if typed.get(name, value) != value:
            raise make_contradiction(name, value, OPTIONS[name], typed[name], log)
    values: dict[str, Any] = {"gpus": log.gpus, **settings, **model, **typed, **stated}
    sources = {name: f"--set {name}" for name in settings}
    sources |= dict.fromkeys(model, "--model" if user.model else "the path")
    sources |= {name: OPTIONS[name] for name in typed} | dict.fromkeys(stated, "the path")
    sources |= {"gpus": "the path"} if log.gpus else {}
    nodes, width = values.get("nodes"), values.get("gpus_per_node")
    if log.form is not None and not (nodes or width or log.gpus):
        values["nodes"], values["gpus_per_node"], source = read_system(log.path.parent)
        sources |= dict.fromkeys(("nodes", "gpus_per_node"), source) if source else {}
    if log.gpus and nodes and width and nodes * width != log.gpus:
        flags = "--nodes with --gpus-per-node"
        raise make_contradiction("gpus", log.gpus, flags, f"{nodes} x {width}", log)
    usual = Setting()
    return Setting(
        **values,
        skip=usual.skip if window.skip is None else window.skip,
        iters=usual.iters if window.iters is None else window.iters,
        reach=0 if window.iters in {None, END} else window.iters,
        sources=tuple(sources.items()),
    ).settled({})[0]


def list_stated(source: LogFile | UserSettings) -> dict[str, Any]:
    """Return what a path or the user states about a run, by the names of a setting."""
    values = {name: getattr(source, key) for key, name in _STATED.items()}
    return {name: value for name, value in values.items() if value is not None}


def guess_shape(setting: Setting) -> Shape | None:
    """Return the likely shape of a run if only its number of GPUs is known.

    It has as few nodes as possible, with eight GPUs each, as in all published tables; None if that
    is impossible.
    """
    gpus = setting.gpus
    if not gpus or setting.nodes or setting.gpus_per_node:
        return None
    if gpus <= _USUAL_GPUS:
        return Shape(1, gpus)
    return Shape(gpus // _USUAL_GPUS, _USUAL_GPUS) if gpus % _USUAL_GPUS == 0 else None


def make_contradiction(
    name: str, path_value: object, flag: str, user_value: object, log: LogFile
) -> UsageError:
    """Return the error for a path and a flag that contradict each other."""
    return UsageError(
        f"The path says {name} = {path_value}, but {flag} says {user_value}.",
        where=printable_path(log.path),
        hint="Leave the flag out; or, if the names are wrong, give a --pattern "
        "that has * in this place.",
    )


def make_unknown(names: Sequence[str], log: LogFile) -> UnknownLogError:
    """Return the error for a missing fact that a number or its place in a table needs."""
    flags = [OPTIONS[name] for name in names if name in OPTIONS]
    settings = [f"--set {name}=N" for name in names if name in _SETTABLE]
    hint = f"Give {' '.join([*flags, *settings])}" if flags or settings else ""
    hint += "." if settings else ", or name it in --pattern." if flags else ""
    message = f"Neither the path nor the log has {' and '.join(names)}."
    return UnknownLogError(message, where=printable_path(log.path), hint=hint)


# Bytes of a system's description, and the folders above a log whose `systems` folder may have it:
# results/SYSTEM/BENCHMARK.
_MAX_SYSTEM_BYTES = 1 << 20
_LEVELS = 3


@cache
def read_system(folder: Path) -> tuple[int | None, int | None, str]:
    """Return nodes and GPUs per node of the system whose logs a folder holds, and their source.

    The source is empty if no file describes it, or if files differ.
    """
    folder = folder.absolute()
    levels = (folder, *folder.parents)[:_LEVELS]
    groups = [[level.parent.parent / "systems" / f"{level.name}.json"] for level in levels]
    groups += [sorted(level.glob("*.json")) for level in levels[:2]]
    for paths in groups:
        systems = [(*shape, printable_path(path)) for path in paths if (shape := _read_shape(path))]
        if systems:
            shapes = {system[:2] for system in systems}
            return systems[0] if len(shapes) == 1 else (None, None, "")
    return None, None, ""


def _read_shape(path: Path) -> tuple[int, int] | None:
    try:
        document = json.loads(files.read(path, max_bytes=_MAX_SYSTEM_BYTES))
        nodes, width = int(document["number_of_nodes"]), int(document["accelerators_per_node"])
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return None
    return (nodes, width) if nodes > 0 and width > 0 else None


# --- Frameworks, and what is assumed -------------------------------------------------------------


class Framework(NamedTuple):
    """How a framework's logs are read; model and tokens of a sample if nothing states them."""

    name: str
    grammar: Grammar
    model: str
    length: int | None = None


@dataclass(frozen=True)
class Recipes:
    """The frameworks in the folders of `places.recipe_folders`."""

    folders: tuple[Path, ...]
    _loaded: dict[str, Framework] = field(default_factory=dict, init=False, compare=False)

    @cached_property
    def names(self) -> Mapping[str, Path]:
        """The folder of each framework, by its name."""
        return places.list_recipes(self.folders)

    def load(self, name: str) -> Framework:
        """Return a framework's rules for reading logs, from its recipe.

        Raises:
            ConfigError: No framework has that name, or its recipe is invalid.
        """
        if name in self._loaded:
            return self._loaded[name]
        folder = self.names.get(name) or places.find_recipe(name, self.folders)
        path = folder / "recipe.toml"
        values = read_toml(path)
        model_names = values.get("models", ["bert"])
        models = decode(tuple[str, ...], model_names, file=str(path), path="models")
        log = grammars.parse(values.get("log", {}), where=str(path))
        option = dict(values.get("options", {})).get("sequence_length", {})
        length = log.sequence_length or dict(option).get("default")
        self._loaded[name] = Framework(folder.name, log, models[0], length or None)
        return self._loaded[name]


class Choice(NamedTuple):
    """A way to read a log."""

    rule: Rule
    window: Window

    @property
    def counted(self) -> Counted:
        """The measured part of the run."""
        usual, (skip, iters) = Setting(), self.window
        return counted_part(
            self.rule,
            usual.skip if skip is None else skip,
            usual.iters if iters is None else iters,
        )


class Assumption(NamedTuple):
    """A value that hpcbert chose because the user did not.

    Attributes:
        name: What it is about: a name of a setting, or `framework`, `rule`, `window`, `repeats`.
        option: The option that overrides it.
    """

    framework: str
    name: str
    value: str
    reason: str
    option: str


class Assumptions(Counter[Assumption]):
    """The assumptions behind some tables, and how many logs each is about."""

    def add(self, *entry: str) -> None:
        """Note what was assumed for one more log; `entry` has the fields of an Assumption."""
        self[Assumption(*entry)] += 1

    def texts(self) -> tuple[str, ...]:
        """Return a line for each."""
        texts = []
        for (framework, name, value, reason, option), count in self.items():
            logs = format_count(count, "log")
            text = f"{framework}: {name} = {value} ({logs}): {reason}; override it by {option}"
            # A name may have several lines.
            texts.append(" ".join(text.split()))
        return tuple(texts)

    def data(self) -> list[dict[str, str | int]]:
        """Return them for a JSON document."""
        return [{**assumption._asdict(), "logs": count} for assumption, count in self.items()]


@dataclass(frozen=True, kw_only=True)
class LogReader:
    """Reads logs one by one.

    With a pattern, the name of a folder does not contradict `--fw`.
    """

    request: CollectRequest
    recipes: Recipes
    assumptions: Assumptions = field(default_factory=Assumptions)
    _frameworks: dict[Path, Framework] = field(default_factory=dict, init=False)
    _choices: dict[Path, Choice] = field(default_factory=dict, init=False)
    _readings: dict[tuple[Path, str, Window], Reading] = field(default_factory=dict, init=False)
    # Those of other models, by framework.
    _grammars: dict[str, Grammar] = field(default_factory=dict, init=False)

    # --- The framework of a log -------------------------------------------------------------------

    def grammars(self, names: Collection[str]) -> dict[str, Grammar]:
        """Return grammars by framework, without those of invalid recipes."""
        grammars = {}
        for name in sorted(names):
            with suppress(ConfigError):
                grammars[name] = self.recipes.load(name).grammar
        return grammars

    def recognise(self, log: LogFile) -> Framework:
        """Return the framework of a log.

        Raises:
            UnknownLogError: Neither the user, nor the path, nor the lines name exactly one.
            UsageError: The path and the user contradict each other.
        """
        if log.path not in self._frameworks:
            self._frameworks[log.path] = self._find_framework(log)
        return self._frameworks[log.path]

    def _find_framework(self, log: LogFile) -> Framework:
        # The nearest folder that is named after a framework.
        parents = log.path.absolute().parts[-2::-1]
        folder = next((name for name in parents if name in self.recipes.names), "")
        chosen = self.request.known.framework
        if not chosen:
            return self._load_named(log, log.framework or self._find_name(log, folder))
        framework, name = self.recipes.load(chosen), log.framework or chosen
        # A folder may be called `pytorch` for other reasons: its contents decide.
        is_doubtful = name == chosen and not self.request.pattern and folder not in ("", chosen)
        if is_doubtful and find_frameworks(log.path, self.grammars([folder])):
            name = folder
        if name != chosen:
            raise make_contradiction("framework", name, "--fw", chosen, log)
        return framework

    def _load_named(self, log: LogFile, name: str) -> Framework:
        """Return the framework that a path names; it may not have a recipe."""
        try:
            return self.recipes.load(name)
        except ConfigError:
            raise
        except UsageError as error:
            where = printable_path(log.path)
            raise UnknownLogError(error.message, where=where, hint=error.hint) from error

    def _find_name(self, log: LogFile, folder: str) -> str:
        """Return the framework that a folder is named after, or whose lines the log has.

        Lines decide where a name has no documented form: such a folder may have any name.
        """
        if folder and log.form is None:
            return folder
        owners = find_frameworks(log.path, self.grammars(self.recipes.names))
        if folder in owners or (folder and not owners and log.is_wanted):
            return folder
        if len(owners) == 1:
            reason = "only this program prints such lines"
            self.assumptions.add(owners[0], "framework", owners[0], reason, "--fw")
            return owners[0]
        message = "The path names no framework, and it has no line of a known one."
        hint = "Give --fw NAME; hpcbert frameworks lists them."
        if owners:
            message = f"Its lines are those of {' and of '.join(owners)}."
            hint = f"Give --fw {' or --fw '.join(owners)}."
        elif obstacle := find_obstacle(log.path):
            message, hint = f"{obstacle.detail}.", ""
        elif _is_benchmark_log(log.path):
            message = "No recipe reads the MLPerf logs of its program."
            hint = "hpcbert record extract prints minutes and samples/s of a round's folders."
        raise UnknownLogError(message, where=printable_path(log.path), hint=hint)

    # --- Its rule and its window ------------------------------------------------------------------

    def choice(self, log: LogFile) -> Choice:
        """Return the rule and the window of a log whose framework is known."""
        default = Choice(self.recognise(log).grammar.rule(self.request.rule), self.request.window)
        return self._choices.get(log.path, default)

    def choose_rules(self, logs: Sequence[LogFile]) -> None:
        """Choose a rule for each folder of logs, and a window for the logs of each point.

        Logs of DLPerf's names follow its protocol, unless they have no record of the default rule.
        """
        folders = group(
            ((self.recognise(log).name, log.path.parent if log.form is not None else None), log)
            for log in logs
            if not self.recognise(log).grammar.reader
        )
        for (framework, folder), folder_logs in folders.items():
            default = self.choice(folder_logs[0])
            if folder is None and any(self._has_records(log, default) for log in folder_logs):
                continue
            rule = (
                default.rule if self.request.rule else self._choose_rule(folder_logs, default.rule)
            )
            points = group(((log.of_point, log.place), log) for log in folder_logs)
            for point_logs in points.values():
                choice = Choice(rule, self._choose_window(point_logs, rule) or self.request.window)
                for log in point_logs:
                    self._choices[log.path] = choice
                    self._note_choice(framework, choice, default)

    def _note_choice(self, framework: str, choice: Choice, default: Choice) -> None:
        if choice.rule != default.rule:
            reason = f"the default, {default.rule.name}, does not give a number for each log"
            self.assumptions.add(framework, "rule", choice.rule.name, reason, "--rule")
        if choice.window != default.window:
            value, reason = choice.counted.counted, "the protocol's has no number"
            self.assumptions.add(framework, "window", value, reason, "--skip and --iters")

    def _has_records(self, log: LogFile, choice: Choice) -> bool:
        reading = self.read_by(log, choice)
        return bool(self.request.pattern or reading.last or reading.throughput or reading.foreign)

    def list_windows(self, rule: Rule, logs: Sequence[LogFile]) -> Iterator[Window]:
        """Yield the window of the protocol or the user; to the end; from a record to the end."""
        yield self.request.window
        if self.request.window.iters is not None or rule.kind == "footer":
            return
        yield self.request.window._replace(iters=END)
        if self.request.window.skip is None:
            # With the facts of the log, by which counts of tokens are iterations.
            setting = self.read_by(logs[0], Choice(rule, self.request.window)).setting
            places = find_places(logs[0].path, rule.record, setting)[:-1]
            skip = next((place for place in places if place >= setting.skip), setting.skip)
            if skip != setting.skip:
                yield Window(skip, END)

    def _choose_rule(self, logs: Sequence[LogFile], default: Rule) -> Rule:
        """Return the default rule, unless it gives no number.

        Otherwise the first rule that gives a number for all logs, that speaks against no log, or
        that gives a number for some; one with a caution only if no other gives any. If two numbers
        of a log contradict each other, the default stays. Rules that measure the protocol's window
        come before those that go to the end; only the default does both first.
        """
        rules = self.recognise(logs[0]).grammar.rules
        candidates = [rule for rule in rules if rule != default and not rule.caution]
        trials = [(default, slice(None)), *((rule, slice(1)) for rule in candidates)]
        trials += [(rule, slice(1, None)) for rule in candidates]
        # A rule that includes too much time is the last resort; its caution is printed.
        trials += [(rule, slice(None)) for rule in rules if rule.caution and rule.side == "below"]
        ranked: dict[int, Rule] = {}
        for rule, part in trials:
            if ranked and rule.caution:
                break
            windows = [*self.list_windows(rule, logs)][part]
            readings = [self._read_first(log, rule, windows) for log in logs[:_MAX_TRIED]]
            measured = [reading for reading in readings if reading and reading.throughput]
            codes = {reason.code for reading in readings if reading for reason in reading.reasons}
            is_contradicted = codes & _AGAINST_RULE
            is_decided = codes & _FINAL or (measured and not is_contradicted)
            if len(measured) == len(readings) or (rule == default and is_decided):
                return rule
            if measured:
                ranked.setdefault(1 if is_contradicted else 0, rule)
        return ranked[min(ranked)] if ranked else default

    def _read_first(self, log: LogFile, rule: Rule, windows: Sequence[Window]) -> Reading | None:
        """Return the reading by the first window with a number, else by the last."""
        reading = None
        for window in windows:
            reading = self.read_by(log, Choice(rule, window))
            if _is_decided(reading):
                break
        return reading

    def _choose_window(self, logs: Sequence[LogFile], rule: Rule) -> Window | None:
        """Return the first window in which a rule gives a number, or a contradiction, for a log.

        If none does, and the first does not fit the records, it is the first in which a log is cut
        off.
        """
        codes: dict[Window, set[str]] = {}
        for window in self.list_windows(rule, logs):
            readings = [self.read_by(log, Choice(rule, window)) for log in logs[:_MAX_TRIED]]
            if any(map(_is_decided, readings)):
                return window
            codes[window] = {reason.code for reading in readings for reason in reading.reasons}
        if "window" not in next(iter(codes.values())):
            return None
        return next((window for window in codes if "incomplete" in codes[window]), None)

    def suggest(self, log: LogFile) -> tuple[dict[str, list[int]], list[Choice]]:
        """Return the iterations at each kind of record of a log, and ways to read it by a number.

        Rules with a caution are no way, unless other rules check it.
        """
        grammar, setting = self.recognise(log).grammar, self.read_by(log, self.choice(log)).setting
        places = {record.name: find_places(log.path, record, setting) for record in grammar.records}
        choices = []
        for rule in grammar.rules:
            window = _fit_window(rule, places[rule.record.name], setting.skip)
            if window and (rule.cross_check or not rule.caution):
                choices.append(Choice(rule, window))
        return places, [choice for choice in choices if self.read_by(log, choice).throughput]

    # --- Its number -------------------------------------------------------------------------------

    def read_by(self, log: LogFile, choice: Choice) -> Reading:
        """Read a log by a rule in a window.

        Raises:
            UsageError: The path and the user contradict each other.
        """
        key = (log.path, choice.rule.name, choice.window)
        if key not in self._readings:
            self._readings[key] = self._read_uncached(log, choice)
        return self._readings[key]

    def _read_uncached(self, log: LogFile, choice: Choice) -> Reading:
        framework = self.recognise(log)
        grammar = framework.grammar
        if "bert" not in (self.request.known.model or log.model or "bert").lower():
            # The usual length is that of the recipe's models; an image has none.
            if framework.name not in self._grammars:
                self._grammars[framework.name] = replace(grammar, sequence_length=0)
            grammar = self._grammars[framework.name]
        goes_to_end = choice.window.iters == END
        reader = read_to_end if goes_to_end else read
        setting = make_setting(log, self.request.known, choice.window)
        reading = reader(log.path, grammar, choice.rule, setting)
        is_unasked = choice.rule.kind == "footer" or (
            self.request.window.iters is None and goes_to_end
        )
        if not (reading.throughput and is_unasked) or reading.closed:
            return reading
        # Nobody said that the run's end is wherever the log stops.
        detail = ""
        if failure := failures.explain_failure(log.path, grammar):
            detail = f"the log ends with an error: {failure}"
        elif grammar.ends:
            last_line = grammar.ends[0].decode()
            detail = f"the log ends without {last_line}, which the program prints last"
        if not detail:
            return reading
        return reading._replace(throughput=None, reasons=(Reason("incomplete", detail),))


def _fit_window(rule: Rule, places: Sequence[int], skip: int) -> Window | None:
    """Return a window that begins and ends at records, after the warm-up if there are two."""
    if rule.kind == "footer":
        return Window()
    if rule.after.by == "record" and places:
        return Window(skip, places[-1])
    later_places = [place for place in places if place >= skip] or places
    if not later_places or later_places[0] == places[-1]:
        return None
    return Window(later_places[0], places[-1])


def _is_decided(reading: Reading) -> bool:
    """Return whether no other window is tried: there is a number, or a contradiction of two."""
    return bool(reading.throughput) or any(reason.code in _FINAL for reason in reading.reasons)


def _is_benchmark_log(path: Path) -> bool:
    with suppress(NotALogError, OSError):
        return b":::MLLOG " in read_ends(path)[0]
    return False


# --- How a log is read, for people ----------------------------------------------------------------

# Facts are in a log's header, some in its last lines; more is not searched.
_MAX_BYTES = 1 << 26
_MAX_TEXT = 160
_FactKey = tuple[str, FactValue, bool]


@dataclass(frozen=True)
class StatedFact:
    """A fact, the first line that states it, and how many lines state the same.

    Attributes:
        line: Its number in the file, from 1; a line that srun cut counts once. 0: not in the log.
        is_assumed: Whether the line only suggests it.
    """

    name: str
    value: FactValue
    line: int
    text: str
    lines: int
    is_assumed: bool


@dataclass(frozen=True)
class RuleOutcome:
    """What a rule makes of a log in a window, and whether `collect` reads the log by it."""

    rule: str
    window: str
    throughput: float | None
    reasons: tuple[str, ...]
    is_chosen: bool


@dataclass(frozen=True)
class LogExplanation:
    """How a log is read, or why it can't be.

    Attributes:
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
        outcomes = [_try_rule(reader, log, rule, choice) for rule in framework.grammar.rules]
    except UsageError as error:
        return LogExplanation(path, "", f"{error.message} {error.hint}".strip(), named)
    facts = _list_facts(log.path, framework.grammar)
    setting = make_setting(log, reader.request.known, choice.window)
    facts += [
        StatedFact(name, getattr(setting, name), 0, f"of {source}", 1, is_assumed=True)
        for name, source in setting.sources
        if source.endswith(".json")
    ]
    return LogExplanation(path, framework.name, "", named, tuple(facts), tuple(outcomes))


def _try_rule(reader: LogReader, log: LogFile, rule: Rule, choice: Choice) -> RuleOutcome:
    """Return what a rule makes of a log in the first window with a number, else in the last."""
    is_chosen = rule == choice.rule
    outcomes = []
    for window in [choice.window] if is_chosen else reader.list_windows(rule, [log]):
        trial = Choice(rule, window)
        reading = reader.read_by(log, trial)
        reasons = [str(reason) for reason in reading.reasons]
        reasons += [f"{reading.missing} is unknown"] if reading.missing else []
        throughput = None if reasons else reading.throughput
        counted = trial.counted.counted
        outcomes.append(RuleOutcome(rule.name, counted, throughput, tuple(reasons), is_chosen))
    return next((outcome for outcome in outcomes if outcome.throughput), outcomes[-1])


def _list_facts(path: Path, grammar: Grammar) -> list[StatedFact]:
    """Return the facts in a log's lines, in their order; lines that are counted, too.

    Never raises, whatever the path leads to.
    """
    facts = []
    for (name, value, is_assumed), lines in group(_read_facts(path, grammar)).items():
        (number, text), count = lines[0], len(lines)
        shown_text = " ".join(text.decode(errors="replace").split())[:_MAX_TEXT]
        shown_value = count if value == "" else value
        facts.append(StatedFact(name, shown_value, number, shown_text, count, is_assumed))
    return facts


def _read_facts(path: Path, grammar: Grammar) -> Iterator[tuple[_FactKey, tuple[int, bytes]]]:
    """Yield name, value and kind of each fact, and its line; for counted lines no value."""
    texts = tuple(fact.contains for fact in grammar.all_facts)
    bytes_read, lines_read = 0, 1
    with suppress(NotALogError), closing(read_pieces(path)) as pieces:
        for piece in pieces:
            for start, index, _, end in find_lines(piece, texts):
                fact, line = grammar.all_facts[index], cut_line(piece, start, end)[0]
                number = lines_read + piece.count(b"\n", 0, start)
                matches = whole_matches(fact.match, line)
                if matches and fact.counts:
                    yield (f"{fact.counts} (lines)", "", False), (number, line.text)
                for match in matches:
                    for name, text in read_fields(match, fact.numbers).items():
                        value = parse_fact(fact, name, text)
                        if value is not None:
                            yield (name, value, bool(fact.assumed)), (number, line.text)
            bytes_read += len(piece)
            lines_read += piece.count(b"\n")
            if bytes_read > _MAX_BYTES:
                return
