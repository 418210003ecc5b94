"""The runs behind logs that hpcbert never submitted: no manifest, no scheduler, only files."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from hpcbert.campaign.fingerprint import NodeSample
from hpcbert.campaign.foreign import (
    OPTIONS,
    Choice,
    LogReader,
    UnknownLogError,
    UserSettings,
    guess_shape,
    make_unknown,
)
from hpcbert.campaign.pooling import (
    ComparedRun,
    is_same_log,
    make_log_sample,
    refuse_run,
    refuse_unlike_runs,
)
from hpcbert.errors import Refusals, UsageError
from hpcbert.logs import failures
from hpcbert.logs.grammar import Rule
from hpcbert.logs.layout import LeftOut, LogFile, experiment_folder, natural_key, printable_path
from hpcbert.logs.lines import SUFFIXES
from hpcbert.logs.scan import Reading, explain_unread, find_frameworks
from hpcbert.logs.setting import LABELS, model_heading
from hpcbert.model import Measured, Point, Reason, Run, Shape
from hpcbert.results.reduce import FOREIGN, Curves, find_invalid_reasons, make_group
from hpcbert.system.files import size_of
from hpcbert.system.grouping import group, group_sorted
from hpcbert.system.workers import map_in_parallel

# Logs without a number that are read again by all rules, and the records and rules that are named.
_MAX_ADVISED, _MAX_NAMED = 32, 3
_OVERLAP = "logs of several ranks are one run, and runs that share nodes slow each other down"
# A larger number in a file's name is a date or a seed, not the number of a run.
_MAX_RUNS = 100


@dataclass(frozen=True, kw_only=True)
class LogCollection:
    """Reads logs of any framework.

    Attributes:
        is_one_folder: Whether the user named one folder with all logs.
    """

    reader: LogReader
    is_one_folder: bool = False
    _unfit: list[tuple[LogFile, UsageError]] = field(default_factory=list, init=False)
    _copies: list[LeftOut] = field(default_factory=list, init=False)
    _used: dict[tuple[str, str], Rule] = field(default_factory=dict, init=False)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the used rules."""
        return tuple(text for rule in self._used.values() for text in rule.warnings)

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The logs that lack a fact that tables need, and copies."""
        unfit = (
            LeftOut(log.path, f"{error.message} {error.hint}".strip(), wanted=log.is_wanted)
            for log, error in self._unfit
        )
        return (*unfit, *self._copies)

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
        recognised = []
        for log in self._leave_out_copies(logs):
            try:
                self.reader.recognise(log)
                recognised.append(log)
            except UnknownLogError as error:  # noqa: PERF203 - each may be one
                self._unfit.append((log, error))
        self.reader.choose_rules(recognised)
        reads = self._leave_out_files(self._leave_out_tasks(self._read_all(recognised)))
        points = self._group_by_point(self._name_models(self._add_advice(reads)))
        if not (self.reader.request.pattern or self.reader.request.as_repeats):
            points = separate_systems(points, is_one_folder=self.is_one_folder)
        points = join_points(points)
        self._note_assumptions(points)
        curves = Curves(point for point, _ in points)
        numbered_points = []
        for (point, rule), point_reads in points.items():
            try:
                numbered = number_logs(point_reads, as_repeats=self.reader.request.as_repeats)
            except UsageError as error:
                if len(points) == 1:
                    raise
                self._unfit.extend((read.log, error) for read in point_reads)
                continue
            table, choice = make_group(point, curves, rule), self.reader.choice(point_reads[0].log)
            numbered_points.append(
                (Measured(table, point.shape, 0, window=choice.counted), numbered)
            )
        if self._unfit and not (numbered_points or may_be_empty):
            # One error for all logs, with the first log of each reason.
            errors = {(error.message, error.hint): error for _, error in reversed(self._unfit)}
            firsts = [*errors.values()][::-1]
            raise Refusals(firsts) if len(firsts) > 1 else firsts[0]
        return make_points(numbered_points)

    # --- Each log ---------------------------------------------------------------------------------

    def _read_all(self, logs: Sequence[LogFile]) -> list[ReadLog]:
        """Return the logs that could be read; the others are left out."""
        # The modules for the first log are loaded here, once for all processes.
        readings = [self._read_log(log) for log in logs[:1]]
        sizes = [size_of(log.path) for log in logs[1:]]
        readings += map_in_parallel(self._read_log, logs[1:], sizes)
        reads = []
        for log, reading in zip(logs, readings, strict=True):
            framework, rule = self.reader.recognise(log).name, self.reader.choice(log).rule
            self._used.setdefault((framework, rule.name), rule)
            if isinstance(reading, UnknownLogError):
                self._unfit.append((log, reading))
                continue
            model = self.reader.request.known.model or log.model or ""
            reads.append(ReadLog(log, framework, model, rule.name, reading))
        return reads

    def _read_log(self, log: LogFile) -> Reading | UnknownLogError:
        """Read one log, in any process: it leaves only loaded recipes behind."""
        try:
            reading = self._explain(log, self.reader.read_by(log, self.reader.choice(log)))
        except UnknownLogError as error:
            return error
        return make_unknown([reading.missing], log) if reading.missing else reading

    def _explain(self, log: LogFile, reading: Reading) -> Reading:
        """Add the cause to a reading without a number: the run failed, or the file is not a log."""
        codes = {reason.code for reason in reading.reasons}
        if codes & {"no-log", "rehearsal"} or not (codes or reading.missing):
            return reading
        name, grammar = self.reader.recognise(log)[:2]
        causes = failures.add_cause(log.path, grammar, reading.reasons)
        if {reason.code for reason in causes} & {failures.DEVICE, failures.HOST}:
            return reading._replace(reasons=causes)
        grammars = {**self.reader.grammars(self.reader.recipes.names), name: grammar}
        frameworks = find_frameworks(log.path, grammars, assumed=name)
        if not (frameworks or reading.foreign):
            return reading._replace(reasons=causes)
        if "config" in codes and not frameworks:
            return reading._replace(missing="")
        reasons = (explain_unread(log.path, name, frameworks),)
        return reading._replace(reasons=reasons, missing="")

    def _add_advice(self, reads: Sequence[ReadLog]) -> list[ReadLog]:
        """Return the logs; if no log of a framework has a number, with advice on how to get one."""
        valid = {read.framework for read in reads if read.valid}
        unmeasured = [
            read
            for read in reads
            if read.framework not in valid
            and [reason.code for reason in read.reading.reasons[:1]] in (["incomplete"], ["window"])
        ][:_MAX_ADVISED]
        suggestions = [self.reader.suggest(read.log) for read in unmeasured]
        # Runs of several lengths: one window for all of them.
        to_end = len({tuple(choices) for _, choices in suggestions}) > 1
        advised = {}
        for read, (places, choices) in zip(unmeasured, suggestions, strict=True):
            first, *more = read.reading.reasons
            advice = (_describe_records(places), _describe_options(choices, to_end=to_end))
            first = replace(first, detail="; ".join(filter(None, (first.detail, *advice))))
            advised[read.log] = read._replace(reading=read.reading._replace(reasons=(first, *more)))
        return [advised.get(read.log, read) for read in reads]

    def _name_models(self, reads: Sequence[ReadLog]) -> list[ReadLog]:
        """Return the logs; those without a named model get the model that they all state.

        If they state several models, they stay together but are not repeats of each other.
        """
        stated = group_sorted(
            (read.framework, model_heading(read.reading.setting))
            for read in [read for read in reads if read.valid] or reads
        )
        named = []
        for read in reads:
            model = " or ".join(filter(None, stated.get(read.framework, ())))
            model = read.model or model or self.reader.recipes.load(read.framework).model
            named.append(read._replace(model=model))
        return named

    # --- Files that are of a run that another file has --------------------------------------------

    def _leave_out(self, log: LogFile, clause: str, other: Path) -> None:
        text = f"{clause} {printable_path(other)}, which was read"
        self._copies.append(LeftOut(log.path, text, wanted=False))

    def _leave_out_copies(self, logs: Sequence[LogFile]) -> list[LogFile]:
        def name_plain(log: LogFile) -> Path:
            is_packed = log.path.suffix.lower().lstrip(".") in SUFFIXES
            return log.path.with_suffix("") if is_packed else log.path

        # By its name when it is not packed: that log, or else the first packed one.
        named = [(name_plain(log), log) for log in logs]
        firsts: dict[Path, Path] = {}
        for plain, log in sorted(named, key=lambda pair: (pair[1].path != pair[0], pair[1].path)):
            firsts.setdefault(plain, log.path)
        originals = []
        for plain, log in named:
            first = firsts[plain]
            if log.path != first and is_same_log(first, log.path):
                self._leave_out(log, "it is a copy of", first)
            else:
                originals.append(log)
        return originals

    def _leave_out_tasks(self, reads: Sequence[ReadLog]) -> list[ReadLog]:
        """Return the logs, of runs whose tasks wrote a file each only the first.

        Tasks are numbered from 0, and run at the same time; an array's elements need not.
        """
        by_task = sorted((read for read in reads if read.log.run), key=lambda read: read.log.task)
        runs = group(((read.log.path.parent, read.log.run), read) for read in by_task)
        firsts = {key: run_reads[0] for key, run_reads in runs.items() if are_tasks(run_reads)}
        unread = set()
        for log in [*(read.log for read in reads), *(log for log, _ in self._unfit)]:
            first = firsts.get((log.path.parent, log.run))
            if first and first.log != log:
                self._leave_out(log, "it is of another task of the run in", first.log.path)
                unread.add(log)
        self._unfit[:] = [(log, error) for log, error in self._unfit if log not in unread]
        return [read for read in reads if read.log not in unread]

    def _leave_out_files(self, reads: Sequence[ReadLog]) -> list[ReadLog]:
        """Return the logs, and of each folder without a valid one the best file beside them.

        All files of a folder are of one run, and a log in it may be of the same.
        """
        by_rank = sorted(reads, key=lambda read: (not read.valid, read.log.rank))
        folders = group((read.log.path.parent, read) for read in by_rank)
        remaining = {read.log: read for read in reads}
        for first, *later in folders.values():
            files = [read for read in later if read.log.rank or (first.valid and first.log.rank)]
            for read in files:
                self._leave_out(read.log, "it is of the run in", first.log.path)
                del remaining[read.log]
            if len(files) == len(later):
                remaining[first.log] = self._compare_files(first, files)
        return list(remaining.values())

    def _compare_files(self, first: ReadLog, files: Sequence[ReadLog]) -> ReadLog:
        grammar = self.reader.recipes.load(first.framework).grammar
        number = first.reading.throughput
        closing = [rule for rule in grammar.rules if rule.kind == "footer"]
        for read in files:
            if not number or read.framework != first.framework:
                continue
            choices = [Choice(rule, self.reader.request.window) for rule in closing]
            for choice in [self.reader.choice(read.log), *choices]:
                other = self.reader.read_by(read.log, choice).throughput
                tolerance = max(choice.rule.tolerance, grammar.tolerance)
                if other and max(other, number) > min(other, number) * (1 + tolerance):
                    detail = f"{read.log.path.name} beside it has {other:,.2f}"
                    detail = f"{number:,.2f} samples/s, and {detail} by {choice.rule.name}"
                    return first.refuse("contradiction", detail)
        return first

    # --- Their points -----------------------------------------------------------------------------

    def _group_by_point(self, reads: Sequence[ReadLog]) -> PointLogs:
        """Return the logs by point and rule, valid ones first; misfits are left out."""
        points: dict[tuple[Point, str], list[ReadLog]] = {}
        valid_points: set[Point] = set()
        for read in sorted(reads, key=lambda read: not read.valid):
            try:
                length = self.reader.recipes.load(read.framework).length
                point = _find_point(read, valid_points, length)
            except UnknownLogError as error:
                if any(reason.code == "config" for reason in read.reading.reasons):
                    # Contradictory facts hide those that follow.
                    text = f"It has no number ({_join_reasons(read)})."
                    error = UnknownLogError(text, where=error.where)
                self._unfit.append((read.log, error))
                continue
            clash = self._find_clash(read, points.get((point, read.rule), ()))
            if clash:
                self._copies.append(clash)
                continue
            if read.valid:
                valid_points.add(point)
            points.setdefault((point, read.rule), []).append(read)
        return points

    def _find_clash(self, read: ReadLog, reads: Collection[ReadLog]) -> LeftOut | None:
        """Return an invalid log as left out, if it may be another experiment's or a known repeat's.

        Where a layout numbers the runs of each system, only logs of its system clash.
        """
        log = read.log
        if read.valid:
            return None
        if log.is_numbered:
            reads = [candidate for candidate in reads if candidate.log.place == log.place]
        first = next(iter(reads), read)
        twins = [
            candidate
            for candidate in reads
            if (candidate.log.repeat, candidate.log.attempt) == (log.repeat, log.attempt)
        ]
        if not (self.reader.request.as_repeats or are_numbered(read, first)):
            clash, other = "nothing says that it is a repeat of", first
        elif log.repeat is not None and twins:
            clash, other = "it is the same repeat as", twins[0]
        else:
            return None
        reason = f"It has no number ({_join_reasons(read)})"
        if any(entry.code == "config" for entry in read.reading.reasons):
            return LeftOut(log.path, f"{reason}.", wanted=log.is_wanted)
        return LeftOut(log.path, f"{reason}; {clash}", log.is_wanted, other.name)

    def _note_assumptions(self, points: PointLogs) -> None:
        """Note what the numbers rest on and neither the logs nor the user state."""
        assumptions = self.reader.assumptions
        for (point, _), reads in points.items():
            forms = [str(read.log.form) for read in reads if is_numbered_by_job(read)]
            for form in forms if len(forms) > 1 else ():
                reason = "these logs of one point differ only in numbers in their names"
                assumptions.add(point.framework, "repeats", form, reason, "--pattern")
            for read in reads:
                for entry in _list_assumed(read, self.reader.request.known):
                    assumptions.add(point.framework, *entry)


def _join_reasons(read: ReadLog) -> str:
    return "; ".join(map(str, read.reading.reasons))


def _find_point(read: ReadLog, valid_points: Collection[Point], usual_length: int | None) -> Point:
    """Return the point of a log, which an invalid one may know only by the others' facts."""
    setting = read.reading.setting
    if not read.valid:
        candidates = [point for point in valid_points if _is_log_of(read, point, usual_length)]
        if len(candidates) == 1:
            return candidates[0]
    likely, length = guess_shape(setting), setting.sequence_length
    names = [] if likely else ["nodes", "gpus_per_node"]
    names += ["batch_size_per_device", "precision"]
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


