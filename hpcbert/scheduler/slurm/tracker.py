"""Following jobs: one accounting query a poll, whatever their number, through submitit.

Of submitit (1.5.4) its watcher and its job are used, and these of its ways are not:

* importing it puts a log handler on stdout: switched off before the import, below;
* it calls sacct through subprocess and swallows the failure: `Watcher.update` uses our runner and
  remembers what went wrong;
* a state outside its list counts as an end, `CANCELLED by 1000` is a state of its own, the last
  line of a job wins whichever is newer, and a job id that was used again is believed:
  `Watcher.read_info` and `is_done` go by our table, by submission time, and by name and owner;
* its polls come at intervals of its own, and one watcher serves all jobs of the process: `Tracker`
  has its own pace and its own watcher;
* `done()` looks for pickles and touches the folder, `results()` loads them, `cancel()` trusts the
  id: `RepeatJob` does none of it.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from hpcbert.campaign.repeats import Key, Lines, Repeat, TrackedCampaign
from hpcbert.errors import HpcbertError
from hpcbert.scheduler.local import queue as local
from hpcbert.scheduler.pace import FLOOR, Pace
from hpcbert.scheduler.slurm import questions
from hpcbert.slurm import commands
from hpcbert.slurm.ladder import Reports, awaited, doubtful, resolve_state
from hpcbert.slurm.states import UNHEARD, UNKNOWN, UNSUBMITTED, Kind, RepeatState, parse


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    name, before = "SUBMITIT_LOG_LEVEL", os.environ.get("SUBMITIT_LOG_LEVEL")
    os.environ[name] = "NOCONFIG"
    try:
        yield
    finally:
        os.environ.pop(name)
        os.environ |= {} if before is None else {name: before}


with _unlogged():
    from submitit.slurm.slurm import SlurmInfoWatcher, SlurmJob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hpcbert.slurm.commands import JobRow
    from hpcbert.slurm.ladder import Answer
    from hpcbert.system.runner import Runner

LOCAL_INTERVAL = 1.0
_TIMEOUT = 30.0
# Polls in which an end that is open to doubt must stand before it is believed.
_CALM = 3
# Seconds for which sacct may not know of an end yet: some at any time, more than four after a
# start of slurmctld (seen with 22.05.8).
_LAG = 20.0
# Seconds after which an array that neither sacct nor squeue knows is lost.
_FORGOTTEN = 60.0
# Every so many questions to sacct, squeue is asked about everything.
_CHECKUP = 10


class Watcher(SlurmInfoWatcher):
    """submitit's watcher with our way of asking and reading.

    Args:
        repeats: What is watched.
        run: Starts sacct.
        environ: Environment for it.
    """

    def __init__(
        self, repeats: Sequence[Repeat], *, run: Runner, environ: Mapping[str, str]
    ) -> None:
        super().__init__()
        self._owners = {repeat.tag: repeat for repeat in repeats if repeat.job_id}
        self._run = run
        self._environ = environ
        self.answer: Answer = "unasked"
        self.complaint = ""
        self.garbage: tuple[str, ...] = ()
        self.rows: dict[str, tuple[JobRow, int]] = {}
        self.history: dict[str, tuple[tuple[int, JobRow], ...]] = {}

    def update(self) -> None:
        """Ask sacct once about everything that has not ended; a failure is remembered."""
        self.answer = "absent" if self.answer == "absent" else "unasked"
        owners = [self._owners[tag] for tag in sorted(self._registered - self._finished)]
        asked = [one for owner in owners for one in (*owner.before, owner) if one.job_id]
        if not asked or self.answer == "absent":
            return
        self._num_calls += 1
        outcome, self.answer = questions.ask(self._run, questions.sacct(asked), self._environ)
        self.complaint = outcome.stderr.strip()
        if outcome.ok:
            self._info_dict.update(self.read_info(outcome.stdout))
        self._finished |= {one for one in self._registered if self.is_done(one, mode="cache")}

    def read_info(self, string: bytes | str) -> dict[str, dict[str, str]]:
        """Return submitit's view of what sacct printed, and remember ours in `rows`."""
        text = string.decode(errors="replace") if isinstance(string, bytes) else string
        listing = commands.read_sacct(text)
        self.garbage = listing.garbage
        lines = Lines(listing.rows)
        info = {}
        for tag, repeat in self._owners.items():
            row, before = lines.newest(repeat)
            self.history[tag] = lines.attempts(repeat) or self.history.get(tag, ())
            if row is not None:
                self.rows[tag] = row, before
                info[tag] = {"JobID": tag, "State": row.state, "NodeList": row.nodelist}
        return info

    def get_state(self, job_id: str, mode: str = "force") -> str:
        """Return the state's word from our table."""
        return parse(self.get_info(job_id, mode=mode).get("State", UNKNOWN)).word

    def is_done(self, job_id: str, mode: str = "force") -> bool:
        """Say whether the job has ended for good; what Slurm may start anew has not."""
        state = parse(self.get_state(job_id, mode=mode))
        return state.kind.over and not state.returns


