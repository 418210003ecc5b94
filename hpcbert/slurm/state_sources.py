"""The sources of a repeat's state: sacct, then squeue, then the job's own status file, then none.

Success is never guessed. These are the reasons to go one step down the ladder:

* sacct lags by seconds, and never learns of an array element that was cancelled before it started
  (seen with 22.05.8): squeue is asked about what sacct does not list.
* A row that ended NODE_FAIL or PREEMPTED stands for seconds before the row of the requeued job
  appears: squeue is asked whether it waits again.
* sacct keeps the reason for waiting from when the job was first recorded, or none: squeue is asked
  why it waits now (seen with 22.05.8, for a drained node and for a held job).
* squeue forgets a job MinJobAge after its end: its silence proves that a job neither waits nor
  runs, and nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pwd import getpwuid
from typing import Any, Literal, NamedTuple

from hpcbert.slurm.commands import JobRow
from hpcbert.slurm.hostlist import expand
from hpcbert.slurm.reasons import ReasonText, describe_reason, find_launch_failure, never_starts
from hpcbert.slurm.states import (
    LAST_ATTEMPT,
    LATEST,
    LOST,
    UNKNOWN,
    UNNEEDED,
    Kind,
    RepeatState,
    Source,
    State,
    bounded_int,
    parse_state,
)

# Whether a command answered: it answered, it was there and failed, it is not installed, or it was
# not asked because nothing depended on it.
Answer = Literal["answered", "failed", "absent", "unasked"]
# Output of a node may become visible elsewhere this many seconds later: NFS keeps what it knows of
# a directory and of a file for up to 60 s (nfs(5), acdirmax and acregmax).
VISIBILITY_DELAY = 90.0
# Rounding of three of Slurm's whole seconds may add up to this much.
_ROUNDING = 1.0
# The script notices a pause of this many seconds: Slurm suspends by signals, and the script notices
# pauses of half this length (watch.bash).
_NOTICED = 3.0
_NO_NODES = "Slurm gave it no nodes; most likely none has what it requests (BadConstraints)"
_GONE = "neither waits nor runs any more"


# --- What the job itself recorded -----------------------------------------------------------------
#
# job.bash writes the events, except `finished`, which the local queue writes.

Event = Mapping[str, Any]
_PHASES = {
    "": "",
    "start": "before its measured step, while nodes or container were made ready",
    "container": "in its container, before the measured step",
    "step": "in the measured step",
    "step-end": "after the measured step",
}


class JobRecord(NamedTuple):
    """The record of a job about one attempt of a repeat; None: not recorded.

    Attributes:
        start: When the script started, seconds since the epoch.
        step_exit: That of the measured step.
        state: The state that the local queue found in the end.
        phase: The last mark on its way: `start`, `container` (made), `step`, `step-end`.
        jobs: Ids of the jobs that began this attempt: with more than one, its number is invalid.
        suspended: Seconds for which it did not run, as its own script noticed.
        watched: Whether its script looked out for suspension.
        unneeded: Why it did not run, if the repeats before it were enough.
        held: Key of the point whose repeats all failed, so that this one did not run.
        apart: Whether its ranks saw fewer GPUs than their node had ranks.
    """

    attempt: int = 0
    start: float | None = None
    end: float | None = None
    exit: int | None = None
    step_exit: int | None = None
    signal: str = ""
    nodelist: str = ""
    state: str = ""
    reason: str = ""
    phase: str = ""
    jobs: tuple[str, ...] = ()
    suspended: float = 0.0
    watched: bool = False
    apart: bool = False
    held: str = ""
    unneeded: str = ""

    @property
    def ended(self) -> bool:
        """Whether its end is on record, from the script or from the local queue."""
        return self.exit is not None or bool(self.state)

    @property
    def why_held(self) -> str:
        """Why it did not run although its job did; empty if it ran."""
        return f"held back: baseline {self.held} failed" if self.held else ""

    @property
    def where(self) -> str:
        """The last phase that it reached, as the end of a sentence about a failed run."""
        if self.phase == "step-end" and self.step_exit != 0:
            return _PHASES["step"]
        return _PHASES[self.phase]

    @property
    def end_state(self) -> RepeatState | None:
        """The end that the job, or the local queue, recorded; None: neither did."""
        if self.state:
            state = parse_state(self.state)
            word, kind, sentence = state.word, state.kind, self.reason or state.sentence
        elif self.exit is not None:
            succeeded = self.exit == 0
            word = "COMPLETED" if succeeded else "FAILED"
            kind = Kind.SUCCEEDED if succeeded else Kind.FAILED
            sentence = f"ended after signal {self.signal}" if self.signal else "failed"
        else:
            return None
        code = f", exit status {self.exit}" if self.exit else ""
        detail = "" if kind is Kind.SUCCEEDED else self.why_held or f"{sentence}{code}"
        return self._apply_unneeded(
            RepeatState(word, kind, "status-file", exit_code=self.exit, detail=detail)
        )

    def _apply_unneeded(self, state: RepeatState) -> RepeatState:
        """Return a state; if the job ended without running anything, that it was not needed.

        Another repeat's job may have recorded that before it began, and removed it from the queue.
        """
        # Accounting may say for a while that it still runs, or of the job that removes the others
        # from the queue that it is cancelled with them.
        has_ended = state.kind is Kind.SUCCEEDED or state.word == "CANCELLED"
        has_ended = has_ended or (state.kind is Kind.RUNNING and self.exit == 0)
        if not self.unneeded or not has_ended:
            return state
        return replace(state, word=UNNEEDED, kind=Kind.UNNEEDED, detail=self.unneeded)

    def complete(self, state: RepeatState, *, restarts: int = 0) -> RepeatState:
        """Return a state with what only the job knows about it."""
        if restarts > self.attempt or state.kind.queued:
            # The record is about an attempt before the one that the state is of.
            return replace(state, attempt=max(restarts, self.attempt))
        start = self.start if state.start is None else state.start
        end = self.end if state.kind.over and state.end is None else state.end
        elapsed = state.elapsed
        if elapsed is None and start is not None and end is not None:
            elapsed = end - start
        state = self._apply_unneeded(state)
        suspended = max(state.suspended, self.suspended)
        detail = state.detail
        if state.kind is Kind.FAILED and self.held:
            detail = self.why_held
        elif state.kind is Kind.FAILED and detail and self.where:
            detail = f"{detail}, {self.where}"
        if suspended and state.kind in {Kind.SUCCEEDED, Kind.RUNNING}:
            detail = detail or f"was suspended for {suspended:g} s, so its number is invalid"
        return replace(
            state,
            detail=detail,
            attempt=self.attempt,
            nodes=state.nodes or expand(self.nodelist),
            start=start,
            end=end,
            elapsed=elapsed,
            step_exit=self.step_exit,
            suspended=suspended,
        )

    def renew(self, repeat_state: RepeatState) -> RepeatState:
        """Return a recorded state, completed from what the job's own file says now.

        A file system may have shown the file late, so that less of it was known then.
        """
        if self.attempt != repeat_state.attempt:
            return repeat_state
        return replace(
            repeat_state,
            nodes=repeat_state.nodes or expand(self.nodelist),
            step_exit=self.step_exit,
            suspended=max(repeat_state.suspended, self.suspended),
        )


def reduce_events(events: Iterable[Event], *, first: int = 0) -> JobRecord:
    """Reduce the events of a status file to its newest attempt.

    Args:
        first: Number of the first attempt to consider; earlier ones are skipped.
    """
    job_record = JobRecord(attempt=first)
    for event in events:
        attempt = bounded_int(event.get("attempt"), LAST_ATTEMPT) or 0
        if attempt < job_record.attempt:
            continue
        kind = event.get("event")
        if attempt > job_record.attempt or kind == "start":
            # A second `start` of one attempt is another job's: what the first one wrote is void,
            # but the fact that there were two is not.
            jobs = job_record.jobs if attempt == job_record.attempt else ()
            job_record = JobRecord(attempt=attempt, jobs=jobs)
        job_record = _apply_event(job_record, str(kind), event)
    return job_record


def _apply_event(job_record: JobRecord, kind: str, event: Event) -> JobRecord:
    time, code = bounded_int(event.get("time")), bounded_int(event.get("exit"))
    jobs = dict.fromkeys((*job_record.jobs, str(event.get("job", ""))))
    # An impossible duration becomes the smallest that is reported.
    seconds = event.get("seconds")
    pause = 1.0
    if isinstance(seconds, int | float) and 0 < seconds <= LATEST:
        pause = float(seconds)
    changes: dict[str, dict[str, Any]] = {
        "start": {
            "start": time,
            "nodelist": str(event.get("nodelist", "")),
            "jobs": tuple(job for job in jobs if job),
            "watched": event.get("watched") is True,
        },
        "suspended": {"suspended": job_record.suspended + pause},
        "step-end": {"step_exit": code, "apart": event.get("apart") is True},
        "held": {"held": str(event.get("baseline", ""))},
        "unneeded": {"unneeded": str(event.get("why", ""))},
        "signal": {"signal": str(event.get("signal", ""))},
        "end": {"end": time, "exit": code},
        "finished": {
            "end": time,
            # The script knows how it ended better than the queue that waited for it.
            "exit": code if job_record.exit is None else job_record.exit,
            "state": str(event.get("state", "")),
            "reason": str(event.get("reason", "")),
        },
    }
    phase = kind if kind in _PHASES else job_record.phase
    return job_record._replace(phase=phase, **changes.get(kind, {}))


# --- All sources ----------------------------------------------------------------------------------


class Reports(NamedTuple):
    """Everything known about one repeat.

    Attributes:
        restarts: Number of its newest attempt in sacct, which has a row for each.
        together: Whether the job runs several repeats, so that its state is not this one's.
        history: Rows of sacct about earlier attempts, each with its number.
        lost_job: Id of its array if Slurm accepted that but no longer knows it; else empty.
        revived_rows: Rows of sacct about jobs that a retry replaced and that were requeued later.
    """

    record: JobRecord
    accounting: JobRow | None = None
    restarts: int = 0
    queue: JobRow | None = None
    squeue: Answer = "unasked"
    together: bool = False
    history: tuple[tuple[int, JobRow], ...] = ()
    lost_job: str = ""
    revived_rows: tuple[JobRow, ...] = ()

    @property
    def has_trace(self) -> bool:
        """Whether any source knows something of it, so that Slurm has not lost its array."""
        signs = (self.accounting, self.queue, self.record.start)
        return any(sign is not None for sign in signs)

    @property
    def silent(self) -> bool:
        """Whether nothing that the newest run wrote is known."""
        return self.record.start is None or self.record.attempt < self.restarts

    @property
    def own(self) -> RepeatState | None:
        """The end that the newest run recorded itself; None: it recorded none."""
        if self.record.attempt < self.restarts:
            return None
        return self.record.end_state


def needs_squeue(reports: Reports) -> bool:
    """Return whether sacct leaves a state open that squeue may know."""
    if reports.accounting is None:
        return True
    state = parse_state(reports.accounting.state)
    if _never_began(reports.accounting) and not _has_reason(reports.accounting):
        return True  # squeue still knows why.
    if state.returns or state.kind.queued or state.kind is Kind.UNKNOWN:
        # It may wait again although it ended, and only squeue knows why it waits now.
        return True
    # It wrote its end, but sacct, which lags, still shows it running.
    return not state.kind.over and not reports.together and reports.own is not None


def resolve_state(reports: Reports) -> RepeatState:
    """Return the state of one repeat from everything known about it."""
    state = _resolve_shared(reports) if reports.together else _resolve_single(reports)
    restarts, accounting, queue = reports.restarts, reports.accounting, reports.queue
    if accounting and queue:
        # sacct has a row for each run that it knows; a run that only squeue knows is one more.
        over = parse_state(accounting.state).kind.over
        restarts += _is_later(accounting, queue) or (over and _is_ahead(accounting, queue))
    if state.exit_code is None and reports.own and reports.own.word == state.word:
        state = replace(state, exit_code=reports.own.exit_code)  # squeue knows none.
    repeat_state = reports.record.complete(state, restarts=restarts)
    rows = [(number, row) for number, row in reports.history if number < repeat_state.attempt]
    if not rows and not reports.revived_rows:
        return repeat_state
    notes = [
        note
        for note in (repeat_state.detail, *map(_describe_revival, reports.revived_rows))
        if note
    ]
    earlier = tuple(replace(convert_row(row, "sacct"), attempt=number) for number, row in rows)
    return replace(repeat_state, earlier=earlier, detail="; ".join(notes))


def _describe_revival(row: JobRow) -> str:
    """Describe the requeue of a job that a retry had replaced.

    Its script runs nothing in that case (job.bash, `taken`).
    """
    job = f"{row.job}_{row.tasks[0][0]}" if row.tasks else row.job
    return (
        f"job {job}, which a retry replaced, was requeued and is {parse_state(row.state).word}: "
        f"its results are ignored; if it has not ended, end it: scancel {job}"
    )


def _resolve_single(reports: Reports) -> RepeatState:
    accounting, queue_row = reports.accounting, reports.queue
    state = parse_state(accounting.state) if accounting else None
    if accounting is None or state is None or state.kind is Kind.UNKNOWN:
        # One step down, and another one if squeue does not know it either.
        return convert_row(queue_row, "squeue") if queue_row else _resolve_from_record(reports)
    if queue_row is not None and _is_ahead(accounting, queue_row):
        return convert_row(queue_row, "squeue")
    if queue_row is None and reports.squeue == "answered" and not state.kind.over:
        # squeue lists everything that waits or runs, so it ended, and sacct does not know how yet.
        detail = f"sacct still says {state.word}, but it {_GONE}"
        return reports.own or RepeatState(UNKNOWN, Kind.UNKNOWN, "none", detail=detail)
    if queue_row is not None and state.kind is Kind.WAITING:
        # sacct has the reason from when it was first recorded.
        accounting = accounting._replace(reason=queue_row.reason)
    if queue_row is not None and _never_began(accounting) and not _has_reason(accounting):
        accounting = accounting._replace(reason=queue_row.reason)
    return convert_row(accounting, "sacct", silent=reports.silent)


def _is_ahead(accounting: JobRow, queue: JobRow) -> bool:
    """Return whether squeue knows of a restart or an end that sacct lacks."""
    state, queue_state = parse_state(accounting.state), parse_state(queue.state)
    if _is_later(accounting, queue):
        return True
    if state.kind.over:
        # Nodes are cleaned up after this run before it goes back to the queue.
        over = queue_state.kind.over or queue_state.word == "COMPLETING"
        return state.returns and not over
    # squeue is the controller's own word; sacct follows it.
    return state.kind is not queue_state.kind


def _is_later(accounting: JobRow, queue: JobRow) -> bool:
    """Return whether squeue has a later submit time, as after a requeue."""
    has_times = accounting.submit is not None and queue.submit is not None
    return has_times and (queue.submit or 0.0) > (accounting.submit or 0.0)


def _resolve_from_record(reports: Reports) -> RepeatState:
    """Return the state of a repeat that Slurm does not know, from what its job recorded."""
    if reports.own is not None:
        return reports.own
    if reports.record.start is None and reports.lost_job:
        detail = (
            f"Slurm accepted job {reports.lost_job} but no longer knows it: "
            "its controller lost it, or it was cancelled before it started"
        )
        return RepeatState(LOST, Kind.UNKNOWN, "none", detail=detail)
    if reports.record.start is None:
        detail = _GONE if reports.squeue == "answered" else "Slurm does not say"
        return RepeatState(UNKNOWN, Kind.UNKNOWN, "none", detail=f"never started, and {detail}")
    if reports.squeue == "failed":
        # No source says that it does not run, so it counts as running: monitor goes on, retry
        # waits.
        detail = "by its own account; Slurm does not answer"
        return RepeatState("RUNNING", Kind.RUNNING, "status-file", detail=detail)
    text = f", and {_GONE}" if reports.squeue == "answered" else ""
    where = f", {reports.record.where}" if reports.record.where else ""
    detail = f"started, but never recorded its end{text}: killed, or its node was lost{where}"
    return RepeatState(UNKNOWN, Kind.UNKNOWN, "status-file", detail=detail)


def _resolve_shared(reports: Reports) -> RepeatState:
    """Judge one of several repeats that share a job: by its own end, as long as the job allows it.

    The job's state applies to a repeat that recorded no end of its own, and to all of them while
    the job waits, even again, and once it is COMPLETED.
    """
    job = _resolve_single(reports)
    job_record = reports.record
    if job_record.watched and job_record.ended and job.suspended > _NOTICED:
        # The script notices suspension and records which repeat was suspended. A pause too short
        # to be noticed may have affected any of the repeats.
        job = replace(job, suspended=0.0)
    if job.kind.queued or job.kind is Kind.SUCCEEDED or job.source in {"status-file", "none"}:
        return job
    if reports.own is not None:
        return replace(reports.own, suspended=job.suspended)
    if job.kind is Kind.RUNNING and job_record.start is None:
        return replace(
            job, word="PENDING", kind=Kind.WAITING, detail="earlier repeats of its job come first"
        )
    return job


def convert_row(row: JobRow, source: Source, *, silent: bool = False) -> RepeatState:
    """Return the state that a line of sacct or squeue describes."""
    state = parse_state(row.state)
    reason_text = find_launch_failure(row, silent=silent) if state.word == "FAILED" else None
    waiting, ended = state.kind.queued, state.kind.over
    # sacct keeps a reason after the job has started, and says None if there was none.
    forbidden = _explain_refused_start(row, silent=silent)
    reason = row.reason if (waiting or forbidden) and row.reason != "None" else ""
    # Slurm leaves the time in which a job did not run out of its elapsed time (sacct(1), Elapsed).
    times = row.start, row.end, row.elapsed
    pause = 0.0 if None in times else (row.end or 0.0) - (row.start or 0.0) - (row.elapsed or 0.0)
    return RepeatState(
        state.word,
        state.kind,
        source,
        nodes=expand(row.nodelist),
        exit_code=row.exit_code if ended and reason_text is None and not forbidden else None,
        reason=reason,
        detail=describe_reason(reason)
        if waiting
        else forbidden or _describe_end(row, state, reason_text),
        elapsed=row.elapsed,
        # For a waiting job squeue has the planned start.
        start=None if waiting else row.start,
        end=row.end if ended else None,
        limit=row.limit,
        suspended=pause if ended and row.start and pause > _ROUNDING else 0.0,
        # After a failed job before it, a retry may well succeed.
        hopeless=bool(forbidden) and not row.reason.startswith("Dependency"),
    )


def _never_began(row: JobRow) -> bool:
    """Return whether Slurm failed a job that never had nodes, as its request can't be met."""
    return parse_state(row.state).word == "FAILED" and not expand(row.nodelist) and not row.elapsed


