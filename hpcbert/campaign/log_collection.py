"""The runs behind logs that hpcbert never submitted: no manifest, no scheduler, only files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcbert.campaign.fingerprint import NodeSample
from hpcbert.campaign.foreign import (
    OPTIONS,
    Assumption,
    Choice,
    LogReader,
    UnknownLogError,
    UserSettings,
    guess_shape,
    make_unknown,
)
from hpcbert.campaign.pooling import (
    PointLogs,
    ReadLog,
    are_numbered,
    are_tasks,
    is_numbered_by_job,
    is_same_log,
    join_points,
    make_points,
    number_logs,
    separate_systems,
)
from hpcbert.errors import Refusals, UsageError
from hpcbert.logs import failures
from hpcbert.logs.advice import explain_unread, find_frameworks
from hpcbert.logs.grammar import Rule
from hpcbert.logs.layout import LeftOut, LogFile, printable_path
from hpcbert.logs.lines import SUFFIXES
from hpcbert.logs.scan import Reading
from hpcbert.logs.setting import model_heading
from hpcbert.model import Measured, Point, Shape
from hpcbert.results.reduce import Curves, make_group
from hpcbert.system.files import size_of
from hpcbert.system.workers import map_in_parallel


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
        points = self._group_by_point(self._name_models(reads))
        if not (self.reader.pattern or self.as_repeats):
            points = separate_systems(points, is_one_folder=self.is_one_folder)
        points = join_points(points)
        self._note_assumptions(points)
        curves = Curves(point for point, _ in points)
        numbered_points = []
        for (point, rule), point_reads in points.items():
            try:
                numbered = number_logs(point_reads, as_repeats=self.as_repeats)
            except UsageError as error:
                if len(points) == 1:
                    raise
                self._unfit.extend((read.log, error) for read in point_reads)
                continue
            group, choice = make_group(point, curves, rule), self.reader.choice(point_reads[0].log)
            numbered_points.append(
                (Measured(group, point.shape, 0, (), counted=choice.counted), numbered)
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
            model = self.reader.user_settings.model or log.model or ""
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

    def _name_models(self, reads: Sequence[ReadLog]) -> list[ReadLog]:
        """Return the logs; those without a named model get the model that they all state.

        If they state several models, they stay together but are not repeats of each other.
        """
        stated: dict[str, set[str]] = {}
        for read in [read for read in reads if read.valid] or reads:
            stated.setdefault(read.framework, set()).add(model_heading(read.reading.setting))
        named = []
        for read in reads:
            model = " or ".join(sorted(stated.get(read.framework, set()) - {""}))
            model = read.model or model or self.reader.load(read.framework).model
            named.append(read._replace(model=model))
        return named

    # --- Files that are of a run that another file has --------------------------------------------

    def _leave_out(self, log: LogFile, clause: str, other: Path) -> None:
        text = f"{clause} {printable_path(other)}, which was read"
        self._copies.append(LeftOut(log.path, text, wanted=False))

    def _leave_out_copies(self, logs: Sequence[LogFile]) -> list[LogFile]:
        """Return the logs without compressed copies of others next to them."""

        def name_plain(log: LogFile) -> Path:
            is_packed = log.path.suffix.lower().lstrip(".") in SUFFIXES
            return log.path.with_suffix("") if is_packed else log.path

        # By its name when it is not packed: that log, or else the first packed one.
        firsts: dict[Path, Path] = {}
        for log in sorted(logs, key=lambda log: (log.path != name_plain(log), log.path)):
            firsts.setdefault(name_plain(log), log.path)
        originals = []
        for log in logs:
            first = firsts[name_plain(log)]
            if log.path != first and is_same_log(first, log.path):
                self._leave_out(log, "it is a copy of", first)
            else:
                originals.append(log)
        return originals

    def _leave_out_tasks(self, reads: Sequence[ReadLog]) -> list[ReadLog]:
        """Return the logs, of runs whose tasks wrote a file each only the first.

        Tasks are numbered from 0, and run at the same time; an array's elements need not.
        """
        runs: dict[tuple[Path, str], list[ReadLog]] = {}
        for read in sorted(reads, key=lambda read: read.log.task):
            if read.log.run:
                runs.setdefault((read.log.path.parent, read.log.run), []).append(read)
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
        folders: dict[Path, list[ReadLog]] = {}
        for read in sorted(reads, key=lambda read: (not read.valid, read.log.rank)):
            folders.setdefault(read.log.path.parent, []).append(read)
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
        """Return a folder's only run, refused if a file beside it has another number."""
        grammar, number = self.reader.load(first.framework).grammar, first.reading.throughput
        closing = [rule for rule in grammar.rules if rule.kind == "footer"]
        for read in files:
            if not number or read.framework != first.framework:
                continue
            choices = [Choice(rule, self.reader.window) for rule in closing]
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
                length = self.reader.load(read.framework).length
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
        if log.name and log.name.is_numbered:
            reads = [candidate for candidate in reads if candidate.log.place == log.place]
        first = next(iter(reads), read)
        twins = [
            candidate
            for candidate in reads
            if (candidate.log.repeat, candidate.log.attempt) == (log.repeat, log.attempt)
        ]
        if not (self.as_repeats or are_numbered(read, first)):
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
            names = [read.log.name for read in reads if is_numbered_by_job(read)]
            for name in names if len(names) > 1 else ():
                reason = "these logs of one point differ only in numbers in their names"
                form = name.form if name else ""
                assumption = Assumption(point.framework, "repeats", form, reason, "--pattern")
                assumptions[assumption] += 1
            for read in reads:
                for entry in _list_assumed(read, self.reader.user_settings):
                    assumptions[Assumption(point.framework, *entry)] += 1


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
    """Yield what a log's number or its place in a table rests on and nobody states.

    Yields:
        Name, value, reason and the option that overrides it.
    """
    log, reading = read.log, read.reading
    setting, facts = reading.setting, dict(reading.facts)
    for name, value, reason in reading.assumed:
        yield name, str(value), reason, OPTIONS.get(name, f"--set {name}")
    guesses = log.name.guesses if log.name else ()
    for key in ("batch_size", "precision", "nodes", "gpus_per_node", "gpus"):
        name = "batch_size_per_device" if key == "batch_size" else key
        is_typed = key != "gpus" and getattr(user, key) is not None
        if key in guesses and name not in facts and not is_typed:
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
