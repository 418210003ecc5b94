"""The runs of a campaign: the valid attempt of each, how it ended, and what its log says.

For each repeat, find its state and its attempts, choose one (`attempts`), read its log, and turn
every objection to the number into a reason (`_Judge`). Then compare repeats with each other: on one
node at one time (`node_sharing`), and those of one point (`pooling`).
Reasons are only ever added; nothing makes an invalid run valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcbert.campaign import evidence, store
from hpcbert.campaign.attempts import AskStates, History, RecordedStates, find_states, read_history
from hpcbert.campaign.evidence import RecordComparison
from hpcbert.campaign.fingerprint import (
    ENDING,
    Fingerprint,
    NodeSample,
    compare_points,
    list_nodes,
    name_record,
    read_nodes,
    read_power,
)
from hpcbert.campaign.node_sharing import NearbyCampaigns, refuse_shared
from hpcbert.campaign.pooling import ComparedRun, make_log_sample, refuse_unlike_runs
from hpcbert.campaign.record import Event, RepeatRecord, Stamp, Step
from hpcbert.campaign.repeats import Key, Repeat, TrackedCampaign
from hpcbert.config.toml import read as read_toml
from hpcbert.errors import format_count
from hpcbert.logs import failures
from hpcbert.logs import grammar as grammars
from hpcbert.logs.grammar import RECORDED, Grammar, Rule
from hpcbert.logs.scan import Reading, read, read_to_end
from hpcbert.logs.setting import END, Setting, Window, model_facts
from hpcbert.logs.stamps import QUARTERS, TimeSpan, explain_mismatch, read_stamps
from hpcbert.logs.window import counted_part
from hpcbert.model import (
    Adaptive,
    Array,
    Counted,
    Group,
    Measured,
    Point,
    Protocol,
    Reason,
    Run,
    Sampled,
    Steps,
    valid_throughputs,
)
from hpcbert.results.interval import is_precise
from hpcbert.results.reduce import Curves, Evidence, find_invalid_reasons, make_group
from hpcbert.slurm.hostlist import fold
from hpcbert.slurm.states import Kind, RepeatState
from hpcbert.system.workers import map_in_parallel

# Seconds by which a clock may drift within a run: it is read in hundredths.
_MAX_DRIFT = 0.5
# Seconds by which the file server's clock may differ from the controller's.
_SERVER_SLACK = 60.0
# Larger than any size that a search tries.
_MAX_SIZE = 1 << 24


@dataclass(frozen=True)
class JudgedRepeat:
    """One repeat of a campaign, judged.

    Attributes:
        array: The array that it was submitted in last.
        history: All its attempts; the newest need not be the valid one.
        run: The run for the table.
        fingerprints: The fingerprints of its nodes, as far as they were written.
        facts: What its log says about itself.
        steps: The durations of its iterations, as far as the log has them.
    """

    array: Array
    history: History
    run: Run
    fingerprints: tuple[Fingerprint, ...] = ()
    facts: tuple[tuple[str, int | str], ...] = ()
    steps: Steps | None = None

    @property
    def key(self) -> Key:
        """Name of its array, and its number."""
        return self.array.name, self.history.number

    @property
    def unneeded(self) -> bool:
        """Whether it did not run because the repeats before it were enough."""
        return self.history.counted.state.kind is Kind.UNNEEDED

    @property
    def samples(self) -> tuple[NodeSample, ...]:
        """The facts of its nodes and of its log."""
        shape, number = str(self.array.point.shape), self.history.number
        nodes = (NodeSample(shape, number, fingerprint) for fingerprint in self.fingerprints)
        return (*nodes, make_log_sample(shape, number, dict(self.facts)))


@dataclass(frozen=True)
class Gathered:
    """A campaign's points and what they were made from.

    Attributes:
        comparison: The comparison with the evidence on record.
        standard: Whether it is made with the recipe's default rule and the protocol's window.
        samples: The fingerprints of each point's valid runs, in the order of the points.
        stamps: Sizes and times of logs and status files before they were read.
    """

    points: tuple[Measured, ...]
    repeats: tuple[JudgedRepeat, ...]
    rule: Rule
    warnings: tuple[str, ...]
    comparison: RecordComparison
    standard: bool
    samples: tuple[tuple[NodeSample, ...], ...] = ()
    stamps: Mapping[str, Stamp] = field(default_factory=dict)

    @property
    def complete(self) -> frozenset[Point]:
        """The points with a median as precise as requested, even if repeats failed."""
        points = dict.fromkeys(repeat.array.point for repeat in self.repeats)
        return frozenset(
            point
            for point, measured in zip(points, self.points, strict=True)
            if measured.adaptive
            and is_precise(valid_throughputs(measured.runs), measured.adaptive.precision_of_median)
        )

    @property
    def states(self) -> dict[Key, RepeatState]:
        """The states that it was made with, to make it again by another rule."""
        return {repeat.key: repeat.history.full_state for repeat in self.repeats}


def gather(
    watched: TrackedCampaign,
    *,
    rule: str,
    window: Window,
    states: AskStates,
    with_nearby: bool = True,
    nearby: NearbyCampaigns | None = None,
    trusted: bool = False,
    point: str = "",
) -> Gathered:
    """Judge every repeat of a campaign.

    Args:
        rule: Name of a rule of its recipe; empty for the default.
        window: The window to use instead of the protocol's.
        states: Asks the scheduler; called only for what the directory does not have.
        with_nearby: Whether to look in the campaigns next to it for runs that shared its nodes.
        trusted: Whether to use files that have changed since the evidence was recorded.
        point: Key of the only point to judge; empty for all.

    Raises:
        UsageError: The recipe has no such rule, or the directory lacks its recipe.
    """
    grammar, defaults = _read_recipe(watched)
    chosen_rule = grammar.rule(rule)
    recorded = RecordedStates(watched.directory)
    newest_states, warnings = find_states(watched, states, recorded)
    # Before any log is read: a log that is written to from now on has no number.
    stamps = evidence.read_stamps(watched.directory)
    comparison = RecordComparison() if trusted else evidence.compare_with_record(watched)
    judge = _Judge(watched, grammar, defaults, chosen_rule, window, comparison.changed)
    histories = [
        (repeat, read_history(repeat, newest_states[repeat.key], recorded))
        for repeat in watched.repeats
        if point in ("", repeat.array.point.key)
    ]
    repeats = judge.judge_all(histories, stamps)
    nearby = (nearby or NearbyCampaigns()) if with_nearby else None
    points, sharing_warnings = _group_by_point(watched, repeats, nearby)
    samples = tuple(_list_samples(repeats) for repeats in points.values())
    protocol = watched.campaign.protocol
    whole_windows = (Window(), Window(protocol.skip, _last_iteration(protocol)))
    undecided = warn_about_undecided(watched)
    return Gathered(
        compare_points(zip(judge.measure(points), samples, strict=True)),
        tuple(repeat for repeats in points.values() for repeat in repeats),
        chosen_rule,
        (*chosen_rule.warnings, *warnings, *undecided, *sharing_warnings),
        comparison,
        chosen_rule == grammar.rule("") and window in whole_windows,
        samples,
        stamps,
    )


def _last_iteration(protocol: Protocol) -> int:
    """Return where a protocol's window ends: of one in seconds, the run alone says where."""
    return END if protocol.window_seconds else protocol.iters


