"""The runs of a campaign: the valid attempt of each, how it ended, and what its log says.

For each repeat, find its state and its attempts, choose one (`attempts`), read its log, and turn
every objection to the number into a reason (`_Judge`). Then compare repeats with each other: on one
node at one time (`node_sharing`), and those of one point (`pooling`).
Reasons are only ever added; nothing makes an invalid run valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcbert.campaign import evidence, store
from hpcbert.campaign.attempts import (
    SCHEMA,
    AskStates,
    History,
    RecordedStates,
    find_states,
    read_history,
)
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
from hpcbert.campaign.pooling import ComparedRun, make_log_sample, refuse_run, refuse_unlike_runs
from hpcbert.campaign.record import Event, RepeatRecord, Stamp
from hpcbert.campaign.repeats import Key, Repeat, TrackedCampaign
from hpcbert.config.schedulers import find_traits
from hpcbert.config.toml import read as read_toml
from hpcbert.errors import HpcbertError, format_count
from hpcbert.logs import failures
from hpcbert.logs import grammar as grammars
from hpcbert.logs.grammar import Grammar, Rule
from hpcbert.logs.scan import Reading, read, read_to_end
from hpcbert.logs.setting import END, RECORDED, Setting, Window, model_facts
from hpcbert.logs.stamps import QUARTERS, TimeSpan, explain_mismatch, read_stamps
from hpcbert.logs.window import counted_part
from hpcbert.model import (
    Adaptive,
    Array,
    Campaign,
    Measured,
    Point,
    Reason,
    Run,
    Sampled,
    valid_throughputs,
)
from hpcbert.results.document import NodeFacts, Source, tables_data
from hpcbert.results.interval import is_precise
from hpcbert.results.reduce import Curves, find_invalid_reasons, make_group, tabulate
from hpcbert.slurm.hostlist import fold
from hpcbert.slurm.states import Kind, RepeatState, bounded_int, dump_state
from hpcbert.system import redact
from hpcbert.system.grouping import group
from hpcbert.system.workers import map_in_parallel

# Seconds by which a clock may drift within a run: it is read in hundredths.
_MAX_DRIFT = 0.5
# Seconds by which the file server's clock may differ from the controller's.
_SERVER_SLACK = 60.0
# Seconds after a script's end within which a scheduler that records ends adds its line.
_LAST_LINE_DELAY = 60.0
_PROTOCOL_WINDOW = Window()
# What a table's source has of a manifest.
_IDENTITY = (
    "created hpcbert site scheduler runtime image framework recipe_digest protocol materials"
)
# Larger than any size that a search tries.
_MAX_SIZE = 1 << 24


@dataclass(frozen=True)
class JudgedRepeat:
    """One repeat of a campaign, judged; its newest attempt need not be the valid one."""

    history: History
    run: Run
    reading: Reading
    fingerprints: tuple[Fingerprint, ...] = ()

    @property
    def array(self) -> Array:
        """The array that it was submitted in last."""
        return self.history.repeat.array

    @property
    def key(self) -> Key:
        """Name of its array, and its number."""
        return self.history.repeat.key

    @property
    def unneeded(self) -> bool:
        """Whether it did not run because the repeats before it were enough."""
        return self.history.counted.state.kind is Kind.UNNEEDED

    @property
    def samples(self) -> tuple[NodeSample, ...]:
        """The facts of its nodes and of its log."""
        shape, number = str(self.array.point.shape), self.run.repeat
        nodes = (NodeSample(shape, number, fingerprint) for fingerprint in self.fingerprints)
        return (*nodes, make_log_sample(shape, number, dict(self.reading.stated_facts)))


@dataclass(frozen=True)
class Gathered:
    """A campaign's points and what they were made from.

    Attributes:
        standard: Whether neither a rule nor a window was chosen.
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
    states: AskStates,
    rule: str = "",
    window: Window = _PROTOCOL_WINDOW,
    with_nearby: bool = True,
    nearby: NearbyCampaigns | None = None,
    trusted: bool = False,
    point: str = "",
) -> Gathered:
    """Judge every repeat of a campaign.

    Args:
        states: Asks the scheduler; called only for what the directory does not have.
        rule: Name of a rule of its recipe; empty for the default.
        window: The window to use instead of the protocol's.
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
        read_history(repeat, newest_states[repeat.key], recorded)
        for repeat in watched.repeats
        if point in ("", repeat.array.point.key)
    ]
    repeats = judge.judge_all(histories, stamps)
    nearby = (nearby or NearbyCampaigns()) if with_nearby else None
    points, sharing_warnings = _compare_repeats(watched, repeats, recorded, nearby)
    samples = tuple(
        tuple(sample for repeat in repeats if repeat.run.valid for sample in repeat.samples)
        for repeats in points.values()
    )
    undecided = _warn_about_undecided(watched)
    return Gathered(
        compare_points(zip(judge.measure(points), samples, strict=True)),
        tuple(repeat for repeats in points.values() for repeat in repeats),
        chosen_rule,
        (*chosen_rule.warnings, *warnings, *undecided, *sharing_warnings),
        comparison,
        not rule and window == _PROTOCOL_WINDOW,
        samples,
        stamps,
    )


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
    for key in keys:
        values = values.get(key) if isinstance(values, dict) else None
    return values


def _compare_repeats(
    watched: TrackedCampaign,
    repeats: Sequence[JudgedRepeat],
    recorded: RecordedStates,
    nearby: NearbyCampaigns | None,
) -> tuple[dict[Point, list[JudgedRepeat]], tuple[str, ...]]:
    """Return each point's repeats, and warnings.

    Repeats that shared nodes, that are copies, or that belong to another experiment, are refused.
    """
    runs = {repeat.key: repeat.run for repeat in repeats}
    judged, warnings = refuse_shared(watched, runs, recorded, nearby)
    points = group(
        (repeat.array.point, replace(repeat, run=judged[repeat.key])) for repeat in repeats
    )
    accounts = [
        [_make_account(watched.directory, repeat) for repeat in point_repeats]
        for point_repeats in points.values()
    ]
    verdicts = refuse_unlike_runs(accounts, keep_first=False)
    for point_repeats, verdict in zip(points.values(), verdicts, strict=True):
        pairs = zip(point_repeats, verdict, strict=True)
        point_repeats[:] = [replace(repeat, run=run) for repeat, run in pairs]
    return points, warnings


def _make_account(directory: Path, repeat: JudgedRepeat) -> ComparedRun:
    point, log = str(repeat.array.point.shape), directory / repeat.run.log
    return ComparedRun(point, repeat.run, log, repeat.samples, repeat.reading.beginning)


def _warn_about_undecided(watched: TrackedCampaign) -> tuple[str, ...]:
    """Return a sentence if repeats ran because nodes could not decide whether to skip them."""
    hosts = [
        str(events[0].get("host", ""))
        for repeat in watched.repeats
        for events in repeat.record.attempts.values()
        if any(event.get("event") == "undecided" for event in events)
    ]
    if not hosts:
        return ()
    clause = format_count(len(hosts), "repeat was", "repeats were")
    clause += " made without knowing whether they were needed"
    reason = f"hpcbert did not run on {fold(tuple(sorted({*hosts})))}"
    return (f"{watched.campaign.id}: {clause}: {reason}; see slurm/*.out.",)


@dataclass(frozen=True)
class _Judge:
    """Judges the repeats of one campaign.

    Attributes:
        defaults: The recipe's defaults of its options that are facts of a log too.
    """

    watched: TrackedCampaign
    grammar: Grammar
    defaults: Mapping[str, object]
    rule: Rule
    window: Window
    changed: tuple[evidence.Deviation, ...]

    def judge_all(
        self, histories: Sequence[History], stamps: dict[str, Stamp]
    ) -> list[JudgedRepeat]:
        """Return all repeats, judged; add the stamps that their files had when they were read."""
        directory = self.watched.directory
        sizes = [stamps.get(history.log, (0, 0))[0] for history in histories]
        readings = map_in_parallel(self._read, histories, sizes)
        repeats = list(map(self._judge, histories, readings))
        # A status file may have been read earlier, when its repeat was asked about.
        stamps |= self.watched.records.stamps(directory)
        present = evidence.read_stamps(directory)
        judged = []
        for repeat in repeats:
            names = (repeat.run.log, repeat.history.status)
            changed = [name for name in names if stamps.get(name) != present.get(name)]
            detail = f"{' and '.join(changed)}: written to while being read"
            reason = Reason("changed", detail) if changed else None
            judged.append(replace(repeat, run=refuse_run(repeat.run, reason)))
        return judged

    def measure(self, points: Mapping[Point, Sequence[JudgedRepeat]]) -> list[Measured]:
        """Return the points with their runs."""
        # One campaign, one device: a run without a log belongs to the same table.
        readings = [repeat.reading for repeats in points.values() for repeat in repeats]
        facts = [dict(reading.stated_facts) for reading in readings]
        kinds = [str(entry["device_kind"]) for entry in facts if entry.get("device_kind")]
        protocol = self.watched.campaign.protocol
        setting = self._setting(self.watched.campaign.arrays[0].point)
        curves = Curves(apply_found_size(self.watched, point) for point in points)
        measured = []
        for point, repeats in points.items():
            sized_point = apply_found_size(self.watched, point)
            stated = kinds[0] if kinds else None
            group = make_group(sized_point, curves, self.rule.name, stated=stated)
            if point.largest:
                batch_size = max(group.batch_size_per_device, 0)
                group = replace(group, largest=True, batch_size_per_device=batch_size)
            runs = tuple(repeat.run for repeat in repeats if not repeat.unneeded)
            adaptive = None
            if protocol.precision_of_median is not None:
                unneeded = tuple(repeat.run.repeat for repeat in repeats if repeat.unneeded)
                adaptive = Adaptive(protocol.precision_of_median, protocol.repeats, unneeded)
            measured_point = Measured(
                group,
                point.shape,
                asked=len(runs),
                runs=runs,
                adaptive=adaptive,
                flags=("accumulation",) if sized_point.accumulation > 1 else (),
                window=counted_part(self.rule, setting.skip, setting.iters),
                steps=tuple(
                    (repeat.run.repeat, repeat.reading.steps)
                    for repeat in repeats
                    if repeat.run.valid and repeat.reading.steps
                ),
            )
            measured.append(measured_point)
        return measured

    def _read(self, history: History) -> Reading:
        """Read the log of a repeat, in any process."""
        # The log of a running repeat is not read: its numbers are not those of a whole run.
        kind = history.counted.state.kind
        if not kind.over or kind is Kind.UNNEEDED or self.watched.campaign.rehearse:
            return Reading(None)
        setting = self._setting(history.repeat.array.point)
        reader = read_to_end if setting.iters == END else read
        return reader(self.watched.directory / history.log, self.grammar, self.rule, setting)

    def _judge(self, history: History, reading: Reading) -> JudgedRepeat:
        repeat, counted = history.repeat, history.counted
        array, state = repeat.array, counted.state
        if reading.missing:
            # Every run has a number or a reason.
            detail = f"{reading.missing} is unknown, but the rule needs it"
            reading = reading._replace(reasons=(Reason("rule", detail),))
        reasons: tuple[Reason, ...] = ()
        fingerprints: tuple[Fingerprint, ...] = ()
        # What is not needed has neither a number nor a reason against it.
        unneeded = state.kind is Kind.UNNEEDED
        if not unneeded:
            reasons = tuple(self._find_reasons(history, reading))
            point, attempt = array.point.key, state.attempt
            fingerprints = read_nodes(self.watched.directory, point, repeat.number, attempt)
        run = Run(
            repeat=repeat.number,
            attempt=state.attempt,
            throughput=None if reasons else reading.throughput,
            valid=not (reasons or unneeded),
            reasons=reasons,
            state=state.word,
            state_source=state.source,
            log="" if unneeded else history.log,
            nodes=state.nodes,
            environments=list_nodes(fingerprints),
            attempts=() if unneeded else history.list_attempts(),
            flags=(*reading.flags, "apart") if counted.job_record.apart else reading.flags,
            notes=reading.notes,
            sampled=None if reasons else self._read_power(history, reading),
        )
        return JudgedRepeat(history, run, reading, fingerprints)

    def _find_reasons(self, history: History, reading: Reading) -> Iterator[Reason]:
        campaign, repeat, state = self.watched.campaign, history.repeat, history.counted.state
        path = self.watched.directory / history.log
        over = state.kind.over and not campaign.rehearse
        reasons = find_invalid_reasons(reading.reasons, state, rehearsed=campaign.rehearse)
        # Slurm's own word for the host's memory leaves no other cause to look for.
        if over and state.word != "OUT_OF_MEMORY":
            outputs = repeat.own_outputs(state.attempt)
            device = repeat.array.point.device
            reasons = tuple(failures.add_cause(path, self.grammar, reasons, device, outputs))
            reasons += tuple(failures.explain_status(self.grammar, reasons, state.step_exit))
        yield from reasons
        job_ids = history.counted.job_record.jobs
        if len(job_ids) > 1:
            # The user submitted the script again by hand: both wrote to one log.
            yield Reason("state", f"the jobs {' and '.join(job_ids)} ran it at the same time")
        if over and (detail := _describe_search(repeat, state.attempt)):
            yield Reason("search", detail)
        point = repeat.array.point
        prefix = f"env/{point.key}.{repeat.number}.{state.attempt}."
        files = {history.log, history.status, history.counted.array.script, point.search}
        for deviation in self.changed:
            is_own = deviation.path in files or deviation.path.startswith(prefix)
            if is_own or evidence.concerns_all(deviation.path):
                yield Reason("changed", str(deviation))
        if reading.throughput is not None:
            contained = campaign.runtime != "none"
            detail = _describe_times(
                repeat.record, state.attempt, path, self.grammar, contained=contained
            )
            if detail:
                yield Reason("clock", detail)

    def _read_power(self, history: History, reading: Reading) -> Sampled | None:
        requested_point, setting = history.repeat.array.point, reading.setting
        if not reading.throughput or setting.iters == END:
            return None
        size = apply_found_size(self.watched, requested_point).global_batch_size
        samples = (setting.iters - setting.skip) * size
        # As requested: its jobs had begun before the size was found.
        key, number = requested_point.key, history.repeat.number
        attempt = history.counted.state.attempt
        path = name_record(self.watched.directory, key, number, attempt, ENDING)
        return read_power(path, seconds=samples / reading.throughput)

    def _setting(self, requested_point: Point) -> Setting:
        point = apply_found_size(self.watched, requested_point)
        protocol = self.watched.campaign.protocol
        # Where a window in seconds ends, the run alone says.
        last = END if protocol.window_seconds else protocol.iters
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
            iters=last if self.window.iters is None else self.window.iters,
            reach=protocol.iters,
        )._replace(**model_facts(point.model), **recorded)


# --- The largest batch, as the search of a point's first job found it ----------------------------


def apply_found_size(watched: TrackedCampaign, point: Point) -> Point:
    """Return a point with its batch size; unchanged if its jobs have not found that."""
    if not point.largest:
        return point
    events = watched.records.at(watched.directory / point.search).events
    size = _last_number(events, "found", "size")
    return point.sized(size) if size else point


def _describe_search(repeat: Repeat, attempt: int) -> str:
    """Return a clause if an attempt should have run with the largest batch and did not."""
    watched, point = repeat.watched, repeat.array.point
    if not point.largest:
        return ""
    for event in reversed(watched.records.at(watched.directory / point.search).events):
        outcome = event.get("event"), event.get("repeat"), event.get("attempt")
        is_own = event.get("point", point.key) == point.key
        if is_own and outcome == ("stopped", repeat.number, attempt):
            return f"no largest batch was found: {event.get('reason')}"
    sized_point = apply_found_size(watched, point)
    if sized_point.largest:
        return "no largest batch was found: the search has not ended"
    batch_size = _last_number(repeat.record.attempts.get(attempt, ()), "step", "batch")
    if batch_size in (None, sized_point.batch_size_per_device):
        return ""
    return f"it ran with {batch_size} samples per device; the largest batch is {sized_point.batch}"


def _last_number(events: Iterable[Event], kind: str, name: str) -> int | None:
    """Return a number from the last event of a kind; None if there is no valid one."""
    values = [event.get(name) for event in events if event.get("event") == kind]
    value = bounded_int(values[-1], _MAX_SIZE) if values else None
    return value if value and value > 0 else None


# --- A log's times, compared with those of the step ----------------------------------------------


def _describe_times(
    record: RepeatRecord, attempt: int, log: Path, grammar: Grammar, *, contained: bool
) -> str:
    """Return a clause if a run's times are inconsistent; none if they are unknown.

    A container has a time zone of its own.
    """
    step = next((step for step in record.steps if step.attempt == attempt), None)
    if step is None or step.begin is None or step.end is None or step.end <= step.begin:
        return ""  # A record in whole seconds that has no length does not say when it was.
    if abs(step.moved) > _MAX_DRIFT:
        way = f"{'forward' if step.moved > 0 else 'back'} by {abs(step.moved):.1f} s"
        return f"the clock of {step.host} was set {way} in the measured step"
    begin = step.begin + step.ahead
    with suppress(OSError):
        gap = begin - log.stat().st_mtime
        # If the status file, which is written to later, seems older than the step too, as in a
        # restored copy, the file system's times mean nothing.
        if gap > _SERVER_SLACK and (record.written or 0.0) >= begin - _SERVER_SLACK:
            return f"the log was last written to {gap:.0f} s before the measured step began"
    zones = QUARTERS if contained or not step.zones else step.zones
    # On several nodes, the rank that prints may be on another one than the script. If the clock
    # there is right and only the script's is wrong, the stamps are those of the controller's.
    offsets = [0, step.ahead] if len(step.nodes) > 1 and abs(step.ahead) > 1 else [0]
    spans = [TimeSpan(step.begin + offset, step.end + offset, zones) for offset in offsets]
    stamps = read_stamps(log, grammar)
    details = [explain_mismatch(stamps, span) for span in spans]
    return details[0] if all(details) else ""


# --- Results on record: the table, the measurements, and the evidence for both --------------------


def write_results(
    watched: TrackedCampaign, gathered: Gathered, nearby: NearbyCampaigns, *, now: float
) -> tuple[str, ...]:
    """Write a campaign's results into it; return sentences about problems with that.

    Nothing is written while a recorded file has changed.
    """
    if gathered.comparison.changed:
        return ()
    if not gathered.standard:
        states = gathered.states
        gathered = gather(watched, states=lambda _: states, nearby=nearby)
    try:
        busy_file = record_results(watched, gathered, now=now)
    except HpcbertError as error:
        return (f"{error} The table above is complete, but it could not be saved.",)
    if busy_file:
        clause = f"{watched.campaign.id}: {busy_file} is still being written"
        advice = "Collect it again when it has stopped changing."
        return (f"{clause}: hpcbert recorded no digests. {advice}",)
    return ()


def _find_busy_file(directory: Path, gathered: Gathered) -> str:
    """Return a log or status file that was written to since it was read; empty if none was."""
    before, now = gathered.stamps, evidence.read_stamps(directory)
    names = sorted({*before, *now})
    return next((name for name in names if before.get(name) != now.get(name)), "")


def record_results(
    watched: TrackedCampaign, gathered: Gathered, *, now: float, accepted: str = ""
) -> str:
    """Write table.json and measurements.json; return a file that is still written to, if any.

    table.json holds the tables; measurements.json every repeat with its state and number, and, once
    none waits or runs any more and nothing is written to, digests of everything that the numbers
    come from.

    Args:
        gathered: Its repeats by the recipe's default rule and the protocol's window.
        accepted: The user's reason to accept changes; empty if there are none.
    """
    directory = watched.directory
    ended = is_over(watched, gathered, now=now)
    document = _make_document(watched.campaign, gathered, ended=ended)
    table = {"schema": SCHEMA, **tables_data(tabulate(gathered.points))}
    store.write_json(directory / evidence.TABLE, table, indent=None)
    busy_file, renewed = "", None
    if ended:
        renewed = evidence.renew_evidence(watched, document, now=now, accepted=accepted)
        # Digests belong to what was read, or there are none.
        busy_file = _find_busy_file(directory, gathered)
    if not renewed or busy_file:
        renewed = evidence.keep_evidence(watched)
    document[evidence.EVIDENCE] = renewed
    document[evidence.SEAL] = evidence.compute_seal(document)
    store.write_json(directory / evidence.MEASUREMENTS, document, indent=None)
    return busy_file


def is_over(watched: TrackedCampaign, gathered: Gathered, *, now: float) -> bool:
    """Return whether no repeat waits or runs, and no job writes; `now` in epoch seconds."""
    if any(repeat.history.newest.kind.alive for repeat in gathered.repeats):
        return False
    if not find_traits(watched.campaign.scheduler).records_end:
        return True
    submitted = (array for array in watched.campaign.arrays if array.state == "submitted")
    job_records = [
        watched.record(array, number).newest() for array in submitted for number in array.repeats
    ]
    # The scheduler writes the last line, unless it was killed.
    return all(
        job_record.state or now - (job_record.end or job_record.start or 0) > _LAST_LINE_DELAY
        for job_record in job_records
    )


def _make_document(campaign: Campaign, gathered: Gathered, *, ended: bool) -> dict[str, Any]:
    runs = []
    for repeat in gathered.repeats:
        verdicts = [
            {"array": array.name, "job_id": array.job_id, "state": dump_state(state)}
            for array, state, _ in repeat.history.attempts
        ]
        run = {
            "array": repeat.array.name,
            "job_id": repeat.array.job_id,
            "newest": repeat.history.newest.attempt,
            **asdict(repeat.run),
            "scheduler": dump_state(repeat.history.counted.state),
            "verdicts": verdicts,
        }
        runs.append(run)
    return {
        "schema": SCHEMA,
        "campaign": campaign.id,
        "arrays": len(campaign.arrays),
        "over": ended,
        "rule": gathered.rule.name,
        "protocol": asdict(campaign.protocol),
        "runs": runs,
    }


def make_source(directory: Path, campaign: Campaign, repeats: Iterable[JudgedRepeat]) -> Source:
    """Return a campaign's identity for tables.

    It has each environment of valid runs once, with all its nodes; of any if none is valid.
    """
    repeats = tuple(repeats)
    valid = [repeat for repeat in repeats if repeat.run.valid and repeat.fingerprints]
    nodes: dict[str, set[str]] = {}
    facts: dict[str, Mapping[str, str]] = {}
    for repeat in valid or repeats:
        for fingerprint in repeat.fingerprints:
            facts[fingerprint.digest] = fingerprint.facts
            nodes.setdefault(fingerprint.digest, set()).update(fingerprint.nodes)
    return Source(
        **{name: getattr(campaign, name) for name in _IDENTITY.split()},
        kind="campaign",
        name=campaign.id,
        path=str(directory),
        command=tuple(redact.mask_command(list(campaign.command))),
        environments=tuple(
            NodeFacts(digest, tuple(sorted(names)), facts[digest])
            for digest, names in nodes.items()
        ),
    )
