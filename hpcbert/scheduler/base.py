"""The protocol of a scheduler: the questions of the use cases, and the form of its answers."""

from __future__ import annotations

import math
import os
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from hpcbert.campaign import store
from hpcbert.campaign.repeats import Key, Repeat, TrackedCampaign
from hpcbert.campaign.store import Ledger
from hpcbert.config.schedulers import Traits
from hpcbert.errors import HpcbertError, IncompleteError
from hpcbert.model import Array, Campaign, JobRequest, format_utc
from hpcbert.slurm.states import RepeatState
from hpcbert.system.runner import Runner
from hpcbert.timelimit import TimeLimit

if TYPE_CHECKING:  # with containers and recipes, which tracking does not need
    from hpcbert.config.recipe import Recipe
    from hpcbert.config.site import Site
    from hpcbert.finding import Finding
    from hpcbert.script.resolve import SubmitOptions

States = Mapping[Key, RepeatState]

# The command that continues a submission, without the campaign.
RESUME = "hpcbert submit --resume"
# Seconds between two looks at the queue. sbatch dies with hpcbert, but its request may still be on
# its way to slurmctld, which sometimes answers a query first.
SETTLE = 10.0
# Shortest interval between two queries of a shared scheduler, seconds.
FLOOR = 10.0
# The longest one in multiples of that: 60 seconds.
MAX_FACTOR = 6
_GROWTH = 1.5
_JITTER = 0.2
# Seconds between two looks at what needs no query.
INTERVAL = 1.0


class SchedulerContext(NamedTuple):
    """How a scheduler reaches programs, the clock and the user.

    Attributes:
        chance: A number in [0, 1), for jitter.
        settle: Seconds between two looks at the queue before concluding that no job exists.
        check: Called before each array: raises to stop the submission.
        again: The command that continues where a submission had to stop, without the campaign.
        environ: The environment to derive that of programs from.
        resumed: Whether the campaign was there before this process: its manifest may be a restored
            copy, so that jobs may exist whatever it says.
    """

    run: Runner
    now: Callable[[], float] = time.time
    pause: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random
    settle: float = SETTLE
    check: Callable[[], None] = lambda: None
    again: str = RESUME
    environ: Mapping[str, str] = os.environ
    resumed: bool = False


@dataclass(frozen=True)
class Job:
    """A job that was started or found.

    Attributes:
        confirmed: Whether it is known to be the array's.
        changed, submit_time: As of an array.
    """

    job_id: str
    cluster: str = ""
    confirmed: bool = True
    changed: tuple[tuple[str, str, str], ...] = ()
    submit_time: float | None = None

    def of(self, array: Array, stamp: str) -> Array:
        """Return its array as submitted; `stamp` is the time, ISO 8601 UTC."""
        previous = array if array.job_id == self.job_id else None
        return replace(
            array,
            state="submitted",
            job_id=self.job_id,
            cluster=(self.cluster or array.cluster) if array.cluster else "",
            submitted=array.submitted or stamp,
            seen=stamp if self.confirmed else "",
            changed=self.changed or (previous.changed if previous else ()),
            submit_time=self.submit_time or (previous.submit_time if previous else None),
            error="",
        )


@dataclass(frozen=True)
class Target:
    """The jobs of a campaign that can be cancelled.

    Attributes:
        jobs: Their ids; for a local campaign, its queue's.
        repeats: Repeats that wait or run in them.
        clusters: The cluster of each job; empty for the one of Slurm's configuration.
        left: Jobs that the manifest names but that belong to others: left alone, a sentence each.
    """

    jobs: tuple[str, ...]
    repeats: tuple[Repeat, ...]
    clusters: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    """One trial of a dry run.

    Attributes:
        ok: Whether it succeeded; None if it could not be tried.
    """

    name: str
    ok: bool | None
    detail: str


@dataclass(frozen=True)
class Supply:
    """What a partition has and allows.

    Attributes:
        fitting: Number of nodes that have what the job requests of each.
        usable: Number of these that run jobs or could; None if unknown.
        free: Number of these that run nothing now and could; None if unknown.
    """

    name: str
    state: str
    limit: TimeLimit
    most_nodes: int | None
    nodes: int
    fitting: int
    usable: int | None
    free: int | None
    resources: tuple[str, ...]