def _group_by_point(
    watched: TrackedCampaign, repeats: Sequence[JudgedRepeat], nearby: NearbyCampaigns | None
) -> tuple[dict[Point, list[JudgedRepeat]], tuple[str, ...]]:
    """Return each point's repeats, without runs that shared nodes or differ, and warnings."""
    repeats = tuple(repeats)
    runs, warnings = refuse_shared(watched, {repeat.key: repeat.run for repeat in repeats}, nearby)
    points: dict[Point, list[JudgedRepeat]] = {}
    for repeat in repeats:
        points.setdefault(repeat.array.point, []).append(replace(repeat, run=runs[repeat.key]))
    return _refuse_unlike(watched, points), warnings


def _list_samples(repeats: Sequence[JudgedRepeat]) -> tuple[NodeSample, ...]:
    return tuple(sample for repeat in repeats if repeat.run.valid for sample in repeat.samples)


def _read_recipe(watched: TrackedCampaign) -> tuple[Grammar, Mapping[str, object]]:
    """Return the grammar and the options' defaults of the campaign's copy of the recipe."""
    path = watched.directory / store.RECIPE
    values = read_toml(path)
    grammar = grammars.parse(values.get("log", {}), where=str(path))
    # One campaign, one device.
    device = watched.campaign.arrays[0].point.device
    if rule := _get_nested(values, "on", device, "rule"):
        grammar = grammar.preferring(str(rule))
    seconds = max(grammar.shortest_seconds, watched.campaign.protocol.window_seconds)
    grammar = replace(grammar, shortest_seconds=seconds)
    return grammar, {name: _get_nested(values, "options", name, "default") for name in RECORDED}


