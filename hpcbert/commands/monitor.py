"""Watch campaigns: the states of their repeats, the progress of running ones, and their logs.

The rates of ended repeats and the rows of finished points are there while others still run.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hpcbert import scheduler
from hpcbert.campaign import store
from hpcbert.campaign.attempts import write_ends
from hpcbert.campaign.judge import apply_found_size, gather
from hpcbert.campaign.repeats import Key, Repeat, TrackedCampaign
from hpcbert.config import toml
from hpcbert.errors import HpcbertError, SchedulerError, format_count
from hpcbert.logs import grammar
from hpcbert.logs.grammar import Grammar
from hpcbert.logs.lines import open_log
from hpcbert.logs.scan import Progress
from hpcbert.logs.setting import Window
from hpcbert.model import Note, Point, Row, Run, Unit
from hpcbert.results.reduce import tabulate
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.scheduler.tracker import Tracker
from hpcbert.slurm.states import Kind, RepeatState
from hpcbert.system.runner import Runner

# Number of polls in a row without any answer to accept.
_TOLERANCE = 10
# The most seconds between two looks at the status files, which need no query. A few files are
# looked at more often: for each, this many seconds pass.
_LOOK_SECONDS = 1 / 4
_SECONDS_PER_FILE = 1 / 64
# Maximum number of files to stat per second, on a file system that others share.
_MOST_STATS = 2000
_SHORTEST = 1 / 16


@dataclass(frozen=True)
class RepeatProgress:
    """The progress of a running repeat; None where it is unknown.

    Attributes:
        iteration: The last iteration in its log.
        throughput: Samples per second over all GPUs.
        ends: Estimated end, seconds since the epoch.
        notes: Flags that its log sets already, with the numbers behind them.
    """

    iteration: int | None
    iterations: int
    throughput: float | None
    ends: float | None
    notes: tuple[Note, ...] = ()


class Change(NamedTuple):
    """A repeat with a new state, noticed at a time in seconds since the epoch."""

    repeat: Repeat
    state: RepeatState
    time: float


@dataclass(frozen=True)
class View:
    """Everything that is watched, at one moment.

    Attributes:
        repeats: In the order of submission.
        states: By array name and repeat.
        time: Seconds since the epoch.
        trouble: Slurm's complaint instead of an answer; empty while it answers.
        garbage: The first few lines of its answer that could not be read.
    """

    repeats: tuple[Repeat, ...]
    states: Mapping[Key, RepeatState]
    time: float
    trouble: str = ""
    garbage: tuple[str, ...] = ()

    def count(self) -> dict[str, int]:
        """Return the number of repeats by kind of state; kinds without repeats are left out."""
        return dict(Counter(str(self.states[repeat.key].kind) for repeat in self.repeats))

    @property
    def failed(self) -> int:
        """Repeats that failed, or have an unknown or uncertain end."""
        return sum(
            state.kind in {Kind.FAILED, Kind.UNKNOWN}
            or (state.word == "COMPLETED" and not state.kind.over)
            for state in self.states.values()
        )


def read_campaigns(
    directories: Iterable[Path],
) -> tuple[tuple[TrackedCampaign, ...], tuple[Path, ...]]:
    """Return the campaigns that can be read, and the directories of those with another schema."""
    manifests, paths = store.read_manifests(directories)
    return tuple(TrackedCampaign(*item) for item in manifests.items()), paths


def find_unfinished(
    runs: Path, *, run: Runner
) -> tuple[tuple[TrackedCampaign, ...], tuple[Path, ...]]:
    """Return the campaigns of `read_campaigns` that are not certainly over."""
    campaigns, paths = read_campaigns(store.find_campaigns(runs))
    living_campaigns: list[TrackedCampaign] = []
    for backend, group in scheduler.group_by_scheduler(campaigns, SchedulerContext(run)):
        living_campaigns += backend.select_living(group)
    return tuple(campaign for campaign in campaigns if campaign in living_campaigns), paths


def find_submitted(runs: Path, paths: Collection[Path]) -> tuple[TrackedCampaign, ...]:
    """Return the submitted campaigns under a runs directory that are not known yet."""
    campaigns, _ = read_campaigns(path for path in store.find_campaigns(runs) if path not in paths)
    return tuple(tracked for tracked in campaigns if tracked.campaign.accepted)


@dataclass(frozen=True)
class Sinks:
    """Receivers of states.

    Attributes:
        changes: Gets the changes right after each poll; never an empty sequence.
        view: Gets all states, after each poll and every `refresh` seconds between.
    """

    changes: Callable[[Sequence[Change]], None] = lambda _: None
    view: Callable[[View], None] = lambda _: None
    refresh: float = math.inf


def watch(
    campaigns: Sequence[TrackedCampaign],
    sinks: Sinks,
    context: SchedulerContext,
    *,
    floor: float,
    once: bool = False,
) -> View:
    """Follow campaigns until nothing can change any more, and return the last states.

    Args:
        floor: Shortest interval between two queries of Slurm, seconds.

    Raises:
        SchedulerError: Slurm gave no answer for too long, or is not on this machine although
            states are open. The jobs continue.
    """
    campaigns = _adopt_jobs(campaigns, context)
    tracker = Tracker(campaigns, context, floor=floor)
    repeats = tuple(repeat for tracked in campaigns for repeat in tracked.repeats)
    while True:
        new_states = tracker.poll()
        now = context.now()
        trouble = tracker.complaint if tracker.failures else ""
        view = View(repeats, tracker.states, now, trouble, tracker.garbage)
        is_last = once or tracker.is_over()
        changed = [repeat for repeat in repeats if repeat.key in new_states] if new_states else []
        if changed:
            sinks.changes([Change(repeat, new_states[repeat.key], now) for repeat in changed])
        sinks.view(view)
        if changed or is_last:
            for tracked in campaigns:
                keys = [repeat.key for repeat in tracked.repeats]
                write_ends(tracked, view.states, set(filter(tracker.is_final, keys)))
        if is_last:
            return view
        if tracker.absent or tracker.failures >= _TOLERANCE:
            raise no_answer_error(view)
        _wait(min(max(_SHORTEST, tracker.pause()), sinks.refresh), tracker, context.pause)


def _adopt_jobs(
    campaigns: Iterable[TrackedCampaign], context: SchedulerContext
) -> list[TrackedCampaign]:
    return [
        scheduler.create_scheduler(tracked.campaign.scheduler, context).adopt_jobs(tracked)
        for tracked in campaigns
    ]


def _wait(seconds: float, tracker: Tracker, pause: Callable[[float], None]) -> None:
    """Wait, but no longer than until jobs wrote something that makes a poll worthwhile."""
    open_count = sum(not state.kind.over for state in tracker.states.values())
    shortest_look = open_count / _MOST_STATS
    usual_look = min(_LOOK_SECONDS, open_count * _SECONDS_PER_FILE)
    while seconds > 0 and not tracker.has_news():
        look_seconds = min(usual_look, tracker.seconds_to_news())
        look_seconds = max(look_seconds, _SHORTEST, shortest_look)
        pause(min(seconds, look_seconds))
        seconds -= look_seconds


def no_answer_error(view: View) -> SchedulerError:
    """Return an error with the number of open repeats and the command that continues."""
    open_count = sum(not state.kind.over for state in view.states.values())
    names = {repeat.watched.campaign.id for repeat in view.repeats}
    command = f"hpcbert monitor {names.pop()}" if len(names) == 1 else "hpcbert monitor"
    text = format_count(open_count, "repeat is", "repeats are")
    return SchedulerError(
        f"Neither sacct nor squeue answers, and {text} open: {view.trouble}",
        hint=f"The jobs continue. Once Slurm answers: {command}; collect reads the existing logs.",
    )


def estimate_progress(repeat: Repeat, progress: Progress, *, now: float) -> RepeatProgress:
    """Add an estimate of the end to progress: the remaining samples over the throughput."""
    protocol = repeat.watched.campaign.protocol
    # A window in seconds may need more than the protocol's.
    iterations, end_time = max(protocol.iters, progress.iteration or 0), None
    if progress.iteration is not None and progress.throughput:
        point = apply_found_size(repeat.watched, repeat.array.point)
        samples = (iterations - progress.iteration) * point.global_batch_size
        end_time = now + samples / progress.throughput
    notes = () if repeat.watched.campaign.rehearse else progress.notes
    return RepeatProgress(progress.iteration, iterations, progress.throughput, end_time, notes)


def read_rate_factor(directory: Path, point: Point, unit: Unit) -> float | None:
    """Return how many tokens or sequences a sample of a point has.

    None if the campaign's recipe and options do not say: only logs say how many samples a program
    packs into a sequence, and whether it leaves padding out.
    """
    if unit == "samples":
        return 1.0
    log_grammar = read_grammar(directory)
    if log_grammar is None or any(
        {"packing", "padding"} & fact.match.groupindex.keys() for fact in log_grammar.facts
    ):
        return None
    if unit == "sequences":
        return 1.0
    option = dict(toml.read(directory / store.RECIPE).get("options", {})).get("sequence_length", {})
    usual_length = log_grammar.sequence_length or dict(option).get("default")
    length = dict(point.options).get("sequence_length", usual_length)
    return float(length) if length else None


def read_grammar(directory: Path) -> Grammar | None:
    """Return the grammar of a campaign's logs, from its own copy of the recipe.

    None if that grammar can't be used here.
    """
    path = directory / store.RECIPE
    try:
        return grammar.parse(toml.read(path).get("log", {}), where=str(path))
    except HpcbertError:
        return None


def log_path(repeat: Repeat, state: RepeatState) -> Path:
    """Return the log of the attempt that a state is about."""
    return store.log_path(repeat.watched.directory, repeat.array, repeat.number, state.attempt)


@dataclass(frozen=True)
class Rates:
    """The numbers of a campaign, as `collect` finds them.

    Attributes:
        ended: The repeats that had ended, each with its attempt.
        rows: The rows of the points that had finished, by the point's key.
    """

    ended: frozenset[tuple[Key, int]] = frozenset()
    runs: Mapping[Key, Run] = field(default_factory=dict)
    rows: Mapping[str, Row] = field(default_factory=dict)

    def find_run(self, repeat: Repeat, state: RepeatState) -> Run | None:
        """Return the run of a repeat's newest attempt; None if it has not been judged."""
        return self.runs.get(repeat.key) if (repeat.key, state.attempt) in self.ended else None


