"""The runs behind logs that hpcbert never submitted: no manifest, no scheduler, only files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from hpcbert.campaign.duplicates import find_compressed_copies
from hpcbert.campaign.fingerprint import NodeSample
from hpcbert.campaign.pooling import (
    NumberedLogs,
    ReadLog,
    are_numbered,
    join_points,
    make_points,
    number_logs,
)
from hpcbert.campaign.recognition import (
    Assumption,
    Assumptions,
    Choice,
    choose_reading,
    list_assumed,
    list_choices,
)
from hpcbert.campaign.system_description import SystemDescription, read_system
from hpcbert.campaign.systems import separate_systems
from hpcbert.campaign.user_settings import (
    UnknownLogError,
    UserSettings,
    guess_shape,
    make_contradiction,
    make_setting,
    make_unknown,
)
from hpcbert.config import places
from hpcbert.config.toml import read as read_toml
from hpcbert.errors import ConfigError, UsageError
from hpcbert.logs import failures
from hpcbert.logs import grammar as grammars
from hpcbert.logs.advice import advise, explain_unread, find_frameworks
from hpcbert.logs.grammar import Grammar, Rule
from hpcbert.logs.layout import LeftOut, LogFile, printable_path
from hpcbert.logs.scan import Reading, read, read_to_end
from hpcbert.logs.setting import END, Setting, Window, model_heading
from hpcbert.logs.window import counted_part
from hpcbert.model import Counted, Measured, Point, Reason, Shape
from hpcbert.results.reduce import Curves, make_group
from hpcbert.system.decode import decode
from hpcbert.system.files import size_of
from hpcbert.system.workers import map_in_parallel

# Logs without a number that are read again by all rules.
_MAX_ADVISED = 32


class Framework(NamedTuple):
    """How a framework's logs are read.

    Attributes:
        model: The model's name if nothing names it.
    """

    name: str
    grammar: Grammar
    model: str


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
        return Framework(folder.name, log, models[0])


class _Outcome(NamedTuple):
    """The result of reading one log.

    Attributes:
        framework, rule: The framework and the rule that were used; empty if unknown.
        unknown: Message, place and hint about an unknown fact, if there is no reading.
    """

    framework: str
    rule: str
    reading: Reading | None = None
    unknown: tuple[str, str, str] = ("", "", "")


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Reads logs of any framework.

    Attributes:
        user_settings: The user's settings for all of them.
        frameworks: Names of all frameworks, to recognise one in a path.
        load: Returns a framework by name.
        rule: Name of a rule, empty for each framework's default.
        window: The window, instead of DLPerf's.
        pattern: How the paths are read; then the name of a folder does not contradict `--fw`.
        as_repeats: Whether all logs of a point are repeats, whatever their names.
        is_one_folder: Whether the user named one folder with all logs.
    """

    user_settings: UserSettings
    frameworks: Collection[str]
    load: Callable[[str], Framework]
    rule: str
    window: Window
    pattern: str = ""
    as_repeats: bool = False
    is_one_folder: bool = False
    _loaded: dict[str, Framework] = field(default_factory=dict, init=False)
    _unfit: list[tuple[LogFile, UsageError]] = field(default_factory=list, init=False)
    _copies: list[LeftOut] = field(default_factory=list, init=False)
    _assumed: set[Shape] = field(default_factory=set, init=False)
    _used: dict[tuple[str, str], Rule] = field(default_factory=dict, init=False)
    # By all that paths say about runs: the repeats of a point have one setting.
    _settings: dict[tuple[object, ...], Setting] = field(default_factory=dict, init=False)
    # By framework and folder, for logs of other names than DLPerf's.
    _choices: dict[tuple[str, Path], Choice] = field(default_factory=dict, init=False)
    _frameworks: dict[Path, Framework] = field(default_factory=dict, init=False)
    assumptions: Assumptions = field(default_factory=Assumptions, init=False)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the used rules and about assumptions."""
        rule_warnings = tuple(text for rule in self._used.values() for text in rule.warnings)
        shapes = ", ".join(map(str, sorted(self._assumed, key=lambda shape: shape.gpus)))
        if not shapes:
            return rule_warnings
        return (
            *rule_warnings,
            f"nodes are assumed to have 8 GPUs ({shapes}): if not, give --gpus-per-node.",
        )

    def gather(
        self, logs: Sequence[LogFile], *, may_be_empty: bool = False
    ) -> tuple[tuple[Measured, tuple[NodeSample, ...]], ...]:
        """Return the points that the logs measured, each with the facts of its valid logs.

        A log with an unknown fact is left out, unless the fact is unknown for all logs.

        Args:
            logs: The logs.
            may_be_empty: Whether to return nothing if all of them are left out.

        Raises:
            UsageError: A required fact is unknown for every log, or two logs are the same repeat.
        """
        points: dict[tuple[Point, str], list[ReadLog]] = {}
        valid_points: set[Point] = set()
        recognized_logs = self._recognize(self._leave_out_copies(logs))
        self._choose_rules(recognized_logs)
        reads = self._name_models(self._add_advice(self._read_all(recognized_logs)))
        reads = sorted(reads, key=lambda read_log: not read_log.valid)
        for read_log in reads:
            try:
                point = _find_point(read_log, valid_points)
                if not read_log.valid:
                    self._refuse_clash(read_log, points.get((point, read_log.rule), ()))
            except UnknownLogError as error:
                self._unfit.append((read_log.log, _choose_error(read_log, error)))
                continue
            if read_log.valid:
                valid_points.add(point)
            if guess_shape(read_log.reading.setting):
                self._assumed.add(point.shape)
            points.setdefault((point, read_log.rule), []).append(read_log)
        if self._unfit and not points and not may_be_empty:
            raise self._unfit[0][1]
        if not (self.pattern or self.as_repeats):
            points = separate_systems(points, is_one_folder=self.is_one_folder)
        points = join_points(points)
        self._note_assumptions(points)
        curves = Curves(point for point, _ in points)
        numbered_points = [
            NumberedLogs(
                make_group(point, curves, rule),
                point.shape,
                self._count(point_reads),
                number_logs(point_reads, as_repeats=self.as_repeats),
            )
            for (point, rule), point_reads in points.items()
        ]
        return make_points(numbered_points)

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The logs that lack a fact that tables need, and packed copies."""
        unfit = (
            LeftOut(log.path, f"{error.message} {error.hint}".strip(), wanted=log.is_wanted)
            for log, error in self._unfit
        )
        return (*unfit, *self._copies)

    def _leave_out_copies(self, logs: Sequence[LogFile]) -> list[LogFile]:
        """Return the logs without compressed copies of others next to them."""
        pairs = find_compressed_copies([log.path for log in logs])
        self._copies.extend(
            LeftOut(path, f"it is a copy of {printable_path(other)}, which was read", wanted=False)
            for path, other in pairs.items()
        )
        return [log for log in logs if log.path not in pairs]

    def _recognize(self, logs: Sequence[LogFile]) -> list[LogFile]:
        """Return the logs whose framework is known, one for each run; the others are left out.

        Raises:
            UsageError: As `gather`.
        """
        recognized = []
        for log in logs:
            with self._leaving_out(log):
                self._frameworks[log.path] = self._framework(log)
                recognized.append(log)
        runs: dict[tuple[Path, str], LogFile] = {}
        for log in sorted(recognized, key=lambda log: log.name.task if log.name else 0):
            if log.name and log.name.run:
                runs.setdefault((log.path.parent, log.name.run), log)
        unread = [log for log in logs if _first_task(log, runs) not in (None, log)]
        for log in unread:
            first = printable_path(_first_task(log, runs).path)  # type: ignore[union-attr]
            text = f"it is of another task of the run in {first}, which was read"
            self._copies.append(LeftOut(log.path, text, wanted=False))
        self._unfit[:] = [(log, error) for log, error in self._unfit if log not in unread]
        return [log for log in recognized if log not in unread]

    @contextmanager
    def _leaving_out(self, log: LogFile) -> Iterator[None]:
        """Leave a log out if a fact about it is unknown."""
        try:
            yield
        except UnknownLogError as error:
            self._unfit.append((log, error))

    def _choose_rules(self, logs: Sequence[LogFile]) -> None:
        """Choose rule and window for each folder's logs of other names than DLPerf's."""
        folders: dict[tuple[str, Path], list[LogFile]] = {}
        for log in logs:
            framework = self._frameworks[log.path]
            if log.name and not framework.grammar.reader:
                folders.setdefault((framework.name, log.path.parent), []).append(log)
        for (name, folder), folder_logs in folders.items():
            grammar = self._load(name).grammar
            default = Choice(grammar.rule(self.rule), self.window)
            choices = list_choices(grammar, default, is_rule_fixed=bool(self.rule))
            choice = choose_reading(folder_logs, choices, default, self._read_by)
            self._choices[name, folder] = choice
            for _ in folder_logs:
                self.assumptions.add_choice(name, choice, default)

    def _choice(self, log: LogFile) -> Choice:
        framework = self._frameworks[log.path]
        default = Choice(framework.grammar.rule(self.rule), self.window)
        return self._choices.get((framework.name, log.path.parent), default)

    def _read_by(self, log: LogFile, choice: Choice) -> Reading:
        """Read a log by a rule in a window.

        Raises:
            UsageError: The path and the user contradict each other.
        """
        grammar = self._frameworks[log.path].grammar
        setting = self._setting(log, choice.window)
        reader = read_to_end if choice.window.iters == END else read
        reading = reader(log.path, grammar, choice.rule, setting)
        is_chosen = self.window.iters is None and choice.window.iters == END
        if not (reading.throughput and is_chosen) or reading.closed:
            return reading
        # The user did not say that the run's end is wherever the log stops.
        failure = failures.explain_failure(log.path, grammar)
        if failure is None:
            return reading
        detail = f"the log ends at iteration {reading.iteration} with an error: {failure}"
        return reading._replace(throughput=None, reasons=(Reason("incomplete", detail),))

    def _read_all(self, logs: Sequence[LogFile]) -> list[ReadLog]:
        """Return the logs that could be read; the others are left out.

        Raises:
            UsageError: As `gather`.
        """
        # The modules for the first log are loaded here, once for all processes.
        outcomes = [self._read_log(log) for log in logs[:1]]
        outcomes += map_in_parallel(
            self._read_log, logs[1:], [size_of(log.path) for log in logs[1:]]
        )
        reads = []
        for log, outcome in zip(logs, outcomes, strict=True):
            if outcome.framework and (outcome.framework, outcome.rule) not in self._used:
                self._used[outcome.framework, outcome.rule] = self._choice(log).rule
            if outcome.reading is None:
                message, where, hint = outcome.unknown
                self._unfit.append((log, UnknownLogError(message, where=where, hint=hint)))
                continue
            model = self.user_settings.model or log.model or ""
            reads.append(ReadLog(log, outcome.framework, model, outcome.rule, outcome.reading))
        return reads

    def _add_advice(self, reads: Sequence[ReadLog]) -> list[ReadLog]:
        """Return the logs; if no log of a framework has a number, with advice on how to get one."""
        valid = {read.framework for read in reads if read.valid}
        unmeasured = [
            read for read in reads if read.framework not in valid and _lacks_records(read)
        ]
        unmeasured = unmeasured[:_MAX_ADVISED]
        details = [self._find_advice(read, to_end=False) for read in unmeasured]
        if len(set(details)) > 1:
            # Runs of several lengths: one window for all of them.
            details = [self._find_advice(read, to_end=True) for read in unmeasured]
        advice_by_log = dict(zip([read.log for read in unmeasured], details, strict=True))
        return [_with_detail(read, advice_by_log.get(read.log, "")) for read in reads]

    def _find_advice(self, read: ReadLog, *, to_end: bool) -> str:
        grammar, choice = self._load(read.framework).grammar, self._choice(read.log)
        setting, detail = self._setting(read.log, choice.window), read.reading.reasons[0].detail
        return advise(read.log.path, grammar, choice.rule, setting, detail, to_end=to_end)

    def _note_assumptions(self, points: Mapping[tuple[Point, str], Sequence[ReadLog]]) -> None:
        """Note what the numbers rest on and neither the logs nor the user state."""
        for (point, _), reads in points.items():
            for read_log in reads:
                for entry in list_assumed(read_log, self.user_settings):
                    self.assumptions.add(Assumption(point.framework, *entry))

    def _count(self, reads: Sequence[ReadLog]) -> Counted:
        usual, first = Setting(), reads[0]
        window = self._choice(first.log).window
        return counted_part(
            self._used[first.framework, first.rule],
            usual.skip if window.skip is None else window.skip,
            usual.iters if window.iters is None else window.iters,
        )

    def _read_log(self, log: LogFile) -> _Outcome:
        """Read one log, in any process: it leaves only loaded recipes behind.

        Raises:
            UsageError: An error that concerns all logs.
        """
        framework, choice = self._frameworks[log.path], self._choice(log)
        names = framework.name, choice.rule.name
        try:
            reading = self._explain(log, framework, self._read_by(log, choice))
            if reading.missing:
                raise make_unknown([reading.missing], log)
        except UnknownLogError as error:
            return _Outcome(*names, unknown=(error.message, error.where, error.hint))
        return _Outcome(*names, reading)

    def _refuse_clash(self, read: ReadLog, reads: Collection[ReadLog]) -> None:
        """Leave out an invalid log if it may be another experiment's, or its repeat's other log."""
        first = next(iter(reads), read)
        number = read.log.repeat, read.log.attempt
        same_repeat = (
            candidate
            for candidate in reads
            if (candidate.log.repeat, candidate.log.attempt) == number
        )
        if not (self.as_repeats or are_numbered(read, first)):
            clash = f"nothing says that it is a repeat of {printable_path(first.log.path)}"
        elif read.log.repeat is not None and (other := next(same_repeat, None)):
            clash = f"{printable_path(other.log.path)} is the same repeat"
        else:
            return
        message = f"It has no number ({_join_reasons(read)}); {clash}."
        raise UnknownLogError(message, where=printable_path(read.log.path))

    def _setting(self, log: LogFile, window: Window) -> Setting:
        key = (log.of_point, window)
        if key not in self._settings:
            system = read_system(log.path.parent) if log.name else SystemDescription()
            self._settings[key] = make_setting(log, self.user_settings, window, system)
        return self._settings[key]

    def _name_models(self, reads: Sequence[ReadLog]) -> list[ReadLog]:
        """Return the logs; those without a named model get the model that they all state.

        If they state several models, they stay together but are not repeats of each other.
        """
        stated: dict[str, set[str]] = {}
        for log in [log for log in reads if log.valid] or reads:
            stated.setdefault(log.framework, set()).add(model_heading(log.reading.setting))
        models = {
            name: " or ".join(sorted(stated.get(name, set()) - {""})) or self._load(name).model
            for name in {log.framework for log in reads}
        }
        return [
            read_log if read_log.model else read_log._replace(model=models[read_log.framework])
            for read_log in reads
        ]

    def _framework(self, log: LogFile) -> Framework:
        path_framework, user_framework = log.framework, self.user_settings.framework
        if path_framework and user_framework and path_framework != user_framework:
            raise make_contradiction("framework", path_framework, "--fw", user_framework, log)
        framework = self._load(user_framework) if user_framework else self._load_named(log)
        folder = self._name_in_folders(log) if user_framework and not self.pattern else ""
        # A folder may be called `pytorch` for other reasons: its contents decide.
        if folder not in ("", user_framework) and find_frameworks(
            log.path, self._grammars([folder])
        ):
            raise make_contradiction("framework", folder, "--fw", user_framework, log)
        return framework

    def _load(self, name: str) -> Framework:
        if name not in self._loaded:
            self._loaded[name] = self.load(name)
        return self._loaded[name]

    def _load_named(self, log: LogFile) -> Framework:
        """Return the framework that a path names; it may not have a recipe."""
        name = log.framework or self._find_name(log)
        try:
            return self._load(name)
        except ConfigError:
            raise
        except UsageError as error:
            raise UnknownLogError(
                error.message, where=printable_path(log.path), hint=error.hint
            ) from error

    def _grammars(self, names: Collection[str]) -> dict[str, Grammar]:
        """Return grammars by framework, without those of invalid recipes."""
        grammars = {}
        for name in sorted(names):
            with suppress(ConfigError):
                grammars[name] = self._load(name).grammar
        return grammars

    def _name_in_folders(self, log: LogFile) -> str:
        """Return the framework that a folder of the path is named after, the nearest one."""
        parents = log.path.absolute().parts[-2::-1]
        return next((name for name in parents if name in self.frameworks), "")

    def _find_name(self, log: LogFile) -> str:
        """Return the framework that a folder is named after, or whose lines the log has.

        Lines decide where a name has no documented form: such a folder may have any name.
        """
        folder = self._name_in_folders(log)
        if folder and log.name is None:
            return folder
        owners = find_frameworks(log.path, self._grammars(self.frameworks))
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
            hint = f"Give --fw NAME; known: {', '.join(sorted(self.frameworks))}."
        raise UnknownLogError(message, where=printable_path(log.path), hint=hint)

    def _explain(self, log: LogFile, framework: Framework, reading: Reading) -> Reading:
        """Add the cause to a reading without a number: the run failed, or the file is not a log."""
        if any(reason.code in ("no-log", "rehearsal") for reason in reading.reasons):
            return reading
        if not reading.reasons and not reading.missing:
            return reading
        causes = failures.add_cause(log.path, framework.grammar, reading.reasons)
        if {reason.code for reason in causes} & {failures.DEVICE, failures.HOST}:
            return reading._replace(reasons=causes)
        grammars = {**self._grammars(self.frameworks), framework.name: framework.grammar}
        frameworks = find_frameworks(log.path, grammars, assumed=framework.name)
        if not (frameworks or reading.foreign):
            return reading._replace(reasons=causes)
        contradictory = any(reason.code == "config" for reason in reading.reasons)
        if contradictory and not frameworks:
            return reading._replace(missing="")
        return reading._replace(
            reasons=(explain_unread(log.path, framework.name, frameworks),), missing=""
        )


