"""Logs that hpcbert never submitted, read one by one: framework, rule, window, known facts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from hpcbert.campaign.recognition import (
    Assumption,
    Assumptions,
    Choice,
    choose_rule,
    choose_window,
)
from hpcbert.campaign.user_settings import (
    SystemDescription,
    UnknownLogError,
    UserSettings,
    make_contradiction,
    make_setting,
    read_system,
)
from hpcbert.config import places
from hpcbert.config.toml import read as read_toml
from hpcbert.errors import ConfigError, UsageError
from hpcbert.logs import failures
from hpcbert.logs import grammar as grammars
from hpcbert.logs.advice import find_frameworks, find_obstacle, find_record
from hpcbert.logs.grammar import Grammar, Rule
from hpcbert.logs.layout import LogFile, printable_path
from hpcbert.logs.lines import NotALogError, read_ends
from hpcbert.logs.scan import Reading, read, read_to_end
from hpcbert.logs.setting import END, Setting, Window
from hpcbert.model import Reason
from hpcbert.system.decode import decode


class Framework(NamedTuple):
    """How a framework's logs are read.

    Attributes:
        model: The model's name if nothing names it.
        length: Tokens of its usual sample; None if the recipe names no usual length.
    """

    name: str
    grammar: Grammar
    model: str
    length: int | None = None


@dataclass(frozen=True)
class Recipes:
    """The frameworks in some folders.

    Attributes:
        folders: As `places.recipe_folders` returns them.
    """

    folders: tuple[Path, ...]

    @cached_property
    def names(self) -> Mapping[str, Path]:
        """The folder of each framework, by its name."""
        return places.list_recipes(self.folders)

    def load(self, name: str) -> Framework:
        """Return a framework's rules for reading logs, from its recipe.

        Raises:
            ConfigError: No framework has that name, or its recipe is invalid.
        """
        folder = self.names.get(name) or places.find_recipe(name, self.folders)
        path = folder / "recipe.toml"
        values = read_toml(path)
        model_names = values.get("models", ["bert"])
        models = decode(tuple[str, ...], model_names, file=str(path), path="models")
        log = grammars.parse(values.get("log", {}), where=str(path))
        option = dict(values.get("options", {})).get("sequence_length", {})
        length = log.sequence_length or dict(option).get("default")
        return Framework(folder.name, log, models[0], length or None)


@dataclass(frozen=True, kw_only=True)
class LogReader:
    """Reads logs one by one.

    Attributes:
        user_settings: The user's settings for all of them.
        recipes: All frameworks, to recognise one in a path or by its lines.
        rule: Name of a rule, empty for each framework's default.
        window: The window, instead of DLPerf's.
        pattern: How the paths are read; then the name of a folder does not contradict `--fw`.
        assumptions: What it assumed so far.
    """

    user_settings: UserSettings
    recipes: Recipes
    rule: str
    window: Window
    pattern: str = ""
    assumptions: Assumptions = field(default_factory=Assumptions)
    _loaded: dict[str, Framework] = field(default_factory=dict, init=False)
    # By all that paths say about runs: the repeats of a point have one setting.
    _settings: dict[tuple[object, ...], Setting] = field(default_factory=dict, init=False)
    _frameworks: dict[Path, Framework] = field(default_factory=dict, init=False)
    _choices: dict[Path, Choice] = field(default_factory=dict, init=False)
    _readings: dict[tuple[Path, str, Window], Reading] = field(default_factory=dict, init=False)

    def recognise(self, log: LogFile) -> Framework:
        """Return the framework of a log.

        Raises:
            UnknownLogError: Neither the user, nor the path, nor the lines name exactly one.
            UsageError: The path and the user contradict each other.
        """
        if log.path not in self._frameworks:
            self._frameworks[log.path] = self._find_framework(log)
        return self._frameworks[log.path]

    def choose_rules(self, logs: Sequence[LogFile]) -> None:
        """Choose a rule for each folder of logs, and a window for the logs of each point.

        Logs of DLPerf's names follow its protocol, unless they have no record of the default rule.
        """
        folders: dict[tuple[str, Path | None], list[LogFile]] = {}
        for log in logs:
            framework = self.recognise(log)
            if not framework.grammar.reader:
                folder = log.path.parent if log.name else None
                folders.setdefault((framework.name, folder), []).append(log)
        for (name, folder), folder_logs in folders.items():
            default = self.choice(folder_logs[0])
            if folder is None and any(self._has_records(log, default) for log in folder_logs):
                continue
            rule = default.rule
            if not self.rule:
                grammar = self.load(name).grammar
                rule = choose_rule(folder_logs, grammar, rule, self._list_windows, self.read_by)
            self._choose_windows(folder_logs, Choice(rule, self.window), default)

    def _choose_windows(self, logs: Sequence[LogFile], choice: Choice, default: Choice) -> None:
        points: dict[object, list[LogFile]] = {}
        for log in logs:
            points.setdefault((log.of_point, log.place), []).append(log)
        for point_logs in points.values():
            window = choose_window(point_logs, choice.rule, self._list_windows, self.read_by)
            point_choice = choice._replace(window=window) if window else choice
            for log in point_logs:
                self._choices[log.path] = point_choice
                self.assumptions.add_choice(self.recognise(log).name, point_choice, default)

    def _has_records(self, log: LogFile, choice: Choice) -> bool:
        reading = self.read_by(log, choice)
        return bool(self.pattern or reading.last or reading.throughput or reading.foreign)

    def _list_windows(self, rule: Rule, logs: Sequence[LogFile]) -> Iterator[Window]:
        """Yield the window of the protocol or the user; to the end; from a record to the end."""
        yield self.window
        if self.window.iters is not None or rule.kind == "footer":
            return
        yield self.window._replace(iters=END)
        if self.window.skip is None:
            # With the facts of the log, by which counts of tokens are iterations.
            setting = self.read_by(logs[0], Choice(rule, self.window)).setting
            skip = find_record(logs[0].path, self.recognise(logs[0]).grammar, rule, setting)
            if skip != setting.skip:
                yield Window(skip, END)

    def choice(self, log: LogFile) -> Choice:
        """Return the rule and the window of a log whose framework is known."""
        default = Choice(self.recognise(log).grammar.rule(self.rule), self.window)
        return self._choices.get(log.path, default)

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
        grammar = self.recognise(log).grammar
        if "bert" not in (self.user_settings.model or log.model or "bert").lower():
            # The usual length is that of the recipe's models; an image has none.
            grammar = replace(grammar, sequence_length=0)
        setting = self.setting(log, choice.window)
        reader = read_to_end if choice.window.iters == END else read
        reading = reader(log.path, grammar, choice.rule, setting)
        is_to_end = choice.rule.kind == "footer" or (
            self.window.iters is None and choice.window.iters == END
        )
        if not (reading.throughput and is_to_end) or reading.closed:
            return reading
        # Nobody said that the run's end is wherever the log stops.
        if detail := _find_early_end(log.path, grammar):
            reasons = (Reason("incomplete", f"the log ends {detail}"),)
            return reading._replace(throughput=None, reasons=reasons)
        return reading

    def setting(self, log: LogFile, window: Window) -> Setting:
        """Return what path, user and system's description state about a log's run."""
        key = (log.of_point, window)
        if key not in self._settings:
            system = read_system(log.path.parent) if log.name else SystemDescription()
            self._settings[key] = make_setting(log, self.user_settings, window, system)
        return self._settings[key]

    def _find_framework(self, log: LogFile) -> Framework:
        path_framework, user_framework = log.framework, self.user_settings.framework
        if path_framework and user_framework and path_framework != user_framework:
            raise make_contradiction("framework", path_framework, "--fw", user_framework, log)
        framework = self.load(user_framework) if user_framework else self._load_named(log)
        folder = self._name_in_folders(log) if user_framework and not self.pattern else ""
        # A folder may be called `pytorch` for other reasons: its contents decide.
        if folder not in ("", user_framework) and find_frameworks(
            log.path, self.grammars([folder])
        ):
            raise make_contradiction("framework", folder, "--fw", user_framework, log)
        return framework

    def load(self, name: str) -> Framework:
        """Return a framework by name, as `Recipes.load`."""
        if name not in self._loaded:
            self._loaded[name] = self.recipes.load(name)
        return self._loaded[name]

    def _load_named(self, log: LogFile) -> Framework:
        """Return the framework that a path names; it may not have a recipe."""
        name = log.framework or self._find_name(log)
        try:
            return self.load(name)
        except ConfigError:
            raise
        except UsageError as error:
            raise UnknownLogError(
                error.message, where=printable_path(log.path), hint=error.hint
            ) from error

    def grammars(self, names: Collection[str]) -> dict[str, Grammar]:
        """Return grammars by framework, without those of invalid recipes."""
        grammars = {}
        for name in sorted(names):
            with suppress(ConfigError):
                grammars[name] = self.load(name).grammar
        return grammars

    def _name_in_folders(self, log: LogFile) -> str:
        """Return the framework that a folder of the path is named after, the nearest one."""
        parents = log.path.absolute().parts[-2::-1]
        return next((name for name in parents if name in self.recipes.names), "")

    def _find_name(self, log: LogFile) -> str:
        """Return the framework that a folder is named after, or whose lines the log has.

        Lines decide where a name has no documented form: such a folder may have any name.
        """
        folder = self._name_in_folders(log)
        if folder and log.name is None:
            return folder
        owners = find_frameworks(log.path, self.grammars(self.recipes.names))
        if folder in owners or (folder and not owners and log.is_wanted):
            return folder
        if len(owners) == 1:
            reason = "only this program prints such lines"
            self.assumptions.add(Assumption(owners[0], "framework", owners[0], reason, "--fw"))
            return owners[0]
        if owners:
            message = f"Its lines are those of {' and of '.join(owners)}."
            hint = f"Give --fw {' or --fw '.join(owners)}."
        else:
            message = "The path names no framework, and it has no line of a known one."
            hint = "Give --fw NAME; hpcbert frameworks lists them."
            if obstacle := find_obstacle(log.path):
                message, hint = f"{obstacle.detail}.", ""
            elif _is_benchmark_log(log.path):
                message = "No recipe reads the MLPerf logs of its program."
                hint = "hpcbert record extract prints minutes and samples/s of a round's folders."
        raise UnknownLogError(message, where=printable_path(log.path), hint=hint)


def _is_benchmark_log(path: Path) -> bool:
    """Return whether a log begins with MLPerf's records."""
    with suppress(NotALogError, OSError):
        return b":::MLLOG " in read_ends(path)[0]
    return False


def _find_early_end(path: Path, grammar: Grammar) -> str:
    """Return how a log without a closing line ends if its run failed; else nothing."""
    if failure := failures.explain_failure(path, grammar):
        return f"with an error: {failure}"
    if grammar.ends:
        return f"without {grammar.ends[0].decode()}, which the program prints last"
    return ""
