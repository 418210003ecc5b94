"""Who is believed about a repeat: sacct, then squeue, then the job's own status file, then nobody.

Success is never guessed. What takes a step down the ladder:

* sacct lags by seconds, and never hears of an array element that was cancelled before it started
  (seen with 22.05.8): squeue is asked about what sacct does not list.
* A row that ended NODE_FAIL or PREEMPTED stands for seconds before that of the requeued job
  appears: squeue is asked whether it waits again.
* sacct keeps the reason that a job had to wait when it was first recorded, or none: why it waits
  now, squeue is asked (seen with 22.05.8, of a drained node and of a held job).
* squeue forgets a job MinJobAge after its end: its silence proves that a job neither waits nor
  runs, and nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from pwd import getpwuid
from typing import TYPE_CHECKING, Literal

from hpcbert.slurm.hostlist import expand
from hpcbert.slurm.launches import failure
from hpcbert.slurm.reasons import reason_sentence
from hpcbert.slurm.states import LOST, UNKNOWN, Kind, RepeatState, parse
from hpcbert.system.lazy import dataclass

if TYPE_CHECKING:
    from hpcbert.slurm.commands import JobRow
    from hpcbert.slurm.jobrecord import JobRecord
    from hpcbert.slurm.reasons import ReasonText
    from hpcbert.slurm.states import Source, State
    from hpcbert.system.runner import Outcome

# Whether a command spoke: it answered, it was there and failed, it is not installed, or it was
# not asked because nothing hung on it.
Answer = Literal["answered", "failed", "absent", "unasked"]
# What is said where asking again is of no use: no accounting, or no cluster at all.
_USELESS = ("accounting storage is disabled", "Could not establish a configuration source")
_NO_PROGRAM = 127

# What a node wrote may be visible elsewhere so many seconds later: NFS keeps what it knows of a
# directory and of a file for up to 60 s (nfs(5), acdirmax and acregmax).
VISIBLE = 90.0
# Three whole seconds of Slurm's may add up to this much nothing.
_ROUNDING = 1.0
# A pause of this many seconds was noticed by the script that it stopped: Slurm suspends by signals,
# and of those it notices half of this (base.sbatch.j2).
_NOTICED = 3.0
_GONE = "neither waits nor runs any more"


@dataclass(frozen=True)
class Reports:
    """All that was heard about one repeat.

    Attributes:
        record: What the job itself wrote.
        accounting: Its newest row in sacct.
        restarts: Number of its newest attempt by sacct, which has a row for each.
        queue: Its row in squeue.
        squeue: Whether squeue answered.
        together: Whether the job runs several repeats, so that its state is not this one's.
        history: Rows of sacct about attempts before the newest, each with its number.
        lost: Id of its array if Slurm accepted that and knows nothing of it; else empty.
        revived: Rows of sacct about jobs that a retry replaced, requeued after that.
    """

    record: JobRecord
    accounting: JobRow | None = None
    restarts: int = 0
    queue: JobRow | None = None
    squeue: Answer = "unasked"
    together: bool = False
    history: tuple[tuple[int, JobRow], ...] = ()
    lost: str = ""
    revived: tuple[JobRow, ...] = ()

    @property
    def silent(self) -> bool:
        """Whether nothing that the newest run wrote is known."""
        return self.record.start is None or self.record.attempt < self.restarts

    @property
    def own(self) -> RepeatState | None:
        """The end that the newest run wrote down itself; None: it wrote none."""
        if self.record.attempt < self.restarts:
            return None
        return self.record.end_state


def answer_of(outcome: Outcome) -> Answer:
    """Return whether a command that was run answered, failed, or can't be of any use here."""
    if outcome.ok:
        return "answered"
    useless = any(words in outcome.stderr for words in _USELESS)
    return "absent" if useless or outcome.returncode == _NO_PROGRAM else "failed"


def doubtful(reports: Reports) -> bool:
    """Say whether squeue has to be asked, because sacct alone can't be believed."""
    if reports.accounting is None:
        return True
    state = parse(reports.accounting.state)
    if state.returns or state.kind.queued or state.kind is Kind.UNKNOWN:
        # It may wait again although it ended, and why it waits now only squeue knows.
        return True
    # It wrote its end, and sacct, which lags, lets it run.
    return not state.kind.over and not reports.together and reports.own is not None