def _get_nested(values: object, *keys: str) -> object:
    """Return the value under some keys of nested tables; None if a key is missing."""
    for key in keys:
        values = values.get(key) if isinstance(values, dict) else None
    return values


def _refuse_changing(
    judged_repeat: JudgedRepeat, before: Mapping[str, Stamp], after: Mapping[str, Stamp]
) -> JudgedRepeat:
    """Return a repeat; it is invalid if its files were written to while they were read."""
    history, run = judged_repeat.history, judged_repeat.run
    files = (run.log, history.counted.array.status(history.number))
    changed_files = [name for name in files if before.get(name) != after.get(name)]
    if not changed_files or not run.valid:
        return judged_repeat
    reasons = tuple(
        Reason("changed", f"{name}: it was written to while it was read") for name in changed_files
    )
    refused = replace(run, throughput=None, valid=False, reasons=reasons)
    return replace(judged_repeat, run=refused)


def _refuse_unlike(
    watched: TrackedCampaign, points: Mapping[Point, Sequence[JudgedRepeat]]
) -> dict[Point, list[JudgedRepeat]]:
    """Refuse repeats of a point that are copies, or belong to another experiment."""
    accounts = [
        [
            ComparedRun(
                str(point.shape), repeat.run, watched.directory / repeat.run.log, repeat.samples
            )
            for repeat in repeats
        ]
        for point, repeats in points.items()
    ]
    verdicts = refuse_unlike_runs(accounts, keep_first=False)
    return {
        point: [replace(repeat, run=run) for repeat, run in zip(repeats, runs, strict=True)]
        for (point, repeats), runs in zip(points.items(), verdicts, strict=True)
    }