def _list_assumed(read: ReadLog, user: UserSettings) -> Iterator[tuple[str, str, str, str]]:
    """Yield what a log's number or place rests on and nobody states: name to option."""
    log, reading = read.log, read.reading
    setting, facts = reading.setting, dict(reading.facts)
    for name, value, reason in reading.assumed:
        yield name, str(value), reason, OPTIONS.get(name, f"--set {name}")
    for key in ("batch_size", "precision", "nodes", "gpus_per_node", "gpus"):
        name = "batch_size_per_device" if key == "batch_size" else key
        is_typed = key != "gpus" and getattr(user, key) is not None
        if key in log.guesses and name not in facts and not is_typed:
            yield name, str(getattr(log, key)), "the file's name states it", OPTIONS[name]
    source = dict(setting.sources).get("nodes", "")
    if source.endswith(".json") and "nodes" not in facts:
        value = f"{setting.nodes} with {setting.gpus_per_node} GPUs each"
        yield "nodes", value, f"{source} states it", OPTIONS["gpus"]
    likely = guess_shape(setting)
    if likely and likely.gpus > 1:
        value = f"{likely.nodes} with {likely.gpus_per_node} GPUs each"
        reason = "only their GPUs are known, and a node usually has 8"
        yield "nodes", value, reason, "--gpus-per-node"
    if not (user.model or log.model or model_heading(setting)):
        yield "model", read.model, "the log states none; it is the recipe's", "--model"
    origins = {
        "sequence_length": "the recipe's",
        "packing": "the only one that its batch sizes allow",
    }
    for name, origin in origins.items():
        size = getattr(setting, name)
        is_stated = name in facts or name in dict(user.settings)
        if size and reading.throughput and not is_stated:
            reason = f"the log does not state it; it is {origin}"
            yield name, str(size), reason, f"--set {name}"