def _has_reason(row: JobRow) -> bool:
    return bool(describe_reason(row.reason))


def _explain_refused_start(row: JobRow, *, silent: bool) -> str:
    """Explain in a sentence why Slurm ended a job before it started; empty if it did not.

    sacct lacks the reason of such an end (BadConstraints, seen with 22.05.8), and squeue forgets
    it.
    """
    state = parse_state(row.state)
    ended = state.kind is Kind.FAILED and not expand(row.nodelist)
    if not ended or not (never_starts(row.reason) or (_never_began(row) and silent)):
        return ""
    text = f"{describe_reason(row.reason)} ({row.reason})" if _has_reason(row) else _NO_NODES
    return f"{state.sentence}{_describe_user(row)} before it started: {text}"


def _describe_end(row: JobRow, state: State, reason_text: ReasonText | None) -> str:
    sentence = state.sentence
    if reason_text is not None:
        return f"{reason_text.sentence} ({row.nodelist})" if row.nodelist else reason_text.sentence
    if state.kind in {Kind.RUNNING, Kind.SUCCEEDED}:
        return "" if state.word in {"RUNNING", "COMPLETED"} else sentence
    if state.returns and row.nodelist:
        sentence = f"{sentence} ({row.nodelist})"
    code = f", exit status {row.exit_code}" if row.exit_code else ""
    return f"{sentence}{_describe_user(row)}{code}"


def _describe_user(row: JobRow) -> str:
    """Return who cancelled a job, the end of a clause; empty if nobody did."""
    _, by, user = row.state.partition(" by ")
    with contextlib.suppress(KeyError, ValueError, OverflowError):
        return f" by {getpwuid(int(user)).pw_name}"
    return f" by user {user}" if by else ""


def defer_end(state: RepeatState, job_record: JobRecord, *, now: float) -> RepeatState:
    """Return a state for a repeat with an end that may still become visible.

    A job that Slurm calls COMPLETED wrote its end, but a file system may show it late. For hpcbert
    it is not over until the end is visible, or until waiting longer is pointless.

    Args:
        now: Seconds since the epoch.
    """
    ended = job_record.ended and job_record.attempt == state.attempt
    if state.word != "COMPLETED" or state.source == "status-file" or ended or state.end is None:
        return state
    ago = now - state.end
    if abs(ago) >= VISIBILITY_DELAY:
        return state
    detail = (
        f"status not visible yet: the job ended {ago:.0f} s ago, its status file does not say so"
    )
    return replace(state, kind=Kind.RUNNING, detail=detail)
