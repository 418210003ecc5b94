"""The runs behind logs that hpcbert never submitted: no manifest, no scheduler, only files."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from hpcbert.errors import ConfigError, UsageError
from hpcbert.flows.environment import compared
from hpcbert.flows.likeness import Account, judged, stated
from hpcbert.flows.said import contradiction, setting_of, unknown
from hpcbert.logs.kind import kinds, unread
from hpcbert.logs.layout import shown
from hpcbert.logs.scan import read
from hpcbert.model import Measured, Point, Reason, Run, Shape
from hpcbert.reduce import FOREIGN, Evidence, gate, group_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from hpcbert.flows.said import Known
    from hpcbert.logs.grammar import Grammar, Rule
    from hpcbert.logs.layout import LogFile
    from hpcbert.logs.scan import Reading
    from hpcbert.logs.setting import Window
    from hpcbert.model import Group

# Above this a number in a file's name is a date or a seed, not one of so many runs.
_RUNS_AT_MOST = 100


class Framework(NamedTuple):
    """How a framework's logs are read.

    Attributes:
        model: What a model is called where nothing names it.
    """

    name: str
    grammar: Grammar
    model: str


class _Read(NamedTuple):
    """One log, read."""

    log: LogFile
    framework: Framework
    model: str
    rule: str
    reading: Reading

    @property
    def valid(self) -> bool:
        return not self.reading.reasons


class Reader:
    """Reads logs of whatever framework they are.

    Args:
        known: What a person says about all of them.
        frameworks: Names of all frameworks, to recognise one in a path.
        load: Returns a framework by name.
        rule: Name of a rule, empty for each framework's default.
        window: What to count instead of DLPerf's window.
        pattern: How the paths are read; folders then name no framework against `--fw`.
    """

    def __init__(
        self,
        *,
        known: Known,
        frameworks: Collection[str],
        load: Callable[[str], Framework],
        rule: str,
        window: Window,
        pattern: str = "",
    ) -> None:
        self.known = known
        self.frameworks = frameworks
        self.load = load
        self.rule = rule
        self.window = window
        self.pattern = pattern
        self._loaded: dict[str, Framework] = {}
        self._used: dict[tuple[str, str], Rule] = {}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What must be known of the rules that were used."""
        return tuple(text for rule in self._used.values() for text in rule.warnings)

    def gather(self, logs: Sequence[LogFile]) -> tuple[Measured, ...]:
        """Return the points that the logs measured.

        Raises:
            UsageError: Something that must be known of a log is not, or two are the same repeat.
        """
        reads = [self._read(log) for log in logs]
        certain = {_point(one) for one in reads if one.valid}
        points: dict[tuple[Point, str], list[_Read]] = {}
        for one in reads:
            point = _point(one) if one.valid else _likely_point(one, certain)
            points.setdefault((point, one.rule), []).append(one)
        points = _joined(points)
        curve = [point for point, _ in points]
        numbered = [
            (group_of(point, curve, rule), point.shape, _numbered(own))
            for (point, rule), own in points.items()
        ]
        return _measured(numbered)

    def _read(self, log: LogFile) -> _Read:
        framework = self._framework(log)
        rule = framework.grammar.rule(self.rule)
        self._used[framework.name, rule.name] = rule
        setting = setting_of(log, self.known, self.window)
        reading = read(log.path, framework.grammar, rule, setting)
        reading = self._explained(log, framework, reading)
        if reading.missing:
            raise unknown([reading.missing], log)
        model = self.known.model or log.model or framework.model
        return _Read(log, framework, model, rule.name, reading)

    def _framework(self, log: LogFile) -> Framework:
        told, said = log.framework, self.known.framework
        if told and said and told != said:
            raise contradiction("framework", told, "--fw", said, log)
        framework = self._load(said or told or self._in_path(log))
        folder = self._folder(log) if said and not self.pattern else ""
        # A folder may be called `pytorch` for other reasons: what it holds decides.
        if folder not in ("", said) and kinds(log.path, self._grammars([folder])):
            raise contradiction("framework", folder, "--fw", said, log)
        return framework

    def _load(self, name: str) -> Framework:
        if name not in self._loaded:
            self._loaded[name] = self.load(name)
        return self._loaded[name]

    def _grammars(self, names: Collection[str]) -> dict[str, Grammar]:
        """Return how the logs of some frameworks are read; a recipe that is broken reads none."""
        found = {}
        for name in sorted(names):
            with suppress(ConfigError):
                found[name] = self._load(name).grammar
        return found

    def _folder(self, log: LogFile) -> str:
        """Return the framework that a folder of the path is named after, the nearest one."""
        folders = reversed(log.path.absolute().parts[:-1])
        return next((folder for folder in folders if folder in self.frameworks), "")

    def _in_path(self, log: LogFile) -> str:
        if folder := self._folder(log):
            return folder
        alike = kinds(log.path, self._grammars(self.frameworks))
        hint = f"Its lines are those of {' or '.join(alike)}: say --fw {alike[0]}." if alike else ""
        raise UsageError(
            "The path names no framework.",
            where=shown(log.path),
            hint=hint or f"Say --fw NAME; known: {', '.join(sorted(self.frameworks))}.",
        )

    def _explained(self, log: LogFile, framework: Framework, reading: Reading) -> Reading:
        """Say of a log without a single line of its framework what it is instead."""
        if not (reading.foreign and reading.reasons):
            return reading
        if any(reason.code in ("no-log", "rehearsal") for reason in reading.reasons):
            return reading
        alike = kinds(log.path, self._grammars({*self.frameworks} - {framework.name}))
        return reading._replace(reasons=(unread(log.path, framework.name, alike),), missing="")