def list_ended(
    watched: TrackedCampaign, states: Mapping[Key, RepeatState]
) -> frozenset[tuple[Key, int]]:
    """Return the repeats of a campaign that have ended, each with its attempt."""
    return frozenset(
        (repeat.key, states[repeat.key].attempt)
        for repeat in watched.repeats
        if repeat.key in states and states[repeat.key].kind.over
    )


def read_rates(watched: TrackedCampaign, states: Mapping[Key, RepeatState]) -> Rates:
    """Judge the ended repeats of a campaign, and reduce its finished points to rows.

    A campaign that can't be collected, or that is a rehearsal, has no numbers.
    """
    ended = list_ended(watched, states)
    if watched.campaign.rehearse or not ended:
        return Rates(ended)
    try:
        gathered = gather(watched, rule="", window=Window(), states=lambda _: states)
    except HpcbertError:  # collect reports it.
        return Rates(ended)
    ended_keys = {key for key, _ in ended}
    points = dict.fromkeys(repeat.array.point for repeat in gathered.repeats)
    running = {repeat.array.point for repeat in watched.repeats if repeat.key not in ended_keys}
    finished = {
        (measured.group, measured.shape): (point, measured)
        for point, measured in zip(points, gathered.points, strict=True)
        if point not in running
    }
    runs = {repeat.key: repeat.run for repeat in gathered.repeats if repeat.key in ended_keys}
    tables = tabulate(measured for _, measured in finished.values())
    rows = {finished[table.group, row.shape][0].key: row for table in tables for row in table.rows}
    return Rates(ended, runs, rows)


