"""Watching campaigns: which, what becomes of their repeats, and how far those that run are."""

from __future__ import annotations

import contextlib
import random
import time
from typing import TYPE_CHECKING

from hpcbert import scheduler
from hpcbert.campaign import store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.campaign.search import sized
from hpcbert.errors import HpcbertError, SchedulerError, UsageError
from hpcbert.scheduler.base import World
from hpcbert.scheduler.tracker import Tracker
from hpcbert.slurm.states import Kind
from hpcbert.system.lazy import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from hpcbert.campaign.repeats import Key, Repeat
    from hpcbert.logs.failures import Failure
    from hpcbert.logs.grammar import Grammar
    from hpcbert.logs.scan import Progress
    from hpcbert.model import Device
    from hpcbert.slurm.states import RepeatState
    from hpcbert.system.runner import Runner

TOLERANCE = 10
# Seconds between two looks at the status files, which costs no question.
_LOOK = 0.25
_SHORTEST = 0.05
# What is looked at costs processor time; times this is waited until it is looked at again.
_SPARING = 100


@dataclass(frozen=True)
class Detail:
    """How far a running repeat is; None where nothing tells.

    Attributes:
        iteration: The last iteration in its log.
        iterations: How many there will be.
        throughput: Samples per second over all GPUs.
        ends: When it will be through, seconds since the epoch.
    """

    iteration: int | None
    iterations: int
    throughput: float | None
    ends: float | None


@dataclass(frozen=True)
class Change:
    """A repeat whose state is new.

    Attributes:
        time: When it was noticed, seconds since the epoch.
    """

    repeat: Repeat
    state: RepeatState
    time: float


@dataclass(frozen=True)
class View:
    """All that is watched, at one moment.

    Attributes:
        repeats: In the order of submission.
        states: By array name and repeat.
        time: Seconds since the epoch.
        trouble: What Slurm said instead of an answer; empty while it answers.
        garbage: Lines of its answer that nobody understood, the first few.
    """

    repeats: tuple[Repeat, ...]
    states: Mapping[Key, RepeatState]
    time: float
    trouble: str = ""
    garbage: tuple[str, ...] = ()

    def count(self) -> dict[str, int]:
        """Return how many repeats there are of each kind of state."""
        found: dict[str, int] = {}
        for repeat in self.repeats:
            kind = self.states[repeat.key].kind
            found[kind] = found.get(kind, 0) + 1
        return found

    @property
    def failed(self) -> int:
        """Repeats that have ended badly, or of which nobody knows how, or not for certain yet."""
        return sum(
            state.kind in {Kind.FAILED, Kind.UNKNOWN}
            or (state.word == "COMPLETED" and not state.kind.over)
            for state in self.states.values()
        )


def open_campaign(directory: Path) -> TrackedCampaign:
    """Return a campaign to watch.

    Raises:
        UsageError: It has no manifest, or a damaged one.
    """
    return TrackedCampaign(directory, store.read_manifest(directory))


def unfinished(runs: Path, *, run: Runner) -> tuple[TrackedCampaign, ...]:
    """Return the campaigns under a runs directory that are not over for certain.

    What has no readable manifest is passed over.
    """
    campaigns: list[TrackedCampaign] = []
    for directory in store.find_campaigns(runs):
        with contextlib.suppress(UsageError):
            campaigns.append(open_campaign(directory))
    living: list[TrackedCampaign] = []
    for runs_on, those in scheduler.each(campaigns, World(run)):
        living += runs_on.living(those)
    return tuple(one for one in campaigns if one in living)


def begun(runs: Path, known: Collection[Path]) -> tuple[TrackedCampaign, ...]:
    """Return the campaigns under a runs directory that are not known, and were submitted.

    Args:
        runs: The directory.
        known: Campaigns to pass over.
    """
    found: list[TrackedCampaign] = []
    for directory in store.find_campaigns(runs):
        if directory not in known:
            with contextlib.suppress(UsageError):
                found.append(open_campaign(directory))
    return tuple(one for one in found if one.campaign.accepted)


@dataclass(frozen=True)
class Sinks:
    """Where what is seen goes.

    Attributes:
        changes: Gets what changed, right after each poll; never an empty sequence.
        view: Gets all there is, after each poll and every `refresh` seconds between; None where
            nobody looks at it.
        refresh: Seconds.
    """

    changes: Callable[[Sequence[Change]], None] = lambda _: None
    view: Callable[[View], None] | None = None
    refresh: float = 2.0