def _describe_records(places: Mapping[str, Sequence[int]]) -> str:
    texts = []
    for name, numbers in places.items():
        shown = [*map(str, numbers)]
        if len(shown) > _MAX_NAMED:
            shown[2:-1] = ["…"]
        if shown:
            texts.append(f"{name} at iteration{'s' * (len(shown) > 1)} {', '.join(shown)}")
    return f"it has {', '.join(texts)}" if texts else ""


def _describe_options(choices: Sequence[Choice], *, to_end: bool) -> str:
    texts = []
    for rule, (skip, iters) in choices[:_MAX_NAMED]:
        window = "" if skip is None else f" --skip {skip} --iters {'end' if to_end else iters}"
        texts.append(f"--rule {rule.name}{window}")
    return f"type {', or '.join(texts)}" if texts else ""


# --- The repeats of a point -----------------------------------------------------------------------


class ReadLog(NamedTuple):
    """One log, read by a rule of a framework."""

    log: LogFile
    framework: str
    model: str
    rule: str
    reading: Reading

    @property
    def valid(self) -> bool:
        """Whether it has a throughput so far."""
        return not self.reading.reasons

    @property
    def name(self) -> str:
        """Its path, for messages."""
        return printable_path(self.log.path)

    def refuse(self, code: str, detail: str) -> ReadLog:
        """Return it without its number, with the only reason."""
        reading = self.reading._replace(throughput=None, reasons=(Reason(code, detail),))
        return self._replace(reading=reading)