def _point(read: _Read) -> Point:
    setting = read.reading.setting
    names = ("nodes", "gpus_per_node", "batch_size_per_device", "precision")
    if missing := [name for name in names if getattr(setting, name) is None]:
        raise unknown(missing, read.log)
    return Point(
        framework=read.framework.name,
        model=read.model,
        shape=Shape(setting.need("nodes"), setting.need("gpus_per_node")),
        precision=str(setting.precision),
        batch_size_per_device=setting.need("batch_size_per_device"),
        accumulation=setting.accumulation or 1,
    )


def _likely_point(read: _Read, points: Collection[Point]) -> Point:
    """Return the one point that a bad log can belong to: it may lack what the others state."""
    likely = [point for point in points if _agrees(read, point)]
    return likely[0] if len(likely) == 1 else _point(read)


def _agrees(read: _Read, point: Point) -> bool:
    setting = read.reading.setting
    pairs = (
        (read.framework.name, point.framework),
        (read.model, point.model),
        (setting.nodes, point.shape.nodes),
        (setting.gpus_per_node, point.shape.gpus_per_node),
        (setting.precision, point.precision),
        (setting.batch_size_per_device, point.batch_size_per_device),
        (setting.accumulation, point.accumulation),
    )
    return all(told is None or told == its for told, its in pairs)


def _numbered(reads: list[_Read]) -> dict[int, _Read]:
    """Return a point's logs by repeat, from 1; of several attempts the last good one counts.

    OneFlow numbers its runs from 0. A log without a number gets the next one that is free.

    Raises:
        UsageError: Two logs are the same attempt of the same repeat.
    """
    first = min((one.log.repeat for one in reads if one.log.repeat is not None), default=1)
    shift = 1 if first == 0 else 0
    numbered: dict[int, list[_Read]] = {}
    for one in reads:
        if one.log.repeat is not None:
            numbered.setdefault(one.log.repeat + shift, []).append(one)
    free = max(numbered, default=0) + 1
    for one in reads:
        if one.log.repeat is None:
            numbered[free] = [one]
            free += 1
    return {repeat: _attempt(repeat, ones) for repeat, ones in sorted(numbered.items())}


