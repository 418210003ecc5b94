"""Follow Slurm jobs: at most one sacct and one squeue per poll, for any number of jobs.

hpcbert uses submitit's (1.5.4) watcher, but not its following habits:

* importing it puts a log handler on stdout: switched off before the import, below;
* it calls sacct through subprocess and hides the failure: `update` uses our runner and remembers
  the error;
* a state outside its list counts as an end, `CANCELLED by 1000` is a state of its own, the last
  line of a job wins even if it is older, and a job id that was used again is trusted: `read_info`
  and `is_done` use our table, the submission time, and name and owner;
* its polls come at intervals of its own, and one watcher serves all jobs of the process:
  `SlurmPoller` has its own pace and its own watcher.

Its job class is not used: it looks for pickles, loads them, and cancels any job with its id.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpcbert.campaign.repeats import Key, Repeat, RowIndex, TrackedCampaign
from hpcbert.scheduler.base import MAX_FACTOR, Pace, Poller, SchedulerContext, has_changed
from hpcbert.scheduler.slurm import cluster
from hpcbert.slurm import commands
from hpcbert.slurm.commands import JobRow
from hpcbert.slurm.state_sources import Answer, Reports, defer_end, needs_squeue, resolve_state
from hpcbert.slurm.states import UNANSWERED, UNKNOWN, UNSUBMITTED, Kind, RepeatState, parse_state

_LEVEL = "SUBMITIT_LOG_LEVEL"
_user_level = os.environ.get(_LEVEL)
try:
    os.environ[_LEVEL] = "NOCONFIG"
    from submitit.slurm.slurm import SlurmInfoWatcher
finally:
    del os.environ[_LEVEL]
    os.environ |= {} if _user_level is None else {_LEVEL: _user_level}


class Watcher(SlurmInfoWatcher):
    """submitit's watcher with our way of asking and reading."""

    def __init__(self, repeats: Sequence[Repeat], context: SchedulerContext) -> None:
        super().__init__()
        self._owners = {repeat.tag: repeat for repeat in repeats if repeat.job_id}
        self._context = context
        self.answer: Answer = "unasked"
        self.complaint = ""
        self.garbage: tuple[str, ...] = ()
        self.rows: dict[str, tuple[JobRow, int]] = {}
        self.history: dict[str, tuple[tuple[int, JobRow], ...]] = {}
        for tag in self._owners:
            self.register_job(tag)

    def update(self) -> None:
        """Ask sacct once about everything that has not ended; remember a failure."""
        self.answer = "absent" if self.answer == "absent" else "unasked"
        owners = [self._owners[tag] for tag in sorted(self._registered - self._finished)]
        repeats = [repeat for owner in owners for repeat in (*owner.before, owner) if repeat.job_id]
        if not repeats or self.answer == "absent":
            return
        self._num_calls += 1
        outcome, self.answer = cluster.ask_sacct(self._context, repeats)
        self.complaint = outcome.stderr.strip()
        if outcome.ok:
            self._info_dict.update(self.read_info(outcome.stdout))
        self._finished |= {tag for tag in self._registered if self.is_done(tag, mode="cache")}

    def read_info(self, string: bytes | str) -> dict[str, dict[str, str]]:
        """Return submitit's view of sacct's output, and remember ours in `rows`."""
        text = string.decode(errors="replace") if isinstance(string, bytes) else string
        listing = commands.read_sacct(text)
        self.garbage = listing.garbage
        lines = RowIndex(listing.rows)
        info = {}
        for tag, repeat in self._owners.items():
            row, before = lines.newest(repeat)
            self.history[tag] = lines.attempts(repeat) or self.history.get(tag, ())
            if row is not None:
                self.rows[tag] = row, before
                info[tag] = {
                    "JobID": tag,
                    "State": parse_state(row.state).word,
                    "NodeList": row.nodelist,
                }
        return info

    def is_done(self, job_id: str, mode: str = "force") -> bool:
        """Return whether a job has ended and Slurm can't start it again."""
        state = parse_state(self.get_state(job_id, mode=mode))
        return state.kind.over and not state.returns