_BLOCK = 1 << 16


class Log(NamedTuple):
    """A log and its repeat.

    Attributes:
        printed: Whether it is the job script's output, because the ranks have written no log yet.
    """

    repeat: Repeat
    attempt: int
    path: Path
    printed: bool = False

    def place(self, campaign: Path) -> str:
        """Return the path, for a user who knows the campaign by another path."""
        return str(campaign / self.path.relative_to(self.repeat.watched.directory))


def find_newest_log(repeat: Repeat) -> Log | None:
    """Return the newest attempt's log, or else the job script's output, if either exists."""
    newest_attempt = repeat.record.newest().attempt
    for attempt in range(newest_attempt, -1, -1):
        path = store.log_path(repeat.watched.directory, repeat.array, repeat.number, attempt)
        if path.is_file():
            return Log(repeat, attempt, path)
    output = next((path for path in repeat.printed if path.is_file()), None)
    return Log(repeat, newest_attempt, output, printed=True) if output else None


def follow_log(
    selected_repeats: Sequence[Repeat],
    show_text: Callable[[bytes], None],
    show_state: Callable[[Repeat, RepeatState], None],
    *,
    run: Runner,
    floor: float,
    tail: Callable[[Path], int] = lambda _: 0,
) -> Repeat:
    """Pass on the log of a repeat as it grows, through requeues, until the repeat has ended.

    Of several selected repeats, follow the running one that wrote last; if none runs, the first
    that waits; if none waits, the one that wrote last.

    Args:
        show_state: Receives another attempt, or another word for its state.
        floor: Shortest interval between two queries of a scheduler, seconds.
        tail: Returns the byte at which to begin in the first log.

    Raises:
        SchedulerError: The scheduler gave no answer for too long.
        NotALogError: What is in the log's place can't be read.
    """
    selected_campaigns = {repeat.watched.directory: repeat.watched for repeat in selected_repeats}
    context = SchedulerContext(run)
    campaigns = _adopt_jobs(selected_campaigns.values(), context)
    tracker = Tracker(campaigns, context, floor=floor)
    tracker.poll()
    repeat = _choose_repeat(selected_repeats, campaigns, tracker.states)
    log_file = _LogFile(repeat, show_text, tail)

    def pause(seconds: float) -> None:
        context.pause(seconds)
        log_file.read()

    last_report: tuple[str, int] | None = None
    while True:
        state = tracker.states[repeat.key]
        # The scheduler and the job itself agree that the log is complete.
        is_complete = state.kind.over and repeat.newest.ended
        is_over = is_complete or tracker.is_final(repeat.key)
        log_file.read()
        if last_report != (state.word, state.attempt):
            last_report = state.word, state.attempt
            show_state(repeat, state)
        if is_over:
            return repeat
        if tracker.absent or tracker.failures >= _TOLERANCE:
            raise no_answer_error(View((repeat,), {repeat.key: state}, 0.0, tracker.complaint))
        _wait(max(_SHORTEST, tracker.pause()), tracker, pause)
        tracker.poll()


