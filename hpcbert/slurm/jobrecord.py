"""The record of a job about one attempt of a repeat, and the state that follows. Pure.

job.bash writes the events, except `finished`, which the local queue writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hpcbert.slurm.hostlist import expand
from hpcbert.slurm.states import (
    LAST_ATTEMPT,
    LATEST,
    UNNEEDED,
    Kind,
    RepeatState,
    bounded_int,
    parse_state,
)

Event = Mapping[str, Any]


_PHASES = {
    "": "",
    "start": "before its measured step, while nodes or container were made ready",
    "container": "in its container, before the measured step",
    "step": "in the measured step",
    "step-end": "after the measured step",
}


@dataclass(frozen=True)
class JobRecord:
    """The record of a job about one attempt of a repeat; None: not recorded.

    Attributes:
        attempt: The number of the attempt.
        start: When the script started, seconds since the epoch.
        end: When it ended.
        exit: Its exit status.
        step_exit: That of the measured step.
        signal: Name of the last signal that it caught.
        nodelist: Its nodes, as Slurm writes them.
        state: The state that the local queue found in the end.
        reason: The reason, if the local queue had more to say.
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
        events: Oldest first.
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
    changes: dict[str, dict[str, Any]] = {
        "start": {
            "start": time,
            "nodelist": str(event.get("nodelist", "")),
            "jobs": tuple(job for job in jobs if job),
            "watched": event.get("watched") is True,
        },
        "suspended": {"suspended": job_record.suspended + _read_seconds(event.get("seconds"))},
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
    return replace(job_record, phase=phase, **changes.get(kind, {}))


def _read_seconds(value: Any) -> float:
    """Return a duration; an impossible one becomes the smallest that is reported."""
    sound = isinstance(value, int | float) and 0 < value <= LATEST
    return float(value) if sound else 1.0