@dataclass(frozen=True)
class Start:
    """When a job would start.

    Attributes:
        refused: Why it would be refused; empty if it would not.
        absence: The nodes, with states, that run no jobs now and for which it would wait.
    """

    when: float | None = None
    nodes: str = ""
    refused: str = ""
    absence: str = ""


class NoRoomError(IncompleteError):
    """The user has as many jobs as the cluster allows; the rest can be submitted later."""


@dataclass(frozen=True)
class Pace:
    """The interval between two polls.

    Attributes:
        floor: Shortest interval, seconds; the longest is six times that.
        interval: The present one, before jitter.
    """

    floor: float = FLOOR
    interval: float = 0.0

    def after(self, *, changed: bool, failed: bool) -> Pace:
        """Return the pace after a poll: faster after a change, slower after a failure."""
        if failed:
            interval = max(self.floor, self.interval) * 2
        elif changed or not self.interval:
            interval = self.floor
        else:
            interval = self.interval * _GROWTH
        return replace(self, interval=min(interval, self.floor * MAX_FACTOR))

    def seconds(self, chance: float) -> float:
        """Return the seconds to the next poll; `chance`, in [0, 1), sets the jitter."""
        return max(self.floor, self.interval) * (1 + _JITTER * chance)


class Poller(Protocol):
    """Polls one scheduler about campaigns.

    Attributes:
        states: The states of the last poll, by array name and repeat.
        failures: Polls in a row in which the scheduler gave no answer.
        absent: Whether there is no scheduler to ask, so that asking again is useless.
        garbage: The first few lines of the last answers that could not be read.
    """

    states: dict[Key, RepeatState]
    failures: int = 0
    complaint: str = ""
    absent: bool = False
    garbage: tuple[str, ...] = ()

    def poll(self) -> None:
        """Poll once if the next poll is due."""

    def pause(self) -> float | None:
        """Return the seconds until the next poll is worthwhile; None: none will be."""

    def has_news(self) -> bool:
        """Return, without any query, whether jobs wrote something that makes a poll worthwhile."""

    def seconds_to_news(self) -> float:
        """Return the seconds until it is time for `has_news` even if nothing is written."""
        return math.inf

    def is_final(self, key: Key) -> bool:
        """Return whether a repeat's state no longer changes, even if its end stays unknown."""


class PlainPoller(Poller):
    """Asks at every poll, and trusts the answer."""

    def __init__(
        self,
        ask: Callable[[TrackedCampaign], States],
        watched: Sequence[TrackedCampaign],
    ) -> None:
        self._ask, self._watched = ask, watched
        self._idle_looks = 0
        self.states = {}

    def poll(self) -> None:
        """Ask about every campaign."""
        for tracked_campaign in self._watched:
            repeat_states = self._ask(tracked_campaign)
            # Repeats that a retry replaced are not waited for.
            self.states |= {
                repeat.key: repeat_states[repeat.key] for repeat in tracked_campaign.repeats
            }

    def pause(self) -> float | None:
        """Return a constant interval, seconds."""
        return INTERVAL

    def has_news(self) -> bool:
        """Return whether a job's record on disk has changed since the last look."""
        has_news = any(tracked.records.reread_changed() for tracked in self._watched)
        self._idle_looks = 0 if has_news else self._idle_looks + 1
        return has_news

    def seconds_to_news(self) -> float:
        """Return the seconds to the next look, which comes soon after a change."""
        return self._idle_looks / 100

    def is_final(self, key: Key) -> bool:
        """Return whether a repeat neither waited nor ran at the last poll."""
        return key in self.states and not self.states[key].kind.alive


def has_changed(before: RepeatState | None, after: RepeatState) -> bool:
    """Return whether word, kind or attempt differ; True without a state before."""
    return before is None or any(
        getattr(before, name) != getattr(after, name) for name in ("word", "kind", "attempt")
    )