PointLogs = Mapping[tuple[Point, str], list[ReadLog]]


def number_logs(reads: Sequence[ReadLog], *, as_repeats: bool) -> dict[int, ReadLog]:
    """Return a point's logs by repeat, from 1; of several attempts the last valid one is used.

    OneFlow numbers its runs from 0. Logs without a number, or from several places, are numbered
    in natural order.

    Raises:
        UsageError: Two logs are the same attempt of the same repeat, or nothing says that they
            are repeats.
    """
    ordered = sorted(reads, key=lambda read: natural_key(str(read.log.path)))
    unnumbered = [read for read in ordered if not are_numbered(ordered[0], read)]
    if unnumbered and not as_repeats:
        raise UsageError(
            f"{ordered[0].name} and {unnumbered[0].name} are of one point, and nothing says that "
            "they are repeats of one experiment.",
            hint="If they are, number them by {repeat} in --pattern, or give --as-repeats. "
            "If not, name in --pattern what differs, or collect them separately.",
        )
    numbers = [read.log.repeat or 0 for read in ordered]
    has_form = any(read.log.form is not None for read in ordered)
    is_ambiguous = has_form and len(set(numbers)) < len(numbers)
    if not unnumbered and not is_ambiguous:
        shift = 0 if min(numbers) else 1
        numbers = [number + shift for number in numbers]
    else:
        runs: list[tuple[object, ...]] = []
        for read in ordered:
            is_alone = read.log.repeat is None or read.log.form is not None
            runs.append((read.log.place, read.log.repeat, read.log.path if is_alone else None))
        places = {run: number for number, run in enumerate(dict.fromkeys(runs), start=1)}
        numbers = [places[run] for run in runs]
    numbered = group(sorted(zip(numbers, ordered, strict=True), key=itemgetter(0)))
    attempts = {number: _choose_attempt(number, same) for number, same in numbered.items()}
    return _refuse_early_ends(attempts)