@dataclass(frozen=True)
class _Judge:
    """Judges the repeats of one campaign.

    Attributes:
        defaults: The recipe's defaults of its options that are facts of a log too.
        changed: What differs from the evidence on record.
    """

    watched: TrackedCampaign
    grammar: Grammar
    defaults: Mapping[str, object]
    rule: Rule
    window: Window
    changed: tuple[evidence.Deviation, ...]

    @property
    def counted(self) -> Counted:
        """The measured part of each run."""
        setting = self._setting(self.watched.campaign.arrays[0].point)
        return counted_part(self.rule, setting.skip, setting.iters)

    def judge_all(
        self, histories: Sequence[tuple[Repeat, History]], stamps: dict[str, Stamp]
    ) -> list[JudgedRepeat]:
        """Return all repeats, judged; add the stamps that their files had when they were read."""
        directory = self.watched.directory
        sizes = [stamps.get(self.log(*pair), (0, 0))[0] for pair in histories]
        readings = map_in_parallel(self.read, histories, sizes)
        repeats = [
            self.repeat(*pair, reading) for pair, reading in zip(histories, readings, strict=True)
        ]
        # A status file may have been read earlier, when its repeat was asked about.
        stamps |= self.watched.records.stamps(directory)
        present_stamps = evidence.read_stamps(directory)
        return [_refuse_changing(repeat, stamps, present_stamps) for repeat in repeats]

    def measure(self, points: Mapping[Point, Sequence[JudgedRepeat]]) -> list[Measured]:
        """Return the points with their runs."""
        # One campaign, one device: a run without a log belongs to the same table.
        device_kinds = (
            dict(repeat.facts).get("device_kind")
            for repeats in points.values()
            for repeat in repeats
        )
        device_kind = next((str(kind) for kind in device_kinds if kind), None)
        curves = Curves(apply_found_size(self.watched, point) for point in points)
        return [
            self._measure_point(point, repeats, curves, device_kind)
            for point, repeats in points.items()
        ]

    def _measure_point(
        self,
        point: Point,
        repeats: Sequence[JudgedRepeat],
        curves: Curves,
        device_kind: str | None,
    ) -> Measured:
        sized_point = apply_found_size(self.watched, point)
        group = make_group(sized_point, curves, self.rule.name, stated=device_kind)
        needed = [repeat for repeat in repeats if not repeat.unneeded]
        unneeded = [repeat.run.repeat for repeat in repeats if repeat.unneeded]
        return Measured(
            mark_largest(point, group),
            point.shape,
            asked=len(needed),
            runs=tuple(repeat.run for repeat in needed),
            adaptive=make_adaptive(self.watched.campaign.protocol, unneeded),
            flags=("accumulation",) if sized_point.accumulation > 1 else (),
            counted=self.counted,
            steps=tuple(
                (repeat.run.repeat, repeat.steps)
                for repeat in repeats
                if repeat.run.valid and repeat.steps
            ),
        )

    def log(self, repeat: Repeat, history: History) -> str:
        """Return the path of the counted attempt's log, relative to the campaign."""
        directory, attempt = self.watched.directory, history.counted.state.attempt
        return str(
            store.log_path(directory, repeat.array, repeat.number, attempt).relative_to(directory)
        )

    def read(self, pair: tuple[Repeat, History]) -> Reading:
        """Read the log of a repeat, in any process."""
        repeat, history = pair
        # The log of a running repeat is not read: its numbers are not those of a whole run.
        kind = history.counted.state.kind
        if not kind.over or kind is Kind.UNNEEDED or self.watched.campaign.rehearse:
            return Reading(None)
        setting = self._setting(repeat.array.point)
        reader = read_to_end if setting.iters == END else read
        path = self.watched.directory / self.log(repeat, history)
        return reader(path, self.grammar, self.rule, setting)

    def repeat(self, repeat: Repeat, history: History, reading: Reading) -> JudgedRepeat:
        """Return one repeat with its valid attempt, and what its log says."""
        array, attempt_state = repeat.array, history.counted
        state = attempt_state.state
        if state.kind is Kind.UNNEEDED:
            return JudgedRepeat(array, history, make_unneeded_run(repeat.number, state))
        if reading.missing:
            # Every run has a number or a reason.
            detail = f"{reading.missing} is unknown, but the rule needs it"
            reading = reading._replace(reasons=(Reason("rule", detail),))
        reasons = self._find_reasons(repeat, history, reading)
        fingerprints = read_nodes(
            self.watched.directory, array.point.key, repeat.number, state.attempt
        )
        sampled = (
            None if reasons else self._read_power(array, repeat.number, state.attempt, reading)
        )
        flags = (*reading.flags, "apart") if attempt_state.job_record.apart else reading.flags
        run = Run(
            repeat=repeat.number,
            attempt=state.attempt,
            throughput=None if reasons else reading.throughput,
            valid=not reasons,
            reasons=tuple(reasons),
            state=state.word,
            state_source=state.source,
            log=self.log(repeat, history),
            nodes=state.nodes,
            environments=list_nodes(fingerprints),
            attempts=history.list_attempts(self.watched.directory),
            flags=flags,
            notes=reading.notes,
            sampled=sampled,
        )
        return JudgedRepeat(array, history, run, fingerprints, reading.stated_facts, reading.steps)

    def _find_reasons(self, repeat: Repeat, history: History, reading: Reading) -> list[Reason]:
        """Return every reason against a repeat's number."""
        campaign, state = self.watched.campaign, history.counted.state
        log = self.log(repeat, history)
        path = self.watched.directory / log
        over = state.kind.over and not campaign.rehearse
        reasons = [*find_invalid_reasons(self._collect_evidence(state, reading))]
        # Slurm's own word for the host's memory leaves no other cause to look for.
        if over and state.word != "OUT_OF_MEMORY":
            device, outputs = repeat.array.point.device, repeat.own_outputs(state.attempt)
            reasons = [*failures.add_cause(path, self.grammar, reasons, device, outputs)]
            reasons += failures.explain_status(self.grammar, reasons, state.step_exit)
        job_ids = history.counted.job_record.jobs
        if len(job_ids) > 1:
            # The user submitted the script again by hand: both wrote to one log.
            jobs = " and ".join(job_ids)
            reasons.append(Reason("state", f"the jobs {jobs} ran it at the same time"))
        if over:
            reasons += find_search_problems(repeat, state.attempt)
        reasons += self._find_changes(history, log)
        if reading.throughput is not None:
            contained = campaign.runtime != "none"
            reasons += find_time_problems(
                repeat.record, state.attempt, path, self.grammar, contained=contained
            )
        return reasons

    def _collect_evidence(self, state: RepeatState, reading: Reading) -> Evidence:
        return Evidence(
            state=state.word,
            exit_code=state.step_exit,
            log=reading.reasons,
            over=state.kind.over,
            alive=state.kind.alive,
            detail=state.detail,
            rehearsed=self.watched.campaign.rehearse,
            suspended=state.suspended,
        )

    def _find_changes(self, history: History, log: str) -> tuple[Reason, ...]:
        """Return a reason for each file of a repeat that differs from the record."""
        array = history.counted.array
        prefix = f"env/{array.point.key}.{history.number}.{history.counted.state.attempt}."
        paths = {log, array.status(history.number), array.script, array.point.search}
        deviations = (
            deviation
            for deviation in self.changed
            if deviation.path in paths
            or deviation.path.startswith(prefix)
            or evidence.concerns_all(deviation.path)
        )
        return tuple(Reason("changed", str(deviation)) for deviation in deviations)

    def _read_power(
        self, array: Array, number: int, attempt: int, reading: Reading
    ) -> Sampled | None:
        """Return the power of a valid run's GPUs in its window."""
        point, setting = apply_found_size(self.watched, array.point), reading.setting
        if not reading.throughput or setting.iters == END:
            return None
        counted = (setting.iters - setting.skip) * point.global_batch_size
        path = name_record(self.watched.directory, point.key, number, attempt, ENDING)
        seconds = counted / reading.throughput
        return read_power(path, seconds=seconds)

    def _setting(self, requested_point: Point) -> Setting:
        point = apply_found_size(self.watched, requested_point)
        protocol = self.watched.campaign.protocol
        options = {**self.defaults, **dict(point.options)}
        recorded: dict[str, Any] = {
            name: options[name]
            for name, kind in RECORDED.items()
            if options.get(name) and isinstance(options[name], kind)
        }
        return Setting(
            nodes=point.shape.nodes,
            gpus_per_node=point.shape.gpus_per_node,
            gpus=point.shape.gpus,
            batch_size_per_device=None if point.largest else point.batch_size_per_device,
            accumulation=point.accumulation,
            precision=point.precision,
            device_kind=None if point.device == "auto" else point.device,
            sequence_length=self.grammar.sequence_length or None,
            xla="true" if point.xla else "false",
            skip=protocol.skip if self.window.skip is None else self.window.skip,
            iters=_last_iteration(protocol) if self.window.iters is None else self.window.iters,
            reach=protocol.iters,
        )._replace(**model_facts(point.model), **recorded)