class RepeatJob(SlurmJob[None]):
    """submitit's view of one repeat: state and end, from the tracker's last poll.

    Args:
        repeat: Which one; it has a job id.
        watcher: The tracker's.
    """

    def __init__(self, repeat: Repeat, watcher: Watcher) -> None:
        self.watcher = watcher
        super().__init__(repeat.watched.directory, repeat.tag)

    @property
    def state(self) -> str:
        """The state's word at the last poll."""
        return self.watcher.get_state(self.job_id, mode="cache")

    def done(self, force_check: bool = False) -> bool:
        """Say whether it has ended; `force_check` polls first."""
        return self.watcher.is_done(self.job_id, mode="force" if force_check else "cache")

    def results(self) -> NoReturn:
        """Refuse: a result is a log, and no pickle is read from a campaign."""
        raise HpcbertError("A repeat has no Python result.", hint="hpcbert collect reads its log.")

    def cancel(self, check: bool = True) -> NoReturn:  # noqa: ARG002 - submitit's signature
        """Refuse: job ids are used again, so name and owner have to be looked at first."""
        raise HpcbertError("A repeat is not cancelled by its id.", hint="Use hpcbert cancel.")


class Tracker:
    """Polls campaigns and knows the state of their repeats.

    At most one sacct and one squeue are run in a poll. Campaigns of the local queue cost nobody
    anything and are looked at in every poll; Slurm is asked when its pace says so.

    Args:
        watched: The campaigns.
        run: Starts sacct and squeue.
        environ: Environment that the commands' own is made of.
        clock: Seconds since the epoch.
        chance: A number in [0, 1), for jitter.
        floor: Shortest interval between two questions to Slurm, seconds.

    Attributes:
        states: What the last poll knew, by array name and repeat.
        failures: Polls in a row in which Slurm was asked and neither command answered.
        complaint: What the commands said then.
        absent: Whether neither command is there, so that asking again is useless.
        garbage: Lines that the commands printed and nobody understood, the first few.
    """

    def __init__(
        self,
        watched: Sequence[TrackedCampaign],
        *,
        run: Runner,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
        floor: float = FLOOR,
    ) -> None:
        self._local = [one for one in watched if one.campaign.scheduler == "local"]
        self._slurm = [one for one in watched if one.campaign.scheduler != "local"]
        self._repeats = [repeat for one in self._slurm for repeat in one.repeats]
        self._run, self._clock, self._chance = run, clock, chance
        self._environ = commands.environment(environ)
        self._watcher = Watcher(self._repeats, run=run, environ=self._environ)
        with_id = {repeat.tag: repeat for repeat in self._repeats if repeat.job_id}
        self.jobs = {tag: RepeatJob(one, self._watcher) for tag, one in with_id.items()}
        self._pace, self._due = Pace(floor=floor), 0.0
        self._calm: dict[Key, int] = {}
        self._known: set[str] = set()
        self._squeue: Answer = "unasked"
        self._queue_garbage: tuple[str, ...] = ()
        self.states: dict[Key, RepeatState] = {}
        self.failures = 0
        self.complaint = ""

    @property
    def absent(self) -> bool:
        """Whether there is no Slurm to ask."""
        return self._watcher.answer == "absent" and self._squeue == "absent"

    @property
    def garbage(self) -> tuple[str, ...]:
        """What the last answers held that was not understood."""
        return (*self._watcher.garbage, *self._queue_garbage)

    def poll(self) -> dict[Key, RepeatState]:
        """Look once and return the states that changed since the last look."""
        before = dict(self.states)
        for one in self._local:
            self.states |= local.states(one, now=self._clock())
        asked = bool(self._open()) and self._clock() >= self._due
        if asked:
            self._ask()
        changed = {
            key: state for key, state in self.states.items() if _differ(before.get(key), state)
        }
        if asked:
            self._pace = self._pace.after(changed=bool(changed), failed=self.failures > 0)
            self._due = self._clock() + self._pace.seconds(self._chance())
        return changed

    def pause(self) -> float:
        """Return the seconds to wait before the next poll is worth it."""
        slurm = [max(0.0, self._due - self._clock())] if self._open() else []
        return min([*slurm, *([LOCAL_INTERVAL] if self._local else [])], default=0.0)

    def over(self) -> bool:
        """Say whether nothing watched can change any more, as far as anybody can tell."""
        local_keys = [repeat.key for one in self._local for repeat in one.repeats]
        return not self._open() and all(
            key in self.states and not self.states[key].kind.alive for key in local_keys
        )

    def settled(self, key: Key) -> bool:
        """Say whether a repeat's state is an end that stands beyond doubt, or never will."""
        if any(repeat.key == key for repeat in self._repeats):
            return self._settled(key)
        return key in self.states and not self.states[key].kind.alive

    def _open(self) -> list[Repeat]:
        return [repeat for repeat in self._repeats if not self._settled(repeat.key)]

    def _settled(self, key: Key) -> bool:
        return self._calm.get(key, 0) >= _CALM

    def _ask(self) -> None:
        """Go down the ladder once for every repeat that is not settled."""
        self._watcher.update()
        open_ = self._open()
        for watched in self._slurm:
            watched.records.refresh()
        heard = {repeat.key: self._heard(repeat) for repeat in open_}
        doubts = [one for one in open_ if self._doubts(one, heard[one.key])]
        queue = self._ask_squeue(doubts)
        for repeat in doubts:
            row, _ = queue.newest(repeat)
            heard[repeat.key] = replace(heard[repeat.key], queue=row, squeue=self._squeue)
        self._known |= {one.array.name for one in open_ if _is_known(heard[one.key])}
        for repeat in doubts:
            if self._is_lost(repeat):
                heard[repeat.key] = replace(heard[repeat.key], lost=repeat.array.job_id)
        for repeat in open_:
            one = heard[repeat.key]
            judged = awaited(resolve_state(one), one.record, now=self._clock())
            state = _unsubmitted(repeat, one) or judged
            self.states[repeat.key] = state
            listed = _is_listed(heard[repeat.key].queue)
            self._calm[repeat.key] = 0 if listed else self._calmer(repeat, state)
        answers = {self._watcher.answer, self._squeue}
        self.failures = 0 if "answered" in answers or answers == {"unasked"} else self.failures + 1

    def _doubts(self, repeat: Repeat, heard: Reports) -> bool:
        """Say whether squeue has to be asked; now and then about all, for sacct may stand still."""
        if doubtful(heard, now=self._clock()) or self._calm.get(repeat.key, 0) > 0:
            return True
        checkup = (self._watcher.num_calls - 1) % _CHECKUP == 0
        return checkup and not self._watcher.is_done(repeat.tag, mode="cache")

    def _is_lost(self, repeat: Repeat) -> bool:
        """Say whether Slurm accepted a repeat's array some time ago and has no trace of it.

        Both commands must have answered, as far as they are there, and been understood.
        """
        array = repeat.array
        if self.garbage:
            return False
        silent = self._squeue != "answered" or self._watcher.answer not in {"answered", "absent"}
        if silent or not array.job_id or array.name in self._known:
            return False
        return self._clock() - repeat.accepted > _FORGOTTEN

    def _heard(self, repeat: Repeat) -> Reports:
        row, restarts = self._watcher.rows.get(repeat.tag, (None, 0))
        history = self._watcher.history.get(repeat.tag, ())
        revived = [one for one in history if repeat.replaced(*one)]
        return Reports(
            record=repeat.newest,
            accounting=row,
            restarts=repeat.array.first_attempt + restarts,
            together=repeat.array.together,
            history=tuple(one for one in history if one not in revived),
            revived=tuple(row for _, row in revived),
        )

    def _ask_squeue(self, doubts: Sequence[Repeat]) -> Lines:
        self._squeue = "absent" if self._squeue == "absent" else "unasked"
        if not doubts or self._squeue == "absent":
            return Lines()
        outcome, self._squeue = questions.ask(self._run, questions.squeue(doubts), self._environ)
        self.complaint = "" if outcome.ok else outcome.stderr.strip() or self._watcher.complaint
        listing = commands.read_squeue(outcome.stdout if outcome.ok else "")
        self._queue_garbage = listing.garbage
        return Lines(listing.rows)

    def _calmer(self, repeat: Repeat, state: RepeatState) -> int:
        """Count the polls that an end has stood; one that is beyond doubt counts as enough."""
        if state.kind in {Kind.WAITING, Kind.RUNNING} or self._job_lives(repeat):
            return 0
        if self._accounting_lags(state):
            return 0
        unaccounted = self._watcher.answer == "absent" and self._squeue != "failed"
        final = state.source in {"sacct", "none"} or unaccounted
        if state.kind.over and final and not parse(state.word).returns:
            return _CALM
        # While squeue fails to answer, nothing is learned by waiting.
        return self._calm.get(repeat.key, 0) + (self._squeue != "failed")

    def _accounting_lags(self, state: RepeatState) -> bool:
        """Say whether sacct, which answers, may yet tell of an end that only squeue knows."""
        alone = state.source == "squeue" and state.kind.over and self._watcher.answer == "answered"
        return alone and self._clock() - (state.end or 0.0) < _LAG

    def _job_lives(self, repeat: Repeat) -> bool:
        """Say whether the job goes on after this repeat, and may yet be started anew with it."""
        row, _ = self._watcher.rows.get(repeat.tag, (None, 0))
        lives = row is not None and not parse(row.state).kind.over
        return repeat.array.together and lives