def watch(
    watched: Sequence[TrackedCampaign],
    sinks: Sinks,
    *,
    run: Runner,
    floor: float,
    once: bool = False,
    tolerance: int = TOLERANCE,
    clock: Callable[[], float] = time.time,
    pause: Callable[[float], None] = time.sleep,
    chance: Callable[[], float] = random.random,
) -> View:
    """Follow campaigns until nothing can change any more.

    Args:
        watched: The campaigns.
        sinks: Where what is seen goes.
        run: Starts sacct and squeue.
        floor: Shortest interval between two questions to Slurm, seconds.
        once: Look once only.
        tolerance: Polls in a row that may go without any answer.
        clock: Seconds since the epoch.
        pause: Waits a number of seconds.
        chance: A number in [0, 1), for jitter.

    Returns:
        What there was in the end.

    Raises:
        SchedulerError: Slurm gave no answer for too long, or is not on this machine although
            states are open. The jobs are left alone.
    """
    world = World(run, now=clock, pause=pause)
    watched = [scheduler.of(one.campaign.scheduler, world).adopted(one) for one in watched]
    tracker = Tracker(watched, run=run, clock=clock, chance=chance, floor=floor)
    repeats = tuple(repeat for one in watched for repeat in one.repeats)
    while True:
        began = time.thread_time()
        changed = tracker.poll()
        now = clock()
        trouble = tracker.complaint if tracker.failures else ""
        view = View(repeats, tracker.states, now, trouble, tracker.garbage)
        changes = [
            Change(repeat, changed[repeat.key], now) for repeat in repeats if repeat.key in changed
        ]
        if changes:
            sinks.changes(changes)
        if sinks.view:
            sinks.view(view)
        if once or tracker.over():
            return view
        if tracker.absent or tracker.failures >= tolerance:
            raise unreachable(view)
        rest = max(_SHORTEST, tracker.pause())
        # Of thousands of repeats each picture costs something: it is drawn less often.
        refresh = max(sinks.refresh, (time.thread_time() - began) * _SPARING)
        _rest(min(rest, refresh) if sinks.view else rest, tracker, pause)


def _rest(seconds: float, tracker: Tracker, pause: Callable[[float], None]) -> None:
    """Wait, but no longer than until jobs wrote what makes a poll worth it."""
    while seconds > 0:
        began = time.thread_time()
        if tracker.stirred():
            return
        look = max(_LOOK, (time.thread_time() - began) * _SPARING)
        pause(min(seconds, look))
        seconds -= look


def unreachable(view: View) -> SchedulerError:
    """Return the error that says that Slurm does not answer."""
    open_ = sum(not state.kind.over for state in view.states.values())
    names = list(dict.fromkeys(repeat.watched.campaign.id for repeat in view.repeats))
    again = " ".join(["hpcbert monitor", *names[: len(names) == 1]])
    return SchedulerError(
        f"Neither sacct nor squeue answers, {open_} repeats are open: {view.trouble}",
        hint=f"The jobs are left alone. Once Slurm answers: {again}; collect reads what is there.",
    )


def detail(repeat: Repeat, progress: Progress | None, *, now: float) -> Detail:
    """Return how far a running repeat is, from the last lines of its log."""
    iterations = repeat.watched.campaign.protocol.iters
    iteration = progress.iteration if progress else None
    throughput = progress.throughput if progress else None
    ends = None
    if iteration is not None and throughput:
        point = sized(repeat.watched, repeat.array.point)
        samples = max(0, iterations - iteration) * point.global_batch_size
        ends = now + samples / throughput
    return Detail(iteration, iterations, throughput, ends)


def progress_reader(directory: Path) -> Callable[[Path], Progress | None]:
    """Return what reads the progress off a campaign's logs, by its own copy of the recipe.

    A recipe whose grammar is of no use here makes it return None for every log.
    """
    from hpcbert.logs.scan import progress

    known = _grammar(directory)
    return lambda log: progress(log, known) if known else None


def failure_reader(
    directory: Path,
) -> Callable[[Path, Device, tuple[Path, ...]], Failure | None]:
    """Return what says of a campaign's failed runs why they failed, by its copy of the recipe.

    It takes a log, what the run computed on, and where what its job script printed may be.

    A recipe whose grammar is of no use here makes it return None for every log.
    """
    from hpcbert.logs.failures import explain

    known = _grammar(directory)
    return lambda log, device, printed: explain(log, known, device, printed) if known else None


def _grammar(directory: Path) -> Grammar | None:
    from hpcbert.config.toml import read
    from hpcbert.logs import grammar

    path = directory / store.RECIPE
    try:
        return grammar.parse(read(path).get("log", {}), where=str(path))
    except HpcbertError:
        return None


def log_path(repeat: Repeat, state: RepeatState) -> Path:
    """Return the log of the attempt that a state is about."""
    return store.log_path(repeat.watched.directory, repeat.array, repeat.number, state.attempt)