def are_numbered(read: ReadLog, other: ReadLog) -> bool:
    """Return whether two logs lie in one place and have numbers in their names."""
    is_numbered = None not in (read.log.repeat, other.log.repeat) or is_numbered_by_job(read)
    return read is other or (is_numbered and read.log.place == other.log.place)


def is_numbered_by_job(read: ReadLog) -> bool:
    """Return whether the name differs from those of its series by a number, as Slurm's do."""
    return not read.log.is_numbered and "#" in (read.log.form or "")


def _choose_attempt(repeat: int, reads: list[ReadLog]) -> ReadLog:
    by_attempt: dict[int, ReadLog] = {}
    for read in reads:
        other = by_attempt.setdefault(read.log.attempt, read)
        if other is not read:
            raise UsageError(
                f"{other.name} and {read.name} are both repeat {repeat} of one point.",
                hint="Collect them one after the other, or distinguish them with --pattern.",
            )
    newest_first = [by_attempt[number] for number in sorted(by_attempt, reverse=True)]
    return next((read for read in newest_first if read.valid), newest_first[0])


def _refuse_early_ends(reads: dict[int, ReadLog]) -> dict[int, ReadLog]:
    """Refuse runs that were counted to their end and ended before others of their point.

    A log that states the run's end is whole: runs to convergence differ in length.
    """
    last = max((read.reading.last for read in reads.values() if read.valid), default=0)
    checked = {}
    for repeat, read in reads.items():
        end = read.reading.last
        is_early = read.valid and not read.reading.closed and 0 < end < last
        detail = f"the log ends at iteration {end}, that of another repeat at {last}"
        checked[repeat] = read.refuse("incomplete", detail) if is_early else read
    return checked


