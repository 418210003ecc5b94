"""The protocol of a scheduler: what the use cases ask of it, and in which words it answers."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from hpcbert.campaign import store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.errors import HpcbertError, IncompleteError
from hpcbert.model import utc
from hpcbert.scheduler.poller import PlainPoller
from hpcbert.system.lazy import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from hpcbert.campaign.ledger import Ledger
    from hpcbert.campaign.repeats import Key, Repeat
    from hpcbert.config.recipe import Recipe
    from hpcbert.config.schedulers import Traits
    from hpcbert.config.site import Site
    from hpcbert.finding import Finding
    from hpcbert.model import Array, Campaign
    from hpcbert.scheduler.poller import Poller
    from hpcbert.script.resolve import SubmitOptions
    from hpcbert.slurm.states import RepeatState
    from hpcbert.system.runner import Runner
    from hpcbert.timelimit import TimeLimit

# The command that goes on with a submission, without the campaign.
RESUME = "hpcbert submit --resume"
# Seconds between two looks at the queue. sbatch dies with hpcbert, but what it had sent may still
# lie before slurmctld, which answers a query first at times.
SETTLE = 10.0


class World(NamedTuple):
    """What a scheduler needs of the world.

    Attributes:
        run: Starts programs.
        now: Clock, seconds since the epoch.
        pause: Waits a number of seconds.
        settle: Seconds between two looks at the queue, before nothing is believed to be nothing.
        check: Called before each array: raises where somebody wants no more of them submitted.
        again: The command that goes on where a submission had to stop, without the campaign.
        environ: Environment that the programs' own is made of.
    """

    run: Runner
    now: Callable[[], float] = time.time
    pause: Callable[[float], None] = time.sleep
    settle: float = SETTLE
    check: Callable[[], None] = lambda: None
    again: str = RESUME
    environ: Mapping[str, str] = os.environ


@dataclass(frozen=True)
class Job:
    """A job that was started or found.

    Attributes:
        cluster: Empty where it was not told.
        seen: Whether the scheduler showed it; else the job itself told of it.
    """

    job_id: str
    cluster: str = ""
    seen: bool = True

    def of(self, array: Array, stamp: str) -> Array:
        """Return its array as submitted; `stamp` is the time, ISO 8601 UTC."""
        return replace(
            array,
            state="submitted",
            job_id=self.job_id,
            cluster=(self.cluster or array.cluster) if array.cluster else "",
            submitted=array.submitted or stamp,
            seen=stamp if self.seen else array.seen,
            error="",
        )


@dataclass(frozen=True)
class Target:
    """What of a campaign there is to cancel.

    Attributes:
        jobs: Their ids; for a local campaign its queue's.
        repeats: Repeats that wait or run in them.
        clusters: Of each job; empty for the one of Slurm's configuration.
        left: What the manifest names and is not this campaign's: left alone, a sentence each.
    """

    jobs: tuple[str, ...]
    repeats: tuple[Repeat, ...]
    clusters: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    """One thing that a dry run tried.

    Attributes:
        ok: Whether it went well; None where it could not be tried.
    """

    name: str
    ok: bool | None
    detail: str


@dataclass(frozen=True)
class Supply:
    """What a partition has and allows.

    Attributes:
        state: `up`, `down`, `drain` or `inact`.
        limit: What a job may ask for.
        most_nodes: Nodes that a job may have; None without a limit.
        nodes: How many it has.
        fitting: How many of them have what the job asks of each.
        usable: How many run jobs or could; None: it is not told.
        free: How many run nothing now and could; None likewise.
        resources: What nodes have, `gpu:v100:8`.
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
        when: Seconds since the epoch; None: nobody says.
        nodes: Where, as Slurm writes nodes; empty likewise.
        refused: Why it would be refused; empty: it would not.
    """

    when: float | None = None
    nodes: str = ""
    refused: str = ""


class NoRoomError(IncompleteError):
    """The person has as many jobs as the cluster allows; the rest can be submitted later."""


class Scheduler(ABC):
    """Runs campaigns: each method asks it for one thing, and has what a simple one answers.

    Args:
        traits: What sets it apart, for who writes scripts for it or reads what it left.
        world: What it needs of the world.
    """

    def __init__(self, traits: Traits, world: World) -> None:
        self.traits, self.world = traits, world

    @abstractmethod
    def submit(self, directory: Path, campaign: Campaign) -> Campaign:
        """Hand over every array that is not submitted yet, adopting what is there already.

        That an array is about to be handed over is on disk before, and what came of it after.

        Args:
            directory: The campaign; the caller holds its lock.
            campaign: Its manifest.

        Returns:
            The manifest as it is on disk in the end.

        Raises:
            SchedulerError: It refused an array, or can't be reached, or can't say what it has.
                Everything submitted so far is in the manifest.
            NoRoomError: It takes no more for now.
            UsageError: The campaign's scripts were changed.
            HpcbertError: The directory can't be written to.
        """

    @abstractmethod
    def states(self, watched: TrackedCampaign) -> Mapping[Key, RepeatState]:
        """Return the state of every repeat at this moment, by array name and repeat.

        Works on a copied directory where there is no scheduler: the jobs' own status files speak.
        """

    @abstractmethod
    def cancel(self, watched: TrackedCampaign, target: Target) -> None:
        """End jobs of a campaign: what `living_jobs` returned, at least one.

        Raises:
            SchedulerError: The scheduler refused, or the jobs have ended already.
        """

    def adopted(self, watched: TrackedCampaign, *, strict: bool = False) -> TrackedCampaign:
        """Return a campaign in which interrupted submissions have the jobs that they made.

        Who watches or collects looks for them too. It is written down if that can be done.

        Args:
            watched: The campaign.
            strict: Whether it is an error if the scheduler can't say or the manifest can't be
                written; else what is not told at this moment stays as it is.

        Raises:
            HpcbertError: As `strict` says.
        """
        return watched

    def poller(
        self, watched: Sequence[TrackedCampaign], *, floor: float, chance: Callable[[], float]
    ) -> Poller:
        """Return what follows campaigns, at a pace that suits the scheduler.

        Args:
            watched: The campaigns.
            floor: Shortest interval between two questions, seconds.
            chance: A number in [0, 1), for jitter.
        """
        return PlainPoller(self.states, watched)

    def living(self, campaigns: Sequence[TrackedCampaign]) -> Sequence[TrackedCampaign]:
        """Return the campaigns that are not over for certain."""
        return [one for one in campaigns if self.living_jobs(one).repeats]

    def living_jobs(self, watched: TrackedCampaign) -> Target:
        """Return what of a campaign waits or runs.

        Raises:
            SchedulerError: The scheduler does not answer, so nothing can be told for certain.
        """
        states = self.states(watched)
        alive = tuple(one for one in watched.repeats if states[one.key].kind.alive)
        return Target(tuple(dict.fromkeys(one.array.job_id for one in alive)), alive)

    def refuse_doubling(  # noqa: B027 - what is over by `states` is over
        self, watched: TrackedCampaign, missing: Sequence[tuple[Array, int]]
    ) -> None:
        """Raise an error if a job of a repeat that is believed to be over still lives.

        Args:
            watched: The campaign.
            missing: Arrays and numbers of repeats that are about to be submitted again.

        Raises:
            SchedulerError: There is such a job, or the scheduler does not answer.
        """

    def foreseen(self, site: Site, recipe: Recipe) -> Iterable[Sequence[str]]:
        """Return commands that `fit` and `obstacles` will most likely ask, with `asking`."""
        return ()

    @property
    def asking(self) -> Mapping[str, str]:
        """The environment of commands that ask the scheduler something."""
        return self.world.environ

    def fit(self, options: SubmitOptions, site: Site, recipe: Recipe) -> SubmitOptions:
        """Return the options of a submission with what only the scheduler knows of itself."""
        return replace(options, most_indices=self.most_repeats(site))

    def most_repeats(self, site: Site) -> int | None:
        """Return how many repeats one array may have; None: there is no limit."""
        return None

    def nodes(self, script: str) -> Mapping[str, bool] | None:
        """Return the nodes that a script may run on, and whether each is usable now.

        None: its jobs can't keep away from nodes.
        """
        return None

    def describe(self, directory: Path, array: Array) -> str:
        """Return how an array is handed over, for who looks at a dry run."""
        return f"({self.traits.name} queue)"

    def checks(self, scripts: Mapping[str, str]) -> tuple[Check, ...]:
        """Try scripts, by path, without writing or submitting anything."""
        return tuple(map(self.check_syntax, scripts, scripts.values()))

    def check_syntax(self, path: str, script: str) -> Check:
        """Return what `bash -n` says of a script."""
        outcome = self.world.run(["bash", "-n"], stdin=script)
        return Check(f"bash -n {path}", outcome.ok, outcome.stderr.strip())

    def supply(self, script: str) -> tuple[Supply, ...]:
        """Return what the partitions have that a script may run in; none where there are none."""
        return ()

    def forecast(self, script: str) -> Start:
        """Return when the job of a script would start; nothing is submitted.

        Raises:
            SchedulerError: It can't be asked.
        """
        return Start()

    def obstacles(self, directory: Path, scripts: Sequence[str]) -> Iterable[Finding]:
        """Return what would keep jobs from running, as far as it is known before.

        Args:
            directory: The campaign.
            scripts: Texts of its arrays' scripts.

        Raises:
            UsageError: A script's time limit has none of the known forms.
        """
        return ()

    def examine(self, site: Site, *, nodes: int) -> Iterable[Finding]:
        """Return whether the scheduler can be used as the site says.

        Args:
            site: What is to be checked.
            nodes: How many nodes a job would take.
        """
        return ()


def record(ledger: Ledger, *arrays: Array, flush: bool = True) -> None:
    """Write arrays down; a job whose id can't be written down is named at least.

    Args:
        ledger: Where.
        arrays: As they are now.
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
            f"Job {arrays[0].job_id} is submitted, but that can't be written down: {error.message}",
            where=error.where,
            hint=f"Make room, then: {RESUME} {ledger.directory.name} finds it.",
        ) from error