class Scheduler(ABC):
    """Runs campaigns; a method that is not overridden gives the answer of a simple scheduler."""

    def __init__(self, traits: Traits, context: SchedulerContext) -> None:
        self.traits, self.context = traits, context

    @abstractmethod
    def submit(self, directory: Path, campaign: Campaign) -> Campaign:
        """Hand over every array that is not submitted yet, adopting jobs that exist already.

        The intent to hand over an array is on disk before that, and the result after.

        Args:
            directory: The campaign; the caller holds its lock.

        Returns:
            The manifest as it is on disk in the end.

        Raises:
            SchedulerError: It refused an array, or can't be reached, or can't say what it has.
                Everything submitted so far is in the manifest.
            NoRoomError: It accepts no more for now.
            UsageError: The campaign's scripts were changed.
            HpcbertError: The directory can't be written to.
        """

    @abstractmethod
    def states(self, watched: TrackedCampaign) -> States:
        """Return the state of every repeat at this moment, by array name and repeat.

        On a copied directory without a scheduler, the jobs' own status files are used.
        """

    @abstractmethod
    def cancel(self, watched: TrackedCampaign, target: Target) -> None:
        """End jobs of a campaign: at least one of those that `living_jobs` returned.

        Raises:
            SchedulerError: The scheduler refused, or the jobs have ended already.
        """

    def adopt_jobs(self, watched: TrackedCampaign, *, strict: bool = False) -> TrackedCampaign:
        """Return a campaign in which interrupted submissions have the jobs that they made.

        Watching and collecting look for these too. The result is written to the manifest if
        possible.

        Args:
            strict: Whether it is an error if the scheduler can't say or the manifest can't be
                written; otherwise what is unknown at the moment stays as it is.

        Raises:
            HpcbertError: As `strict` says.
        """
        return watched

    def poller(self, watched: Sequence[TrackedCampaign], *, floor: float) -> Poller:
        """Return a poller of campaigns, at a pace that suits the scheduler.

        Args:
            floor: Shortest interval between two queries, seconds.
        """
        return PlainPoller(self.states, watched)

    def select_living(self, campaigns: Sequence[TrackedCampaign]) -> Sequence[TrackedCampaign]:
        """Return the campaigns that are not certainly over."""
        return [campaign for campaign in campaigns if self.living_jobs(campaign).repeats]

    def living_jobs(self, watched: TrackedCampaign) -> Target:
        """Return the jobs of a campaign that wait or run.

        Raises:
            SchedulerError: The scheduler does not answer, so nothing is certain.
        """
        states = self.states(watched)
        alive = tuple(repeat for repeat in watched.repeats if states[repeat.key].kind.alive)
        return Target(tuple(dict.fromkeys(repeat.array.job_id for repeat in alive)), alive)

    def refuse_doubling(  # noqa: B027 - `states` is final about what is over
        self, watched: TrackedCampaign, missing: Sequence[tuple[Array, int]]
    ) -> None:
        """Raise an error if a repeat that seems to be over still has a live job.

        Args:
            missing: Arrays and numbers of repeats that are about to be resubmitted.

        Raises:
            SchedulerError: There is such a job, or the scheduler does not answer.
        """

    def fit(self, options: SubmitOptions, site: Site, recipe: Recipe) -> SubmitOptions:
        """Return the options of a submission, completed with what only the scheduler knows."""
        return replace(options, most_indices=self.most_repeats(site))

    def most_repeats(self, site: Site) -> int | None:
        """Return the maximum number of repeats of one array; None: there is no limit."""
        return None

    def nodes(self, request: JobRequest) -> Mapping[str, bool] | None:
        """Return the nodes that a job may run on, and whether each is usable now.

        None: jobs can't exclude nodes.
        """
        return None

    def submit_argv(self, directory: Path, array: Array) -> Sequence[str]:
        """Return the command that submits an array; empty if no command does."""
        return ()

    def checks(self, scripts: Mapping[str, str]) -> tuple[Check, ...]:
        """Try scripts, by path, without writing or submitting anything."""
        return tuple(map(self.check_syntax, scripts, scripts.values()))

    def check_syntax(self, path: str, script: str) -> Check:
        """Return the result of `bash -n` on a script."""
        outcome = self.context.run(["bash", "-n"], stdin=script)
        return Check(f"bash -n {path}", outcome.ok, outcome.stderr.strip())

    def supply(self, request: JobRequest) -> tuple[Supply, ...]:
        """Return the nodes and limits of a job's partitions; empty if there are no partitions."""
        return ()

    def forecast(self, script: str) -> Start:
        """Return when the job of a script would start; nothing is submitted.

        Raises:
            SchedulerError: It can't be asked.
        """
        return Start()

    def obstacles(self, directory: Path, requests: Sequence[JobRequest]) -> Iterable[Finding]:
        """Return findings about what would keep jobs from running, as far as known in advance."""
        return ()

    def impossible(self, arrays: Iterable[Array], scripts: Mapping[str, str]) -> Iterable[Finding]:
        """Return the requests that it would accept and could never meet."""
        return ()

    def examine(self, site: Site, *, nodes: int) -> Iterable[Finding]:
        """Check that the scheduler can be used as the site says."""
        return ()