def join_points(points: PointLogs) -> PointLogs:
    """Join points that differ only in accumulation or length, if names say they are runs of one."""
    joined: dict[tuple[Point, str], list[ReadLog]] = {}
    similar_points: dict[tuple[Point, str], list[tuple[Point, str]]] = {}
    for (point, rule), reads in points.items():
        base = replace(point, accumulation=1, options=())
        similar = similar_points.setdefault((base, rule), [])
        keys = [key for key in similar if _are_runs_of_one(joined[key], reads)]
        key = keys[0] if keys else (point, rule)
        similar += [] if keys else [key]
        joined.setdefault(key, []).extend(reads)
    return joined


def _are_runs_of_one(reads: Sequence[ReadLog], new_reads: Sequence[ReadLog]) -> bool:
    """Return whether names differ only in the run's number, and no number repeats."""
    places, numbers = [], []
    for part in (reads, new_reads):
        logs = [read.log for read in part]
        places.append({log._replace(path=log.path.parent, repeat=None, attempt=0) for log in logs})
        numbers.append({log.repeat for log in logs})
    return bool(places[0] & places[1]) and not numbers[0] & numbers[1] and None not in numbers[0]


# --- A point from its logs ------------------------------------------------------------------------


def make_points(
    points: Sequence[tuple[Measured, Mapping[int, ReadLog]]],
) -> tuple[tuple[Measured, tuple[NodeSample, ...]], ...]:
    """Give points the runs of their logs, by repeat; return them with the facts of valid runs."""
    accounts = [
        [_make_account(str(point.shape), number, read) for number, read in reads.items()]
        for point, reads in points
    ]
    verdicts = refuse_unlike_runs(accounts, keep_first=True)
    measured = []
    for (point, numbered), verdict, compared in zip(points, verdicts, accounts, strict=True):
        reads = [*numbered.values()]
        runs = _refuse_overlaps(verdict, reads)
        valid = [
            (run, read, account.samples)
            for run, read, account in zip(runs, reads, compared, strict=True)
            if run.valid
        ]
        # A missing number is a missing run: not in a name without a documented form.
        is_complete = all(read.log.form is None or read.log.is_numbered for read in reads)
        all_runs = _fill_gaps(runs) if is_complete else runs
        labels = {label for read in reads if read.valid for label in read.reading.unchecked}
        flags = {
            "accumulation": any((read.reading.setting.accumulation or 1) > 1 for read in reads),
            "unchecked": bool(labels),
        }
        steps = [(run.repeat, read.reading.steps) for run, read, _ in valid if read.reading.steps]
        measured_point = replace(
            point,
            asked=len(all_runs),
            runs=all_runs,
            flags=tuple(flag for flag, is_set in flags.items() if is_set),
            unchecked=tuple(label for label in LABELS if label in labels),
            steps=tuple(steps),
        )
        samples = (sample for _, _, run_samples in valid for sample in run_samples)
        measured.append((measured_point, tuple(samples)))
    return tuple(measured)