# --- The poller -----------------------------------------------------------------------------------

# Polls in which a doubtful end must stand before it is trusted.
_CONFIRMATIONS = 3
# Seconds for which sacct may not know about an end yet: some at any time, more than four after a
# start of slurmctld (seen with 22.05.8).
_LAG = 20.0
# Seconds after which an array is lost that neither sacct nor squeue knows.
_FORGOTTEN = 60.0
# After this many queries of sacct, squeue is asked about everything.
_CHECKUP = 10


# Seconds after which it is first asked about an end that a job wrote: its script still runs when
# it writes, and slurmctld knows after some 30 ms. If it does not, the next waits are 0.5, 1, ...
_FIRST_DELAY = 1 / 8
_EARLY_WAIT = 0.25


@dataclass(frozen=True)
class EarlyQueries:
    """When to ask early, about ends that jobs wrote.

    On average there is at most one query per floor interval, plus those saved in quiet times.

    Attributes:
        saved: Queries that may be made as of `last_query`, at most what the longest interval saves.
        wait: Seconds to the next early query.
        due: The time of the next early query.
    """

    floor: float
    saved: float = MAX_FACTOR
    last_query: float = 0.0
    wait: float = _EARLY_WAIT
    due: float = float("inf")

    def note_end(self, now: float) -> EarlyQueries:
        """Return the schedule after a job wrote an end just now."""
        return replace(self, wait=_EARLY_WAIT, due=now + _FIRST_DELAY)

    def after(self, now: float, *, changed: bool) -> EarlyQueries:
        """Return the schedule after any query; the waits grow as long as nothing changes."""
        wait = _EARLY_WAIT if changed else min(self.wait * 2, max(_EARLY_WAIT, self.floor))
        saved = max(0.0, self._saved(now) - 1)
        return replace(self, saved=saved, last_query=now, wait=wait, due=now + wait)

    def seconds(self, now: float, *, last: bool) -> float:
        """Return the seconds to the next query; one about the last end ignores the floor."""
        shortfall = 0.0 if last else (1 - self._saved(now)) * self.floor
        return max(0.0, self.due - now, shortfall)

    def _saved(self, now: float) -> float:
        accrual = (now - self.last_query) / self.floor if self.floor else MAX_FACTOR
        return min(MAX_FACTOR, self.saved + max(0.0, accrual))