# --- The largest batch, as the search of a point's first job found it ----------------------------


def apply_found_size(watched: TrackedCampaign, point: Point) -> Point:
    """Return a point with its batch size; unchanged if its jobs have not found that."""
    if not point.largest:
        return point
    size = _last_number(_search_events(watched, point), "found", "size")
    return point.sized(size) if size else point


def mark_largest(point: Point, group: Group) -> Group:
    """Return the table of a point, with its batch size if that was found."""
    if not point.largest:
        return group
    return replace(group, largest=True, batch_size_per_device=max(group.batch_size_per_device, 0))


def find_search_problems(repeat: Repeat, attempt: int) -> tuple[Reason, ...]:
    """Return reasons if an attempt should have run with the largest batch and did not."""
    watched, point = repeat.watched, repeat.array.point
    if not point.largest:
        return ()
    for event in reversed(_search_events(watched, point)):
        outcome = event.get("event"), event.get("repeat"), event.get("attempt")
        if event.get("point", point.key) != point.key:
            continue
        if outcome == ("stopped", repeat.number, attempt):
            return (Reason("search", f"no largest batch was found: {event.get('reason')}"),)
    sized_point = apply_found_size(watched, point)
    if sized_point.largest:
        return (Reason("search", "no largest batch was found: the search has not ended"),)
    batch_size = _last_number(repeat.record.attempts.get(attempt, ()), "step", "batch")
    if batch_size in (None, sized_point.batch_size_per_device):
        return ()
    detail = (
        f"it ran with {batch_size} samples per device; the largest batch is {sized_point.batch}"
    )
    return (Reason("search", detail),)


def _search_events(watched: TrackedCampaign, point: Point) -> tuple[Event, ...]:
    return watched.records.at(watched.directory / point.search).events


