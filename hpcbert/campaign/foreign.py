"""The runs behind logs that hpcbert never submitted: no manifest, no scheduler, only files."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from hpcbert.campaign.likeness import twins
from hpcbert.campaign.pooling import Numbered, Read, are_numbered, joined, measured, numbered
from hpcbert.campaign.user_settings import (
    UnknownLogError,
    contradiction,
    likely_shape,
    setting_of,
    unknown,
)
from hpcbert.errors import ConfigError, UsageError
from hpcbert.logs import failures
from hpcbert.logs.advice import advice
from hpcbert.logs.detect import kinds, unread
from hpcbert.logs.layout import LeftOut, shown
from hpcbert.logs.models import heading_of
from hpcbert.logs.scan import read, read_on
from hpcbert.logs.setting import END, Setting
from hpcbert.logs.window import counted
from hpcbert.model import Measured, Point, Shape
from hpcbert.results.reduce import Curves, group_of
from hpcbert.system.files import size_of
from hpcbert.system.workers import spread

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from hpcbert.campaign.fingerprint import NodeSample
    from hpcbert.campaign.user_settings import UserSettings
    from hpcbert.logs.grammar import Grammar, Rule
    from hpcbert.logs.layout import LogFile
    from hpcbert.logs.scan import Reading
    from hpcbert.logs.setting import Window
    from hpcbert.model import Counted


# Logs without a number that are read again by all rules.
_ADVISED = 32


class Framework(NamedTuple):
    """How a framework's logs are read.

    Attributes:
        model: The model's name if nothing names it.
    """

    name: str
    grammar: Grammar
    model: str


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
        known: The user's settings for all of them.
        frameworks: Names of all frameworks, to recognise one in a path.
        load: Returns a framework by name.
        rule: Name of a rule, empty for each framework's default.
        window: The window, instead of DLPerf's.
        pattern: How the paths are read; then the name of a folder does not contradict `--fw`.
        as_repeats: Whether all logs of a point are repeats, whatever their names.
    """

    known: UserSettings
    frameworks: Collection[str]
    load: Callable[[str], Framework]
    rule: str
    window: Window
    pattern: str = ""
    as_repeats: bool = False
    _loaded: dict[str, Framework] = field(default_factory=dict, init=False)
    _unfit: list[tuple[LogFile, UsageError]] = field(default_factory=list, init=False)
    _twins: list[LeftOut] = field(default_factory=list, init=False)
    _assumed: set[Shape] = field(default_factory=set, init=False)
    _used: dict[tuple[str, str], Rule] = field(default_factory=dict, init=False)
    # By folder: the framework that it is named after.
    _folders: dict[str, str] = field(default_factory=dict, init=False)
    # By all that paths say about runs: the repeats of a point have one setting.
    _settings: dict[tuple[object, ...], Setting] = field(default_factory=dict, init=False)
    # By all that logs say about their points.
    _points: dict[tuple[object, ...], Point] = field(default_factory=dict, init=False)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the used rules and about assumptions."""
        told = tuple(text for rule in self._used.values() for text in rule.warnings)
        shapes = ", ".join(map(str, sorted(self._assumed, key=lambda shape: shape.gpus)))
        if not shapes:
            return told
        return (
            *told,
            f"nodes are assumed to have 8 GPUs ({shapes}): if not, give --gpus-per-node.",
        )

    def gather(
        self, logs: Sequence[LogFile]
    ) -> tuple[tuple[Measured, tuple[NodeSample, ...]], ...]:
        """Return the points that the logs measured, each with the facts of its valid logs.

        A log with an unknown fact is left out, unless the fact is unknown for all logs.

        Raises:
            UsageError: A required fact is unknown for every log, or two logs are the same repeat.
        """
        points: dict[tuple[Point, str], list[Read]] = {}
        certain: set[Point] = set()
        single = self._without_twins(logs)
        reads = self._called(self._advised(self._reads(single)))
        reads = sorted(reads, key=lambda one: not one.valid)
        for one in reads:
            try:
                # An invalid log may lack facts that the others of its point state.
                likely = [] if one.valid else [point for point in certain if _agrees(one, point)]
                point = likely[0] if len(likely) == 1 else self._point(one)
                if not one.valid:
                    self._refuse_clash(one, points.get((point, one.rule), ()))
            except UnknownLogError as error:
                self._unfit.append((one.log, _true_reason(one, error)))
                continue
            if one.valid:
                certain.add(point)
            if likely_shape(one.reading.setting):
                self._assumed.add(point.shape)
            points.setdefault((point, one.rule), []).append(one)
        if self._unfit and not points:
            raise self._unfit[0][1]
        points = joined(points)
        curves = Curves(point for point, _ in points)
        found = [
            Numbered(
                group_of(point, curves, rule),
                point.shape,
                self._counted(own),
                numbered(own, as_repeats=self.as_repeats),
            )
            for (point, rule), own in points.items()
        ]
        return measured(found)

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The logs that lack a fact that tables need, and packed copies."""
        unfit = (
            LeftOut(log.path, f"{error.message} {error.hint}".strip(), wanted=True)
            for log, error in self._unfit
        )
        return (*unfit, *self._twins)

    def _without_twins(self, logs: Sequence[LogFile]) -> list[LogFile]:
        """Return the logs without compressed copies of others next to them."""
        pairs = twins([log.path for log in logs])
        self._twins.extend(
            LeftOut(path, f"it is a copy of {shown(other)}, which was read", wanted=False)
            for path, other in pairs.items()
        )
        return [log for log in logs if log.path not in pairs]

    def _reads(self, logs: Sequence[LogFile]) -> list[Read]:
        """Return the logs that could be read; the others are left out.

        Raises:
            UsageError: As `gather`.
        """
        # The modules for the first log are loaded here, once for all processes.
        outcomes = [self._outcome(log) for log in logs[:1]]
        outcomes += spread(self._outcome, logs[1:], [size_of(log.path) for log in logs[1:]])
        reads = []
        for log, outcome in zip(logs, outcomes, strict=True):
            if outcome.framework and (outcome.framework, outcome.rule) not in self._used:
                rule = self._load(outcome.framework).grammar.rule(self.rule)
                self._used[outcome.framework, outcome.rule] = rule
            if outcome.reading is None:
                message, where, hint = outcome.unknown
                self._unfit.append((log, UnknownLogError(message, where=where, hint=hint)))
                continue
            model = self.known.model or log.model or ""
            reads.append(Read(log, outcome.framework, model, outcome.rule, outcome.reading))
        return reads

    def _advised(self, reads: Sequence[Read]) -> list[Read]:
        """Return the logs; if none of a framework has a number, with what would give one."""
        valid = {read.framework for read in reads if read.valid}
        lacking = [read for read in reads if read.framework not in valid and _lacks_records(read)]
        lacking = lacking[:_ADVISED]
        details = [self._advice(read, to_end=False) for read in lacking]
        if len(set(details)) > 1:
            # Runs of several lengths: one window for all of them.
            details = [self._advice(read, to_end=True) for read in lacking]
        better = dict(zip([read.log for read in lacking], details, strict=True))
        return [_with_detail(read, better.get(read.log, "")) for read in reads]

    def _advice(self, read: Read, *, to_end: bool) -> str:
        grammar = self._load(read.framework).grammar
        rule, detail = grammar.rule(self.rule), read.reading.reasons[0].detail
        setting = self._setting(read.log)
        return advice(read.log.path, grammar, rule, setting, detail, to_end=to_end)

    def _counted(self, reads: Sequence[Read]) -> Counted:
        usual, window, first = Setting(), self.window, reads[0]
        return counted(
            self._used[first.framework, first.rule],
            usual.skip if window.skip is None else window.skip,
            usual.iters if window.iters is None else window.iters,
        )

    def _outcome(self, log: LogFile) -> _Outcome:
        """Read one log, in any process: it leaves only loaded recipes behind.

        Raises:
            UsageError: An error that concerns all logs.
        """
        used = "", ""
        try:
            framework = self._framework(log)
            rule = framework.grammar.rule(self.rule)
            used = framework.name, rule.name
            setting = self._setting(log)
            reader = read_on if self.window.iters == END else read
            reading = reader(log.path, framework.grammar, rule, setting)
            reading = self._explained(log, framework, reading)
            if reading.missing:
                raise unknown([reading.missing], log)
        except UnknownLogError as error:
            return _Outcome(*used, unknown=(error.message, error.where, error.hint))
        return _Outcome(*used, reading)

    def _refuse_clash(self, read: Read, reads: Collection[Read]) -> None:
        """Leave out an invalid log if it may be another experiment's, or its repeat's other log."""
        first = next(iter(reads), read)
        number = read.log.repeat, read.log.attempt
        same = (one for one in reads if (one.log.repeat, one.log.attempt) == number)
        if not (self.as_repeats or are_numbered(read, first)):
            clash = f"nothing says that it is a repeat of {shown(first.log.path)}"
        elif read.log.repeat is not None and (other := next(same, None)):
            clash = f"{shown(other.log.path)} is the same repeat"
        else:
            return
        message = f"It has no number ({_reasons(read)}); {clash}."
        raise UnknownLogError(message, where=shown(read.log.path))

    def _setting(self, log: LogFile) -> Setting:
        of_point = log.of_point
        if of_point not in self._settings:
            self._settings[of_point] = setting_of(log, self.known, self.window)
        return self._settings[of_point]

    def _point(self, read: Read) -> Point:
        said = read.framework, read.model, read.reading.setting
        if said not in self._points:
            self._points[said] = _point(read)
        return self._points[said]

    def _called(self, reads: Sequence[Read]) -> list[Read]:
        """Return the logs; those without a named model get the model that they all state.

        If they state several models, they stay together but are not repeats of each other.
        """
        stated: dict[str, set[str]] = {}
        for log in [log for log in reads if log.valid] or reads:
            stated.setdefault(log.framework, set()).add(heading_of(log.reading.setting))
        usual = {
            name: " or ".join(sorted(stated.get(name, set()) - {""})) or self._load(name).model
            for name in {log.framework for log in reads}
        }
        return [one if one.model else one._replace(model=usual[one.framework]) for one in reads]

    def _framework(self, log: LogFile) -> Framework:
        told, said = log.framework, self.known.framework
        if told and said and told != said:
            raise contradiction("framework", told, "--fw", said, log)
        framework = self._load(said) if said else self._named(log)
        folder = self._folder(log) if said and not self.pattern else ""
        # A folder may be called `pytorch` for other reasons: its contents decide.
        if folder not in ("", said) and kinds(log.path, self._grammars([folder])):
            raise contradiction("framework", folder, "--fw", said, log)
        return framework

    def _load(self, name: str) -> Framework:
        if name not in self._loaded:
            self._loaded[name] = self.load(name)
        return self._loaded[name]

    def _named(self, log: LogFile) -> Framework:
        """Return the framework that a path names; it may not have a recipe."""
        name = log.framework or self._in_path(log)
        try:
            return self._load(name)
        except ConfigError:
            raise
        except UsageError as error:
            raise UnknownLogError(error.message, where=shown(log.path), hint=error.hint) from error

    def _grammars(self, names: Collection[str]) -> dict[str, Grammar]:
        """Return how to read the logs of some frameworks; an invalid recipe reads none."""
        grammars = {}
        for name in sorted(names):
            with suppress(ConfigError):
                grammars[name] = self._load(name).grammar
        return grammars

    def _folder(self, log: LogFile) -> str:
        """Return the framework that a folder of the path is named after, the nearest one."""
        folder = os.path.dirname(log.path)  # noqa: PTH120 - pathlib takes ten times as long
        if folder not in self._folders:
            above = log.path.absolute().parts[-2::-1]
            self._folders[folder] = next((one for one in above if one in self.frameworks), "")
        return self._folders[folder]

    def _in_path(self, log: LogFile) -> str:
        if folder := self._folder(log):
            return folder
        alike = kinds(log.path, self._grammars(self.frameworks))
        hint = (
            f"Its lines are those of {' or '.join(alike)}: give --fw {alike[0]}." if alike else ""
        )
        raise UnknownLogError(
            "The path names no framework.",
            where=shown(log.path),
            hint=hint or f"Give --fw NAME; known: {', '.join(sorted(self.frameworks))}.",
        )

    def _explained(self, log: LogFile, framework: Framework, reading: Reading) -> Reading:
        """Return why a log has no number: the run lacked something, or the file is not a log."""
        if any(reason.code in ("no-log", "rehearsal") for reason in reading.reasons):
            return reading
        if not reading.reasons and not reading.missing:
            return reading
        blamed = failures.blamed(log.path, framework.grammar, reading.reasons)
        if {one.code for one in blamed} & {failures.DEVICE, failures.HOST}:
            return reading._replace(reasons=blamed)
        grammars = {**self._grammars(self.frameworks), framework.name: framework.grammar}
        alike = kinds(log.path, grammars, own=framework.name)
        if not (alike or reading.foreign):
            return reading._replace(reasons=blamed)
        contradictory = any(reason.code == "config" for reason in reading.reasons)
        if contradictory and not alike:
            return reading._replace(missing="")
        return reading._replace(reasons=(unread(log.path, framework.name, alike),), missing="")