def resolve_state(reports: Reports) -> RepeatState:
    """Return the state of one repeat from what was heard about it."""
    state = _together(reports) if reports.together else _single(reports)
    # sacct has a row for each run that it knows; a run that only squeue knows is one more.
    restarts = reports.restarts + _sent_back(reports)
    if state.exit_code is None and reports.own and reports.own.word == state.word:
        state = replace(state, exit_code=reports.own.exit_code)  # squeue knows none.
    told = reports.record.complete(state, restarts=restarts)
    rows = ((number, row) for number, row in reports.history if number < told.attempt)
    earlier = (replace(from_row(row, "sacct"), attempt=number) for number, row in rows)
    notes = [one for one in (told.detail, *map(_revival, reports.revived)) if one]
    return replace(told, earlier=tuple(earlier), detail="; ".join(notes))


def _revival(row: JobRow) -> str:
    """Say what became of a job that was requeued although a retry had taken its place.

    Its script runs nothing then (base.sbatch.j2, `taken`).
    """
    state = parse(row.state)
    job = f"{row.job}_{row.tasks[0][0]}" if row.tasks else row.job
    over = state.kind.over
    rest = "nothing of it counts" if over else f"it will run nothing; to end it: scancel {job}"
    return f"job {job}, which a retry replaced, was requeued and is {state.word}: {rest}"


def _single(reports: Reports) -> RepeatState:
    accounting, queue = reports.accounting, reports.queue
    said = parse(accounting.state) if accounting else None
    if accounting is None or said is None or said.kind is Kind.UNKNOWN:
        # One rung down, and another one where squeue does not know it either.
        return from_row(queue, "squeue") if queue else _by_its_record(reports)
    if queue is not None and _ahead(accounting, queue):
        return from_row(queue, "squeue")
    if queue is None and reports.squeue == "answered" and not said.kind.over:
        # squeue lists whatever waits or runs, so it ended, and sacct has not heard how.
        detail = f"sacct still says {said.word}, but it {_GONE}"
        return reports.own or RepeatState(UNKNOWN, Kind.UNKNOWN, "none", detail=detail)
    if queue is not None and said.kind is Kind.WAITING:
        # sacct has the reason of when it was first recorded.
        accounting = replace(accounting, reason=queue.reason)
    return from_row(accounting, "sacct", silent=reports.silent)


def _sent_back(reports: Reports) -> bool:
    """Say whether squeue has a run of it after the last one that sacct knows."""
    accounting, queue = reports.accounting, reports.queue
    if accounting is None or queue is None:
        return False
    ended = parse(accounting.state).kind.over
    return _later(accounting, queue) or (ended and _ahead(accounting, queue))


def _ahead(accounting: JobRow, queue: JobRow) -> bool:
    """Say whether squeue is ahead of sacct: it knows of a restart, or of an end."""
    said, shown = parse(accounting.state), parse(queue.state)
    if _later(accounting, queue):
        return True
    if said.kind.over:
        # Nodes are cleaned up after the very run that ended, before it goes back to the queue.
        over = shown.kind.over or shown.word == "COMPLETING"
        return said.returns and not over
    # squeue is the controller's own word; sacct follows it.
    return said.kind is not shown.kind


def _later(accounting: JobRow, queue: JobRow) -> bool:
    """Say whether squeue's line is about a later run: Slurm submits a job again to requeue it."""
    known = accounting.submit is not None and queue.submit is not None
    return known and (queue.submit or 0.0) > (accounting.submit or 0.0)


def _by_its_record(reports: Reports) -> RepeatState:
    """Return the state of a repeat that Slurm does not know, by what its job wrote."""
    if reports.own is not None:
        return reports.own
    if reports.record.start is None and reports.lost:
        detail = (
            f"Slurm accepted job {reports.lost} but no longer knows it: its controller lost it, "
            "or it was cancelled before it started"
        )
        return RepeatState(LOST, Kind.UNKNOWN, "none", detail=detail)
    if reports.record.start is None:
        detail = _GONE if reports.squeue == "answered" else "Slurm does not say"
        return RepeatState(UNKNOWN, Kind.UNKNOWN, "none", detail=f"never started, and {detail}")
    if reports.squeue == "failed":
        # Nobody says that it does not run, so it does: a monitor goes on, and nothing is retried.
        detail = "by its own account; Slurm does not answer"
        return RepeatState("RUNNING", Kind.RUNNING, "status-file", detail=detail)
    gone = f", and {_GONE}" if reports.squeue == "answered" else ""
    where = f", {reports.record.where}" if reports.record.where else ""
    detail = f"started, never wrote its end{gone}: killed, or its node was lost{where}"
    return RepeatState(UNKNOWN, Kind.UNKNOWN, "status-file", detail=detail)