def _make_account(point: str, number: int, read: ReadLog) -> ComparedRun:
    reading = read.reading
    facts = dict(reading.stated_facts)
    if reading.setting.accumulation:
        facts["accumulation"] = reading.setting.accumulation
    reasons = find_invalid_reasons(reading.reasons)
    run = Run(
        repeat=number,
        attempt=read.log.attempt,
        throughput=None if reasons else reading.throughput,
        valid=not reasons,
        reasons=reasons,
        state=FOREIGN,
        state_source="none",
        log=read.name,
        flags=reading.flags,
        notes=reading.notes,
    )
    samples = (make_log_sample(point, number, facts),)
    return ComparedRun(point, run, read.log.path, samples, reading.beginning)


def _refuse_overlaps(runs: Sequence[Run], reads: Sequence[ReadLog]) -> tuple[Run, ...]:
    """Refuse runs that were measured at the same time: one run's ranks, or runs that interfered."""
    valid = [index for index, run in enumerate(runs) if run.valid]
    copies: dict[int, Reason] = {}
    overlaps: dict[int, Reason] = {}
    for index, other in combinations(valid, 2):
        # A documented layout, such as MLPerf's, numbers whole runs.
        is_whole = reads[index].log.is_numbered
        span, other_span = reads[index].reading.measured, reads[other].reading.measured
        if span.end and span[:2] == other_span[:2] and is_whole:
            detail = f"its window begins and ends at the same times as that of {reads[index].name}"
            copies.setdefault(other, Reason("duplicate", f"{detail}: one run"))
        elif span.overlaps(other_span, are_whole=is_whole):
            for first, second in ((index, other), (other, index)):
                detail = f"{reads[second].name} was measured at the same time: {_OVERLAP}"
                overlaps.setdefault(first, Reason("shared-nodes", detail))
    reasons = overlaps | copies
    return tuple(refuse_run(run, reasons.get(index)) for index, run in enumerate(runs))