def _lacks_records(read: Read) -> bool:
    reasons = read.reading.reasons
    return bool(reasons) and reasons[0].code in {"incomplete", "window"}


def _with_detail(read: Read, detail: str) -> Read:
    """Return a log with another detail of its first reason; empty for the same."""
    if not detail:
        return read
    first, *more = read.reading.reasons
    reasons = (replace(first, detail=detail), *more)
    return read._replace(reading=read.reading._replace(reasons=reasons))


def _true_reason(read: Read, error: UnknownLogError) -> UnknownLogError:
    """Return why a log is left out: facts that contradict each other hide those that follow."""
    if any(reason.code == "config" for reason in read.reading.reasons):
        return UnknownLogError(f"It has no number ({_reasons(read)}).", where=error.where)
    return error


def _reasons(read: Read) -> str:
    return "; ".join(map(str, read.reading.reasons))


def _point(read: Read) -> Point:
    setting = read.reading.setting
    likely = likely_shape(setting)
    names = ["batch_size_per_device", "precision"]
    names = names if likely else ["nodes", "gpus_per_node", *names]
    if missing := [name for name in names if getattr(setting, name) is None]:
        raise unknown(missing, read.log)
    return Point(
        framework=read.framework,
        model=read.model,
        shape=likely or Shape(setting.need("nodes"), setting.need("gpus_per_node")),
        precision=str(setting.precision),
        batch_size_per_device=setting.need("batch_size_per_device"),
        accumulation=setting.accumulation or 1,
        device="cpu" if setting.device_kind == "cpu" else "gpu",
    )


def _agrees(read: Read, point: Point) -> bool:
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
    return all(told is None or told == its for told, its in pairs)