def _unsubmitted(repeat: Repeat, heard: Reports) -> RepeatState | None:
    """Return the state of a repeat that sbatch refused or was not given; None: it is somewhere."""
    array = repeat.array
    if heard.queue is not None or array.state == "submitted":
        return None
    if array.state == "refused":
        return RepeatState("REFUSED", Kind.FAILED, "none", detail=f"sbatch: {array.error}")
    if not array.called:
        return RepeatState(UNKNOWN, Kind.UNKNOWN, "none", detail=UNSUBMITTED)
    seen = heard.accounting is not None or heard.record.start is not None
    if seen or heard.squeue != "answered":
        return None
    return RepeatState(UNKNOWN, Kind.UNKNOWN, "none", detail=UNHEARD)


def _is_known(heard: Reports) -> bool:
    """Say whether anybody has heard of a repeat, or of its array."""
    there = (heard.accounting, heard.queue, heard.record.start)
    return any(one is not None for one in there)


def _is_listed(row: JobRow | None) -> bool:
    """Say whether squeue has a job in its list as one that has not ended."""
    return row is not None and not parse(row.state).kind.over


def _differ(before: RepeatState | None, after: RepeatState) -> bool:
    return before is None or any(
        getattr(before, name) != getattr(after, name) for name in ("word", "kind", "attempt")
    )


def snapshot(
    watched: TrackedCampaign, *, run: Runner, environ: Mapping[str, str] = os.environ
) -> dict[Key, RepeatState]:
    """Return the state of every repeat of a campaign, by array name and repeat, at this moment.

    Works where there is no Slurm, on a copied directory: the jobs' own status files speak then.
    """
    tracker = Tracker([watched], run=run, environ=environ)
    tracker.poll()
    return tracker.states