def _choose_repeat(
    selected_repeats: Sequence[Repeat],
    campaigns: Sequence[TrackedCampaign],
    states: Mapping[Key, RepeatState],
) -> Repeat:
    # Another array may have taken a repeat over.
    selected = {
        (repeat.watched.directory, repeat.array.point, repeat.number) for repeat in selected_repeats
    }
    repeats = [
        repeat
        for campaign in campaigns
        for repeat in campaign.repeats
        if (campaign.directory, repeat.array.point, repeat.number) in selected
    ]
    living_repeats = [repeat for repeat in repeats if states[repeat.key].kind.alive]
    running_repeats = [repeat for repeat in living_repeats if not states[repeat.key].kind.queued]
    if living_repeats and not running_repeats:
        return living_repeats[0]
    candidates = running_repeats or repeats
    logs = map(find_newest_log, candidates)
    times = [log.path.stat().st_mtime if log else 0.0 for log in logs]
    return candidates[times.index(max(times))]


class _LogFile:
    """The newest log of a repeat; when a newer attempt's replaces it, its end is read first."""

    def __init__(
        self, repeat: Repeat, show: Callable[[bytes], None], tail: Callable[[Path], int]
    ) -> None:
        self._repeat, self._show, self._tail = repeat, show, tail
        self._path: Path | None = None
        self._offset = 0

    def read(self) -> None:
        """Pass on what was written since the last time."""
        log = find_newest_log(self._repeat)
        if self._path is not None:
            self._drain(self._path)
        if log is not None and log.path != self._path:
            self._offset = self._tail(log.path) if self._path is None else 0
            self._path = log.path
            self._drain(log.path)

    def _drain(self, path: Path) -> None:
        descriptor, size = open_log(path)
        with os.fdopen(descriptor, "rb") as file:
            self._offset = self._offset if self._offset <= size else 0  # it was truncated
            file.seek(self._offset)
            while self._offset < size:
                data = file.read(min(_BLOCK, size - self._offset))
                if not data:
                    return
                self._offset += len(data)
                self._show(data)