def _attempt(repeat: int, reads: list[_Read]) -> _Read:
    by_attempt: dict[int, _Read] = {}
    for one in reads:
        other = by_attempt.setdefault(one.log.attempt, one)
        if other is not one:
            both = f"{shown(other.log.path)} and {shown(one.log.path)}"
            raise UsageError(
                f"{both} are both repeat {repeat} of one point.",
                hint="Collect them one after the other, or tell them apart with --pattern.",
            )
    newest_first = [by_attempt[number] for number in sorted(by_attempt, reverse=True)]
    return next((one for one in newest_first if one.valid), newest_first[0])


def _joined(points: dict[tuple[Point, str], list[_Read]]) -> dict[tuple[Point, str], list[_Read]]:
    """Join points that only accumulation tells apart, where names say they are runs of one."""
    joined: dict[tuple[Point, str], list[_Read]] = {}
    for (point, rule), reads in points.items():
        alike = (
            key
            for key in joined
            if key == (replace(point, accumulation=key[0].accumulation), rule)
            and _are_runs_of_one(joined[key], reads)
        )
        joined.setdefault(next(alike, (point, rule)), []).extend(reads)
    return joined


def _are_runs_of_one(some: list[_Read], others: list[_Read]) -> bool:
    """Say whether names differ in the number of the run alone, and no number is there twice."""
    places = [{_place(one.log) for one in reads} for reads in (some, others)]
    numbers = [{one.log.repeat for one in reads} for reads in (some, others)]
    return bool(places[0] & places[1]) and not numbers[0] & numbers[1] and None not in numbers[0]


def _place(log: LogFile) -> LogFile:
    return log._replace(path=log.path.parent, repeat=None, attempt=0)


_Numbered = tuple["Group", Shape, dict[int, "_Read"]]


def _measured(points: Sequence[_Numbered]) -> tuple[Measured, ...]:
    """Make points of their logs: repeats and points are compared by what their logs state."""
    accounts = [
        [_account(shape, number, read) for number, read in reads.items()]
        for _, shape, reads in points
    ]
    verdicts = judged(accounts, keep_first=True)
    measured = []
    for (group, shape, reads), runs, own in zip(points, verdicts, accounts, strict=True):
        flags = ("accumulation",) if any(_accumulates(one) for one in reads.values()) else ()
        whole = _with_gaps(runs)
        taken = [
            where
            for run, account in zip(runs, own, strict=True)
            if run.valid
            for where in account.taken
        ]
        measured.append((Measured(group, shape, len(whole), whole, flags), taken))
    return compared(measured)


def _account(shape: Shape, number: int, read: _Read) -> Account:
    facts = dict(read.reading.facts)
    if read.reading.setting.accumulation:
        facts["accumulation"] = read.reading.setting.accumulation
    taken = (stated(str(shape), number, facts),)
    return Account(str(shape), _run(number, read), read.log.path, taken)


def _with_gaps(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """Return the runs of a point; a number that is left out is a run that is missing."""
    known = {run.repeat: run for run in runs}
    highest = max(known)
    if not 1 < len(known) < highest <= _RUNS_AT_MOST:
        return runs
    return tuple(known.get(number) or _absent(number) for number in range(1, highest + 1))


def _accumulates(read: _Read) -> bool:
    return (read.reading.setting.accumulation or 1) > 1


def _run(number: int, read: _Read) -> Run:
    reasons = gate(Evidence(state=FOREIGN, exit_code=None, log=read.reading.reasons))
    return Run(
        repeat=number,
        attempt=read.log.attempt,
        throughput=None if reasons else read.reading.throughput,
        valid=not reasons,
        reasons=reasons,
        state=FOREIGN,
        state_source="none",
        log=shown(read.log.path),
    )


def _absent(number: int) -> Run:
    detail = f"there are logs of higher numbers, and none of run {number}"
    return Run(number, 0, None, False, (Reason("no-log", detail),), FOREIGN, "none", "")