def record_arrays(ledger: Ledger, *arrays: Array, flush: bool = True) -> None:
    """Record arrays; if a job's id can't be recorded, name it in the error.

    Args:
        flush: As of `Ledger.put`.

    Raises:
        HpcbertError: The file system refused.
    """
    try:
        ledger.put(*arrays, flush=flush)
    except HpcbertError as error:
        if not arrays[0].job_id:
            raise
        raise HpcbertError(
            f"Job {arrays[0].job_id} was submitted, but hpcbert can't record it: {error.message}",
            where=error.where,
            hint=f"Free some space, then run {RESUME} {ledger.directory.name}, which finds it.",
        ) from error


class PlainScheduler(Scheduler):
    """Accepts everything: starts jobs, and finds those that were started before.

    Attributes:
        one_job: Whether one job runs all arrays of a submission; otherwise each has its own.
    """

    one_job = False

    @abstractmethod
    def start(self, directory: Path, campaign: Campaign) -> str:
        """Start a job that runs the arrays of a campaign, which are on disk; return its id.

        Raises:
            SchedulerError: It can't be started.
        """

    @abstractmethod
    def find(self, directory: Path, arrays: Sequence[Array]) -> str:
        """Return the job that an interrupted submission of arrays made, or nothing."""

    def submit(self, directory: Path, campaign: Campaign) -> Campaign:
        """Hand over every array that is not submitted yet, adopting what is there already."""
        unsubmitted = campaign.unsubmitted
        for array in unsubmitted:
            store.read_script(directory, array)
        with closing(store.Ledger(directory, campaign)) as ledger:
            for arrays in (
                [unsubmitted]
                if self.one_job and unsubmitted
                else [(array,) for array in unsubmitted]
            ):
                self.context.check()
                self._hand_over(ledger, arrays)
        return ledger.campaign

    def _hand_over(self, ledger: Ledger, arrays: tuple[Array, ...]) -> None:
        job_id = self._find_earlier_job(ledger, arrays)
        if not job_id:
            arrays = tuple(
                replace(array, called=format_utc(self.context.now())) for array in arrays
            )
            record_arrays(ledger, *arrays)
            job_id = self.start(ledger.directory, replace(ledger.campaign, arrays=arrays))
        job, stamp = Job(job_id, confirmed=False), format_utc(self.context.now())
        record_arrays(ledger, *(job.of(array, stamp) for array in arrays))

    def _find_earlier_job(self, ledger: Ledger, arrays: Sequence[Array]) -> str:
        if not self.context.resumed and not any(array.called for array in arrays):
            return ""
        job_id = self.find(ledger.directory, arrays)
        if not job_id:
            self.context.pause(1.0)  # It may just have been started.
            job_id = self.find(ledger.directory, arrays)
        watched = TrackedCampaign(ledger.directory, ledger.campaign)
        return job_id or next(filter(None, map(watched.find_begun_job, arrays)), "")