def _together(reports: Reports) -> RepeatState:
    """Judge one of several repeats that share a job: its own end, as long as the job lets it.

    The job's word stands for a repeat that wrote no end of its own, and for all of them while the
    job waits, be it again, and once it is COMPLETED.
    """
    job = _single(reports)
    seen = reports.record
    if seen.watched and seen.ended and job.suspended > _NOTICED:
        # The script, which looks out, says of each repeat whether it was that one. Of a pause that
        # is too short to be noticed nobody knows which of the repeats it hit: any of them.
        job = replace(job, suspended=0.0)
    if job.kind.queued or job.kind is Kind.SUCCEEDED or job.source in {"status-file", "none"}:
        return job
    if reports.own is not None:
        return replace(reports.own, suspended=job.suspended)
    if job.kind is Kind.RUNNING and seen.start is None:
        return replace(
            job, word="PENDING", kind=Kind.WAITING, detail="earlier repeats of its job come first"
        )
    return job


def from_row(row: JobRow, source: Source, *, silent: bool = False) -> RepeatState:
    """Return the state that a line of sacct or squeue describes.

    Args:
        row: The line.
        source: Which of them printed it.
        silent: Whether the job itself wrote nothing down.
    """
    state = parse(row.state)
    why = failure(row, silent=silent) if state.word == "FAILED" else None
    waiting, ended = state.kind.queued, state.kind.over
    # sacct keeps a reason after the job has started, and says None where there was none.
    reason = row.reason if waiting and row.reason != "None" else ""
    return RepeatState(
        state.word,
        state.kind,
        source,
        nodes=expand(row.nodelist),
        exit_code=row.exit_code if ended and why is None else None,
        reason=reason,
        detail=reason_sentence(reason) if waiting else _ending(row, state, why),
        elapsed=row.elapsed,
        # squeue has the start that it plans for a job that waits.
        start=None if waiting else row.start,
        end=row.end if ended else None,
        limit=row.limit,
        suspended=_suspended(row) if ended else 0.0,
    )


def _suspended(row: JobRow) -> float:
    """Return the seconds between start and end in which a job did not run.

    Slurm leaves them out of the time that it calls elapsed (sacct(1), Elapsed).
    """
    if row.start is None or row.end is None or row.elapsed is None or not row.start:
        return 0.0
    pause = row.end - row.start - row.elapsed
    return pause if pause > _ROUNDING else 0.0


def _ending(row: JobRow, state: State, why: ReasonText | None) -> str:
    sentence = state.sentence
    if why is not None:
        return f"{why.sentence} ({row.nodelist})" if row.nodelist else why.sentence
    if state.kind in {Kind.RUNNING, Kind.SUCCEEDED}:
        return "" if state.word in {"RUNNING", "COMPLETED"} else sentence
    if state.returns and row.nodelist:
        sentence = f"{sentence} ({row.nodelist})"
    _, _, user = row.state.partition(" by ")
    by = f" by {_name(user)}" if user else ""
    return f"{sentence}{by}, exit status {row.exit_code}" if row.exit_code else f"{sentence}{by}"


def _name(user: str) -> str:
    """Return the login name behind the number in `CANCELLED by 1000`."""
    try:
        return getpwuid(int(user)).pw_name
    except (KeyError, ValueError, OverflowError):
        return f"user {user}"


def awaited(state: RepeatState, seen: JobRecord, *, now: float) -> RepeatState:
    """Return a state as that of a repeat whose own end may still become visible.

    A job that Slurm calls COMPLETED wrote its end, but a file system may show it late. It is not
    over for us until it is there, or until nobody would wait for it any longer.

    Args:
        state: As judged.
        seen: What the job's status file says.
        now: Seconds since the epoch.
    """
    there = seen.ended and seen.attempt == state.attempt
    if state.word != "COMPLETED" or state.source == "status-file" or there or state.end is None:
        return state
    ago = now - state.end
    if abs(ago) >= VISIBLE:
        return state
    detail = (
        f"status not visible yet: the job ended {ago:.0f} s ago, its status file does not say so"
    )
    return replace(state, kind=Kind.RUNNING, detail=detail)
