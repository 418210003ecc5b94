"""The runs behind logs that hpcbert never submitted: no manifest, no scheduler, only files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from hpcbert.campaign.duplicates import find_compressed_copies
from hpcbert.campaign.fingerprint import NodeSample
from hpcbert.campaign.foreign import Framework, LogReader
from hpcbert.campaign.pooling import (
    NumberedLogs,
    ReadLog,
    are_numbered,
    are_tasks,
    is_numbered_by_job,
    join_points,
    make_points,
    number_logs,
    separate_systems,
)
from hpcbert.campaign.recognition import Assumption, Choice, list_assumed
from hpcbert.campaign.user_settings import (
    UnknownLogError,
    guess_shape,
    make_unknown,
)
from hpcbert.errors import Refusals, UsageError
from hpcbert.logs import failures
from hpcbert.logs.advice import advise, explain_unread, find_frameworks
from hpcbert.logs.grammar import Rule
from hpcbert.logs.layout import LeftOut, LogFile, printable_path
from hpcbert.logs.scan import Reading
from hpcbert.logs.setting import Setting, model_heading
from hpcbert.logs.window import counted_part
from hpcbert.model import Counted, Measured, Point, Reason, Shape
from hpcbert.results.reduce import Curves, make_group
from hpcbert.system.files import size_of
from hpcbert.system.workers import map_in_parallel

# Logs without a number that are read again by all rules.
_MAX_ADVISED = 32


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
class LogCollection:
    """Reads logs of any framework.

    Attributes:
        reader: Reads one log.
        as_repeats: Whether all logs of a point are repeats, whatever their names.
        is_one_folder: Whether the user named one folder with all logs.
    """

    reader: LogReader
    as_repeats: bool = False
    is_one_folder: bool = False
    _unfit: list[tuple[LogFile, UsageError]] = field(default_factory=list, init=False)
    _copies: list[LeftOut] = field(default_factory=list, init=False)
    _assumed: set[Shape] = field(default_factory=set, init=False)
    _used: dict[tuple[str, str], Rule] = field(default_factory=dict, init=False)

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
            may_be_empty: Whether to return nothing if all of them are left out.

        Raises:
            UsageError: A required fact is unknown for every log, or no point has logs that can be
                its repeats.
        """
        points: dict[tuple[Point, str], list[ReadLog]] = {}
        valid_points: set[Point] = set()
        recognised_logs = self._recognise(self._leave_out_copies(logs))
        self.reader.choose_rules(recognised_logs)
        reads = self._leave_out_files(self._leave_out_tasks(self._read_all(recognised_logs)))
        reads = self._name_models(self._add_advice(reads))
        reads = sorted(reads, key=lambda read_log: not read_log.valid)
        for read_log in reads:
            try:
                usual_length = self.reader.load(read_log.framework).length
                point = _find_point(read_log, valid_points, usual_length)
            except UnknownLogError as error:
                self._unfit.append((read_log.log, _choose_error(read_log, error)))
                continue
            clash = self._find_clash(read_log, points.get((point, read_log.rule), ()))
            if clash:
                self._copies.append(clash)
                continue
            if read_log.valid:
                valid_points.add(point)
            if guess_shape(read_log.reading.setting):
                self._assumed.add(point.shape)
            points.setdefault((point, read_log.rule), []).append(read_log)
        if not (self.reader.pattern or self.as_repeats):
            points = separate_systems(points, is_one_folder=self.is_one_folder)
        points = join_points(points)
        self._note_assumptions(points)
        numbered_points = self._number(points)
        if self._unfit and not (numbered_points or may_be_empty):
            raise _join_errors([error for _, error in self._unfit])
        return make_points(numbered_points)

    def _number(self, points: Mapping[tuple[Point, str], Sequence[ReadLog]]) -> list[NumberedLogs]:
        """Return the logs of each point by repeat; those that may not be repeats are left out.

        Raises:
            UsageError: They are those of the only point.
        """
        curves = Curves(point for point, _ in points)
        numbered_points = []
        for (point, rule), reads in points.items():
            try:
                numbered = number_logs(reads, as_repeats=self.as_repeats)
            except UsageError as error:
                if len(points) == 1:
                    raise
                self._unfit.extend((read_log.log, error) for read_log in reads)
                continue
            group, counted = make_group(point, curves, rule), self._count(reads)
            numbered_points.append(NumberedLogs(group, point.shape, counted, numbered))
        return numbered_points

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

    def _recognise(self, logs: Sequence[LogFile]) -> list[LogFile]:
        """Return the logs whose framework is known; the others are left out."""
        recognised = []
        for log in logs:
            with self._leaving_out(log):
                self.reader.recognise(log)
                recognised.append(log)
        return recognised

    @contextmanager
    def _leaving_out(self, log: LogFile) -> Iterator[None]:
        """Leave a log out if a fact about it is unknown."""
        try:
            yield
        except UnknownLogError as error:
            self._unfit.append((log, error))

    def _leave_out_tasks(self, reads: Sequence[ReadLog]) -> list[ReadLog]:
        """Return the logs, of runs whose tasks wrote a file each only the first.

        Tasks are numbered from 0, and run at the same time; an array's elements need not.
        """
        runs: dict[tuple[Path, str], list[ReadLog]] = {}
        for read_log in sorted(reads, key=lambda read_log: read_log.log.task):
            if read_log.log.run:
                runs.setdefault((read_log.log.path.parent, read_log.log.run), []).append(read_log)
        firsts = {key: run_reads[0] for key, run_reads in runs.items() if are_tasks(run_reads)}
        logs = [*(read_log.log for read_log in reads), *(log for log, _ in self._unfit)]
        unread = set()
        for log in logs:
            first = firsts.get((log.path.parent, log.run))
            if first and first.log != log:
                text = f"it is of another task of the run in {printable_path(first.log.path)}"
                self._copies.append(LeftOut(log.path, f"{text}, which was read", wanted=False))
                unread.add(log)
        self._unfit[:] = [(log, error) for log, error in self._unfit if log not in unread]
        return [read_log for read_log in reads if read_log.log not in unread]

    def _leave_out_files(self, reads: Sequence[ReadLog]) -> list[ReadLog]:
        """Return the logs, and of each folder without a valid one the best file beside them.

        All files of a folder are of one run, and a log in it may be of the same.
        """
        folders: dict[Path, list[ReadLog]] = {}
        for read_log in sorted(reads, key=lambda read_log: (not read_log.valid, read_log.log.rank)):
            folders.setdefault(read_log.log.path.parent, []).append(read_log)
        logs = {read_log.log: read_log for read_log in reads}
        for first, *later in folders.values():
            files = [read for read in later if read.log.rank or (first.valid and first.log.rank)]
            for read_log in files:
                text = f"it is of the run in {printable_path(first.log.path)}, which was read"
                self._copies.append(LeftOut(read_log.log.path, text, wanted=False))
                del logs[read_log.log]
            if len(files) == len(later):
                logs[first.log] = self._compare_files(first, files)
        return list(logs.values())

    def _compare_files(self, first: ReadLog, files: Sequence[ReadLog]) -> ReadLog:
        """Return a folder's only run, refused if a file beside it has another number."""
        grammar, number = self.reader.load(first.framework).grammar, first.reading.throughput
        if not number:
            return first
        closing = [rule for rule in grammar.rules if rule.kind == "footer"]
        for read_log in files:
            if read_log.framework != first.framework:
                continue
            choices = [self.reader.choice(read_log.log)]
            choices += [Choice(rule, self.reader.window) for rule in closing]
            for rule, window in choices:
                other = self.reader.read_by(read_log.log, Choice(rule, window)).throughput
                tolerance = max(rule.tolerance, grammar.tolerance)
                if other and max(other, number) > min(other, number) * (1 + tolerance):
                    detail = f"{read_log.log.path.name} beside it has {other:,.2f} by {rule.name}"
                    reasons = (Reason("contradiction", f"{number:,.2f} samples/s, and {detail}"),)
                    reading = first.reading._replace(throughput=None, reasons=reasons)
                    return first._replace(reading=reading)
        return first

    def _read_all(self, logs: Sequence[LogFile]) -> list[ReadLog]:
        """Return the logs that could be read; the others are left out."""
        # The modules for the first log are loaded here, once for all processes.
        outcomes = [self._read_log(log) for log in logs[:1]]
        outcomes += map_in_parallel(
            self._read_log, logs[1:], [size_of(log.path) for log in logs[1:]]
        )
        reads = []
        for log, outcome in zip(logs, outcomes, strict=True):
            if outcome.framework and (outcome.framework, outcome.rule) not in self._used:
                self._used[outcome.framework, outcome.rule] = self.reader.choice(log).rule
            if outcome.reading is None:
                message, where, hint = outcome.unknown
                self._unfit.append((log, UnknownLogError(message, where=where, hint=hint)))
                continue
            model = self.reader.user_settings.model or log.model or ""
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
        grammar, choice = self.reader.load(read.framework).grammar, self.reader.choice(read.log)
        setting, detail = read.reading.setting, read.reading.reasons[0].detail
        return advise(read.log.path, grammar, choice.rule, setting, detail, to_end=to_end)

    def _note_assumptions(self, points: Mapping[tuple[Point, str], Sequence[ReadLog]]) -> None:
        """Note what the numbers rest on and neither the logs nor the user state."""
        for (point, _), reads in points.items():
            names = [read_log.log.name for read_log in reads if is_numbered_by_job(read_log)]
            forms = [name.form for name in names if name]
            for form in forms if len(forms) > 1 else ():
                reason = "these logs of one point differ only in numbers in their names"
                assumption = Assumption(point.framework, "repeats", form, reason, "--pattern")
                self.reader.assumptions.add(assumption)
            for read_log in reads:
                for entry in list_assumed(read_log, self.reader.user_settings):
                    self.reader.assumptions.add(Assumption(point.framework, *entry))

    def _count(self, reads: Sequence[ReadLog]) -> Counted:
        usual, first = Setting(), reads[0]
        window = self.reader.choice(first.log).window
        return counted_part(
            self._used[first.framework, first.rule],
            usual.skip if window.skip is None else window.skip,
            usual.iters if window.iters is None else window.iters,
        )

    def _read_log(self, log: LogFile) -> _Outcome:
        """Read one log, in any process: it leaves only loaded recipes behind."""
        framework, choice = self.reader.recognise(log), self.reader.choice(log)
        names = framework.name, choice.rule.name
        try:
            reading = self._explain(log, framework, self.reader.read_by(log, choice))
            if reading.missing:
                raise make_unknown([reading.missing], log)
        except UnknownLogError as error:
            return _Outcome(*names, unknown=(error.message, error.where, error.hint))
        return _Outcome(*names, reading)

    def _find_clash(self, read: ReadLog, reads: Collection[ReadLog]) -> LeftOut | None:
        """Return an invalid log as left out, if it may be another experiment's or a known repeat's.

        Where a layout numbers the runs of each system, only logs of its system clash.
        """
        if read.log.name and read.log.name.is_numbered:
            reads = [candidate for candidate in reads if candidate.log.place == read.log.place]
        first = next(iter(reads), read)
        number = read.log.repeat, read.log.attempt
        same_repeat = (
            candidate
            for candidate in reads
            if (candidate.log.repeat, candidate.log.attempt) == number
        )
        if read.valid:
            return None
        if not (self.as_repeats or are_numbered(read, first)):
            clash, other = "nothing says that it is a repeat of", first
        elif read.log.repeat is not None and (twin := next(same_repeat, None)):
            clash, other = "it is the same repeat as", twin
        else:
            return None
        reason = f"It has no number ({_join_reasons(read)})"
        if any(entry.code == "config" for entry in read.reading.reasons):
            return LeftOut(read.log.path, f"{reason}.", wanted=read.log.is_wanted)
        other_path = printable_path(other.log.path)
        return LeftOut(read.log.path, f"{reason}; {clash}", read.log.is_wanted, other_path)

    def _name_models(self, reads: Sequence[ReadLog]) -> list[ReadLog]:
        """Return the logs; those without a named model get the model that they all state.

        If they state several models, they stay together but are not repeats of each other.
        """
        stated: dict[str, set[str]] = {}
        for log in [log for log in reads if log.valid] or reads:
            stated.setdefault(log.framework, set()).add(model_heading(log.reading.setting))
        models = {
            name: " or ".join(sorted(stated.get(name, set()) - {""}))
            or self.reader.load(name).model
            for name in {log.framework for log in reads}
        }
        return [
            read_log if read_log.model else read_log._replace(model=models[read_log.framework])
            for read_log in reads
        ]

    def _explain(self, log: LogFile, framework: Framework, reading: Reading) -> Reading:
        """Add the cause to a reading without a number: the run failed, or the file is not a log."""
        if any(reason.code in ("no-log", "rehearsal") for reason in reading.reasons):
            return reading
        if not reading.reasons and not reading.missing:
            return reading
        causes = failures.add_cause(log.path, framework.grammar, reading.reasons)
        if {reason.code for reason in causes} & {failures.DEVICE, failures.HOST}:
            return reading._replace(reasons=causes)
        grammars = {
            **self.reader.grammars(self.reader.recipes.names),
            framework.name: framework.grammar,
        }
        frameworks = find_frameworks(log.path, grammars, assumed=framework.name)
        if not (frameworks or reading.foreign):
            return reading._replace(reasons=causes)
        contradictory = any(reason.code == "config" for reason in reading.reasons)
        if contradictory and not frameworks:
            return reading._replace(missing="")
        return reading._replace(
            reasons=(explain_unread(log.path, framework.name, frameworks),), missing=""
        )


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