def _last_number(events: Iterable[Event], kind: str, name: str) -> int | None:
    """Return a number from the last event of a kind; None if there is no valid one."""
    values = [event.get(name) for event in events if event.get("event") == kind]
    value = values[-1] if values else None
    sound = isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MAX_SIZE
    return value if sound else None


# --- Repeats until the median is known -----------------------------------------------------------


def make_adaptive(protocol: Protocol, unneeded: Sequence[int]) -> Adaptive | None:
    """Return the precision that ended the repeats of a point; None if their number was fixed."""
    if protocol.precision_of_median is None:
        return None
    return Adaptive(protocol.precision_of_median, protocol.repeats, tuple(unneeded))


def make_unneeded_run(number: int, state: RepeatState) -> Run:
    """Return a repeat that was not needed: it has neither a number nor a reason against it."""
    return Run(
        repeat=number,
        attempt=state.attempt,
        throughput=None,
        valid=False,
        reasons=(),
        state=state.word,
        state_source=state.source,
        log="",
        nodes=state.nodes,
    )


def warn_about_undecided(watched: TrackedCampaign) -> tuple[str, ...]:
    """Return a sentence if repeats ran because nodes could not decide whether to skip them."""
    if watched.campaign.protocol.precision_of_median is None:
        return ()
    attempts = [
        attempt for repeat in watched.repeats for attempt in repeat.record.attempts.values()
    ]
    undecided = [
        attempt
        for attempt in attempts
        if any(event.get("event") == "undecided" for event in attempt)
    ]
    if not undecided:
        return ()
    hosts = {str(event["host"]) for attempt in undecided for event in attempt if "host" in event}
    text = format_count(len(undecided), "repeat was", "repeats were")
    clause = f"{text} made without knowing whether they were needed"
    reason = f"hpcbert did not run on {fold(tuple(sorted(hosts)))}"
    return (f"{watched.campaign.id}: {clause}: {reason}; see slurm/*.out.",)


# --- A log's times, compared with those of the step ----------------------------------------------


def find_time_problems(
    record: RepeatRecord, attempt: int, log: Path, grammar: Grammar, *, contained: bool
) -> tuple[Reason, ...]:
    """Return reasons if a run's times are inconsistent; none if they are unknown.

    Args:
        contained: Whether the program ran in a container, which has a time zone of its own.
    """
    step = next((step for step in record.steps if step.attempt == attempt), None)
    if step is None or step.begin is None or step.end is None or step.end <= step.begin:
        return ()  # A record in whole seconds that has no length does not say when it was.
    detail = _describe_clock_change(step) or _describe_old_log(record, log, step.begin + step.ahead)
    if not detail:
        zones = QUARTERS if contained or not step.zones else step.zones
        log_stamps = read_stamps(log, grammar)
        details = [explain_mismatch(log_stamps, span) for span in _list_spans(step, zones)]
        detail = details[0] if all(details) else ""
    return (Reason("clock", detail),) if detail else ()


def _list_spans(step: Step, zones: Sequence[int]) -> list[TimeSpan]:
    """Return the time span of a step by each clock that a log's stamps may come from.

    On several nodes, the rank that prints may be on another one than the script. If the clock there
    is right and only the script's is wrong, the stamps are those of the controller's clock.
    """
    begin, end = step.begin or 0.0, step.end or 0.0
    offsets = [step.ahead] if len(step.nodes) > 1 and abs(step.ahead) > 1 else []
    return [TimeSpan(begin + ahead, end + ahead, zones) for ahead in (0, *offsets)]


def _describe_clock_change(step: Step) -> str:
    if abs(step.moved) <= _MAX_DRIFT:
        return ""
    way = "forward" if step.moved > 0 else "back"
    return f"the clock of {step.host} was set {way} by {abs(step.moved):.1f} s in the measured step"


def _describe_old_log(record: RepeatRecord, log: Path, begin: float) -> str:
    """Return a clause about a log that was last written to before its step began.

    The status file was last written to later than that: if it seems older too, as in a restored
    copy, the file system's times mean nothing.
    """
    try:
        gap = begin - log.stat().st_mtime
    except OSError:
        return ""
    if gap <= _SERVER_SLACK or (record.written or 0.0) < begin - _SERVER_SLACK:
        return ""
    return f"the log was last written to {gap:.0f} s before the measured step began"