def _first_task(log: LogFile, runs: Mapping[tuple[Path, str], LogFile]) -> LogFile | None:
    """Return the log that is read for a run whose tasks wrote a file each; None for others."""
    return runs.get((log.path.parent, log.name.run)) if log.name and log.name.run else None


def _lacks_records(read: ReadLog) -> bool:
    reasons = read.reading.reasons
    return bool(reasons) and reasons[0].code in {"incomplete", "window"}


def _with_detail(read: ReadLog, detail: str) -> ReadLog:
    """Return a log with another detail of its first reason; unchanged if `detail` is empty."""
    if not detail:
        return read
    first, *more = read.reading.reasons
    reasons = (replace(first, detail=detail), *more)
    return read._replace(reading=read.reading._replace(reasons=reasons))


def _choose_error(read: ReadLog, error: UnknownLogError) -> UnknownLogError:
    """Return the error of a left-out log; contradictory facts hide those that follow."""
    if any(reason.code == "config" for reason in read.reading.reasons):
        return UnknownLogError(f"It has no number ({_join_reasons(read)}).", where=error.where)
    return error


def _join_reasons(read: ReadLog) -> str:
    return "; ".join(map(str, read.reading.reasons))


def _find_point(read: ReadLog, valid_points: Collection[Point]) -> Point:
    """Return the point of a log, which an invalid one may know only by the others' facts."""
    if not read.valid:
        candidates = [point for point in valid_points if _is_log_of(read, point)]
        if len(candidates) == 1:
            return candidates[0]
    return _make_point(read)


def _make_point(read: ReadLog) -> Point:
    setting = read.reading.setting
    likely = guess_shape(setting)
    names = ["batch_size_per_device", "precision"]
    names = names if likely else ["nodes", "gpus_per_node", *names]
    if missing := [name for name in names if getattr(setting, name) is None]:
        raise make_unknown(missing, read.log)
    return Point(
        framework=read.framework,
        model=read.model,
        shape=likely or Shape(setting.need("nodes"), setting.need("gpus_per_node")),
        precision=str(setting.precision),
        batch_size_per_device=setting.need("batch_size_per_device"),
        accumulation=setting.accumulation or 1,
        device="cpu" if setting.device_kind == "cpu" else "gpu",
    )


def _is_log_of(read: ReadLog, point: Point) -> bool:
    setting = read.reading.setting
    pairs = (
        (read.framework, point.framework),
        (read.model, point.model),
        (setting.nodes, point.shape.nodes),
        (setting.gpus_per_node, point.shape.gpus_per_node),
        (setting.precision, point.precision),
        (setting.batch_size_per_device, point.batch_size_per_device),
        (setting.accumulation, point.accumulation),
        (setting.device_kind, point.device),
    )
    return all(stated is None or stated == expected for stated, expected in pairs)