class SlurmPoller(Poller):
    """Knows the state of repeats by the ladder: sacct, squeue, the jobs' own status files."""

    def __init__(
        self, watched: Sequence[TrackedCampaign], context: SchedulerContext, *, floor: float
    ) -> None:
        self.states = {}
        self._context, self._watched = context, watched
        self._repeats = [
            repeat for tracked_campaign in watched for repeat in tracked_campaign.repeats
        ]
        self._open = list(self._repeats)
        self._watcher = Watcher(self._repeats, context)
        self._pace, self._due = Pace(floor=floor), 0.0
        self._early = EarlyQueries(floor=floor)
        self._ended: dict[Key, Repeat] = {}
        self._confirmations: dict[Key, int] = {}
        self._seen_arrays: set[str] = set()
        self._squeue: Answer = "unasked"
        self._queue_garbage: tuple[str, ...] = ()

    def poll(self) -> None:
        """Query Slurm if a query is due, and set the next time: sooner while states change.

        squeue is asked early about ends that jobs wrote.
        """
        due = self._context.now() >= self._due
        if not self._open or not (due or self._is_early_query_due()):
            return
        before = dict(self.states)
        if due:
            self._ask()
        else:
            self._confirm()
        self._open = [repeat for repeat in self._repeats if not self.is_final(repeat.key)]
        changed = any(has_changed(before.get(key), state) for key, state in self.states.items())
        if due or changed:
            self._pace = self._pace.after(changed=changed, failed=self.failures > 0)
            self._due = self._context.now() + self._pace.seconds(self._context.chance())
        self._early = self._early.after(self._context.now(), changed=changed)
        self._note_ends()

    def pause(self) -> float | None:
        """Return the seconds to the next query; None if nothing is left to ask about."""
        return max(0.0, self._due - self._context.now()) if self._open else None

    def has_news(self) -> bool:
        """Return whether squeue may be asked now about ends that jobs wrote."""
        if any(tracked_campaign.records.reread_changed() for tracked_campaign in self._watched):
            self._note_ends()
        return self._is_early_query_due()

    def seconds_to_news(self) -> float:
        """Return the seconds until squeue can be asked early about ends that jobs wrote."""
        # A controller that failed is asked again no earlier than the next poll, which backs off.
        if not self._ended or self._squeue in {"absent", "failed"} or self.failures:
            return math.inf
        last = len(self._ended) == len(self._open)
        return self._early.seconds(self._context.now(), last=last)

    def _note_ends(self) -> None:
        """Remember the repeats whose jobs wrote an end, but that are not known to be over."""
        before = self._ended
        self._ended = {repeat.key: repeat for repeat in self._open if repeat.newest.ended}
        if self._ended.keys() - before.keys():
            self._early = self._early.note_end(self._context.now())

    def _is_early_query_due(self) -> bool:
        return self.seconds_to_news() <= 0

    def is_final(self, key: Key) -> bool:
        """Return whether a repeat's end has stood for enough polls."""
        return self._confirmations.get(key, 0) >= _CONFIRMATIONS

    def _ask(self) -> None:
        """Go down the ladder once for every unsettled repeat."""
        self._watcher.update()
        open_repeats = self._open
        for watched in self._watched:
            watched.records.refresh(watched.directory)
        reports_by_key = {repeat.key: self._collect_reports(repeat) for repeat in open_repeats}
        doubts = [
            repeat for repeat in open_repeats if self._doubts(repeat, reports_by_key[repeat.key])
        ]
        queue = self._ask_squeue(doubts)
        self.garbage = (*self._watcher.garbage, *self._queue_garbage)
        self.absent = self._watcher.answer == self._squeue == "absent"
        for repeat in doubts:
            reports = reports_by_key[repeat.key]
            row, _ = queue.newest(repeat)
            reports_by_key[repeat.key] = reports._replace(queue=row, squeue=self._squeue)
        for repeat in open_repeats:
            if reports_by_key[repeat.key].has_trace:
                self._seen_arrays.add(repeat.array.name)
        for repeat in open_repeats:
            reports = reports_by_key[repeat.key]
            if self._is_lost(repeat):
                reports = reports._replace(lost_job=repeat.array.job_id)
            self._judge(repeat, reports)
        answers = {self._watcher.answer, self._squeue}
        self.failures = 0 if "answered" in answers or answers == {"unasked"} else self.failures + 1

    def _confirm(self) -> None:
        """Judge the ends that jobs wrote: ask squeue about those that sacct does not know yet."""
        accounted_keys = {key for key, repeat in self._ended.items() if self._is_accounted(repeat)}
        queue = self._ask_squeue(
            [repeat for key, repeat in self._ended.items() if key not in accounted_keys]
        )
        for key, repeat in self._ended.items():
            row, _ = queue.newest(repeat)
            if key in accounted_keys or (row is not None and parse_state(row.state).kind.over):
                reports = self._collect_reports(repeat)
                self._judge(repeat, reports._replace(queue=row, squeue=self._squeue))

    def _is_accounted(self, repeat: Repeat) -> bool:
        return bool(repeat.job_id) and self._watcher.is_done(repeat.tag, mode="cache")

    def _judge(self, repeat: Repeat, reports: Reports) -> None:
        """Set the state of a repeat, and the number of polls it has stood."""
        resolved_state = defer_end(resolve_state(reports), reports.record, now=self._context.now())
        state = _unsubmitted_state(repeat, reports) or resolved_state
        self.states[repeat.key] = state
        self._confirmations[repeat.key] = self._count_confirmations(repeat, state, reports)

    def _doubts(self, repeat: Repeat, reports: Reports) -> bool:
        """Return whether squeue must be asked; now and then about all, because sacct may lag."""
        if needs_squeue(reports) or self._confirmations.get(repeat.key, 0) > 0:
            return True
        checkup = (self._watcher.num_calls - 1) % _CHECKUP == 0
        return checkup and not self._is_accounted(repeat)

    def _is_lost(self, repeat: Repeat) -> bool:
        """Return whether Slurm has no trace of an array that it accepted some time ago.

        Both commands, if installed, must have given a readable answer.
        """
        array = repeat.array
        if self.garbage:
            return False
        silent = self._squeue != "answered" or self._watcher.answer not in {"answered", "absent"}
        if silent or not array.job_id or array.name in self._seen_arrays:
            return False
        return self._context.now() - repeat.accepted > _FORGOTTEN

    def _collect_reports(self, repeat: Repeat) -> Reports:
        row, restarts = self._watcher.rows.get(repeat.tag, (None, 0))
        history = self._watcher.history.get(repeat.tag, ())
        revived = [attempt for attempt in history if repeat.was_replaced(*attempt)]
        return Reports(
            record=repeat.newest,
            accounting=row,
            restarts=repeat.array.first_attempt + restarts,
            together=repeat.array.together,
            history=tuple(attempt for attempt in history if attempt not in revived),
            revived_rows=tuple(row for _, row in revived),
        )

    def _ask_squeue(self, doubts: Sequence[Repeat]) -> RowIndex:
        self._squeue = "absent" if self._squeue == "absent" else "unasked"
        if not doubts or self._squeue == "absent":
            return RowIndex()
        outcome, self._squeue = cluster.ask_squeue(self._context, doubts)
        self.complaint = "" if outcome.ok else outcome.stderr.strip() or self._watcher.complaint
        listing = commands.read_squeue(outcome.stdout if outcome.ok else "")
        self._queue_garbage = listing.garbage
        return RowIndex(listing.rows)

    def _count_confirmations(self, repeat: Repeat, state: RepeatState, reports: Reports) -> int:
        """Count the polls that an end has stood; one beyond doubt counts as enough."""
        queue_state = reports.queue and parse_state(reports.queue.state)
        if queue_state and not queue_state.kind.over:
            return 0
        same_word = reports.own is not None and reports.own.word == state.word
        if queue_state and same_word and not queue_state.returns:
            # The controller and the job agree; accounting lags, but will follow.
            return _CONFIRMATIONS
        row, _ = self._watcher.rows.get(repeat.tag, (None, 0))
        # The job continues after this repeat, and may yet be started again with it.
        job_lives = (
            repeat.array.together and row is not None and not parse_state(row.state).kind.over
        )
        if state.kind in {Kind.WAITING, Kind.RUNNING} or job_lives:
            return 0
        # sacct answers, and may yet report an end that only squeue knows.
        only_in_queue = (
            state.source == "squeue" and state.kind.over and self._watcher.answer == "answered"
        )
        if only_in_queue and abs(self._context.now() - (state.end or 0.0)) < _LAG:
            return 0
        unaccounted = self._watcher.answer == "absent" and self._squeue != "failed"
        is_final = state.source in {"sacct", "none"} or unaccounted
        if state.kind.over and is_final and not parse_state(state.word).returns:
            return _CONFIRMATIONS
        # While squeue does not answer, waiting gives no information.
        return self._confirmations.get(repeat.key, 0) + (self._squeue != "failed")


def _unsubmitted_state(repeat: Repeat, reports: Reports) -> RepeatState | None:
    """Return the state of a repeat that sbatch refused or never got; None: Slurm has it."""
    array = repeat.array
    if reports.queue is not None or array.state == "submitted":
        return None
    if array.state == "refused":
        return RepeatState("REFUSED", Kind.FAILED, "none", detail=f"sbatch: {array.error}")
    if not array.called:
        return RepeatState(UNKNOWN, Kind.UNKNOWN, "none", detail=UNSUBMITTED)
    has_trace = reports.accounting is not None or reports.record.start is not None
    if has_trace or reports.squeue != "answered":
        return None
    return RepeatState(UNKNOWN, Kind.UNKNOWN, "none", detail=UNANSWERED)