def _fill_gaps(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """Return the runs of a point; a gap in the numbers is a missing run."""
    runs_by_number = {run.repeat: run for run in runs}
    highest = max(runs_by_number)
    if not 1 < len(runs_by_number) < highest <= _MAX_RUNS:
        return runs
    for number in {*range(1, highest + 1)} - {*runs_by_number}:
        detail = f"there are logs of higher numbers, but none of run {number}"
        reasons = (Reason("no-log", detail),)
        runs_by_number[number] = Run(number, 0, None, False, reasons, FOREIGN, "none", "")
    return tuple(runs_by_number[number] for number in sorted(runs_by_number))


# --- Logs of one point that come from several systems or experiments ------------------------------

_RESULT = "result"
# MLPerf's name of the benchmark, below a system's folder.
_BENCHMARK = "bert"
# The logs that may be of one experiment: those of one form in one folder.
_Series = tuple[Path, str]


def separate_systems(points: PointLogs, *, is_one_folder: bool) -> PointLogs:
    """Return points whose logs come from one system each, named in the point's options.

    Logs of DLPerf's names with different numbers, or in folders that the user named, stay together:
    nothing says whether they are one experiment, and numbering refuses them.
    """
    separated: dict[tuple[Point, str], list[ReadLog]] = {}
    for framework in dict.fromkeys(point.framework for point, _ in points):
        own_points = {key: reads for key, reads in points.items() if key[0].framework == framework}
        labels = _label_series(own_points, is_one_folder=is_one_folder)
        for (point, rule), reads in own_points.items():
            for read in reads:
                label = labels.get(_find_series(read.log), "")
                options = (*point.options, ("system", label)) if label else point.options
                system_point = replace(point, options=options)
                separated.setdefault((system_point, rule), []).append(read)
    return separated


def are_tasks(reads: Sequence[ReadLog]) -> bool:
    """Return whether logs whose names have the form `%x_%j_%t` are of one run's tasks."""
    if reads[0].log.task:
        return False
    first_span = reads[0].reading.measured
    spans = [read.reading.measured for read in reads[1:] if read.valid]
    return first_span.end is None or all(map(first_span.overlaps, spans))


def _label_series(points: PointLogs, *, is_one_folder: bool) -> dict[_Series, str]:
    forms: dict[Path, list[str]] = {}
    folders_of_curve: dict[tuple[Point, str], set[Path]] = {}
    for (point, rule), reads in points.items():
        curve = replace(point, shape=Shape(1, 1), accumulation=1), rule
        for read in reads:
            folder, form = _find_series(read.log)
            forms.setdefault(folder, []).append(form)
            if read.log.form is not None:
                folders_of_curve.setdefault(curve, set()).add(folder)
    has_results = sum(_RESULT in folder_forms for folder_forms in forms.values()) > 1
    is_shared = any(_is_shared(reads, is_one_folder=is_one_folder) for reads in points.values())
    # A speedup would compare logs of several folders without a documented form.
    is_curve_shared = any(len(folders) > 1 for folders in folders_of_curve.values())
    if not (has_results or is_shared or is_curve_shared):
        return {}
    root = Path(os.path.commonpath(forms))
    labels = {}
    for folder, folder_forms in forms.items():
        # A system's folder below the common one, without MLPerf's `results`.
        parts = [part for part in folder.relative_to(root).parts if part != "results"]
        path = "/".join(parts) if folder != root else folder.name
        has_forms = len(set(folder_forms)) > 1
        for form in dict.fromkeys(folder_forms):
            words = [path] if len(forms) > 1 or not has_forms else []
            word = "_".join(filter(None, form.replace("#", "").split("_")))
            words += [word] if has_forms else []
            labels[folder, form] = "/".join(words).replace(",", "_")
    return labels


def _is_shared(reads: Collection[ReadLog], *, is_one_folder: bool) -> bool:
    """Return whether logs of one point are certainly of several experiments."""
    pairs = {(_find_series(read.log), read.log.repeat) for read in reads}
    if len({series for series, _ in pairs}) == 1:
        return False
    numbers = [number for _, number in pairs]
    is_disjoint = None not in numbers and len(set(numbers)) == len(numbers)
    return (is_one_folder and not is_disjoint) or any(read.log.form is not None for read in reads)


def _find_series(log: LogFile) -> _Series:
    folder = experiment_folder(log.path.absolute())
    if log.form is None:
        return folder, ""
    if log.form == _RESULT and folder.name.lower().startswith(_BENCHMARK):
        folder = folder.parent
    return folder, log.form