def _join_errors(errors: Sequence[UsageError]) -> UsageError:
    """Return one error for all logs, with the first log of each reason."""
    firsts = list({(error.message, error.hint): error for error in reversed(errors)}.values())
    return Refusals(firsts[::-1]) if len(firsts) > 1 else firsts[0]


def _choose_error(read: ReadLog, error: UnknownLogError) -> UnknownLogError:
    """Return the error of a left-out log; contradictory facts hide those that follow."""
    if any(reason.code == "config" for reason in read.reading.reasons):
        return UnknownLogError(f"It has no number ({_join_reasons(read)}).", where=error.where)
    return error


def _join_reasons(read: ReadLog) -> str:
    return "; ".join(map(str, read.reading.reasons))


def _find_point(read: ReadLog, valid_points: Collection[Point], usual_length: int | None) -> Point:
    """Return the point of a log, which an invalid one may know only by the others' facts."""
    if not read.valid:
        candidates = [point for point in valid_points if _is_log_of(read, point, usual_length)]
        if len(candidates) == 1:
            return candidates[0]
    return _make_point(read, usual_length)


def _make_point(read: ReadLog, usual_length: int | None) -> Point:
    setting = read.reading.setting
    length = setting.sequence_length
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
        # As a campaign's point has it: an option is part of it if it is not the recipe's default.
        options=(("sequence_length", length),) if length and length != usual_length else (),
    )


def _is_log_of(read: ReadLog, point: Point, usual_length: int | None) -> bool:
    setting = read.reading.setting
    length = dict(point.options).get("sequence_length", usual_length)
    pairs = (
        (read.framework, point.framework),
        (read.model, point.model),
        (setting.nodes, point.shape.nodes),
        (setting.gpus_per_node, point.shape.gpus_per_node),
        (setting.precision, point.precision),
        (setting.batch_size_per_device, point.batch_size_per_device),
        (setting.accumulation, point.accumulation),
        (setting.device_kind, point.device),
        (setting.sequence_length, length),
    )
    return all(stated is None or stated == expected for stated, expected in pairs)