class PlainScheduler(Scheduler):
    """Takes what it is given: starts jobs, and finds those that were started before.

    Attributes:
        one_job: Whether one job runs all arrays of a submission; else each has its own.
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
        new = campaign.unsubmitted
        for array in new:
            store.read_script(directory, array)
        with store.changing(directory, campaign) as ledger:
            for arrays in [new] if self.one_job and new else [(one,) for one in new]:
                self.world.check()
                self._hand_over(ledger, arrays)
        return ledger.campaign

    def _hand_over(self, ledger: Ledger, arrays: tuple[Array, ...]) -> None:
        job_id = self._left_behind(ledger, arrays)
        if not job_id:
            arrays = tuple(replace(one, called=utc(self.world.now())) for one in arrays)
            record(ledger, *arrays)
            job_id = self.start(ledger.directory, replace(ledger.campaign, arrays=arrays))
        job, stamp = Job(job_id, seen=False), utc(self.world.now())
        record(ledger, *(job.of(one, stamp) for one in arrays))

    def _left_behind(self, ledger: Ledger, arrays: Sequence[Array]) -> str:
        if not any(array.called for array in arrays):
            return ""
        found = self.find(ledger.directory, arrays)
        if not found:
            self.world.pause(1.0)  # It may just have been started.
            found = self.find(ledger.directory, arrays)
        watched = TrackedCampaign(ledger.directory, ledger.campaign)
        return found or next(filter(None, (begun_by(watched, one) for one in arrays)), "")


def begun_by(watched: TrackedCampaign, array: Array) -> str:
    """Return the job that has begun one of an array's repeats by its own account, or nothing."""
    for number in array.repeats:
        record = watched.record(array, number)
        for attempt in sorted(one for one in record.attempts if one >= array.first_attempt):
            if jobs := record.attempt(attempt).jobs:
                return jobs[0].rpartition("_")[0]
    return ""
