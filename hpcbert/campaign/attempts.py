"""The attempts of every repeat: how each ended, by which source, and which one is valid.

The sources for an attempt, in this order: the scheduler's word that an earlier collect recorded,
what accounting says now, what a retry wrote into the manifest, and what the job wrote itself. A
verdict once reached is final: no later answer, or lack of one, makes an attempt better. What the
job's own files say is read again each time, because a file system may show them late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcbert.campaign import store
from hpcbert.campaign.evidence import MEASUREMENTS, SEAL, compute_seal
from hpcbert.campaign.repeats import Key, Repeat, TrackedCampaign
from hpcbert.config.schedulers import find_traits
from hpcbert.errors import HpcbertError, UsageError
from hpcbert.model import Array, Attempt
from hpcbert.slurm.state_sources import JobRecord
from hpcbert.slurm.states import UNKNOWN, UNSUBMITTED, Kind, RepeatState, load_state, parse_state

AskStates = Callable[[TrackedCampaign], Mapping[Key, RepeatState]]


SCHEMA = 1
_SCHEDULERS = ("sacct", "squeue")
_AttemptKey = tuple[str, str, int, int]


# --- The states on record -----------------------------------------------------------------------


class RecordedStates:
    """The states that an earlier collect recorded, by array, job, repeat and attempt.

    Args:
        directory: The campaign's. A record that is damaged, or has a broken seal, counts as
            missing.
    """

    def __init__(self, directory: Path) -> None:
        self._states: dict[_AttemptKey, RepeatState] = {}
        path = directory / MEASUREMENTS
        try:
            data = store.read_json(path) if path.exists() else {}
            if data.get("schema") == SCHEMA and data.get(SEAL) == compute_seal(data):
                for run in data["runs"]:
                    self._states.update(_read_verdicts(run))
        except (UsageError, KeyError, TypeError, AttributeError):
            self._states = {}
        self._repeats = {key[:3] for key in self._states}

    def has(self, array: Array, number: int) -> bool:
        """Return whether any attempt of a repeat in an array is on record."""
        return (array.name, array.job_id, number) in self._repeats

    def verdict(self, array: Array, number: int, attempt: int) -> RepeatState | None:
        """Return the scheduler's word on an attempt that has ended; None if not on record."""
        state = self._states.get((array.name, array.job_id, number, attempt))
        return state if state and state.kind.over and state.source in _SCHEDULERS else None

    def suspended(self, array: Array, number: int, attempt: int) -> float:
        """Return the seconds for which an attempt was suspended; 0 if not recorded."""
        state = self._states.get((array.name, array.job_id, number, attempt))
        return state.suspended if state else 0.0


def _read_verdicts(run: Mapping[str, Any]) -> Iterator[tuple[_AttemptKey, RepeatState]]:
    for verdict in run["verdicts"]:
        state = load_state(verdict["state"])
        yield (verdict["array"], verdict["job_id"], run["repeat"], state.attempt), state


# --- The newest attempt of each repeat ----------------------------------------------------------


def find_states(
    watched: TrackedCampaign, ask: AskStates, recorded: RecordedStates
) -> tuple[dict[Key, RepeatState], tuple[str, ...]]:
    """Return the state of every repeat's newest attempt, and a warning if nothing answers.

    The scheduler is asked only if a repeat's state is not on record.
    """
    states = list_final_states(watched, recorded)
    warnings: tuple[str, ...] = ()
    answers: Mapping[Key, RepeatState] = {}
    if len(states) < len(watched.repeats):
        try:
            answers = ask(watched)
        except HpcbertError as error:
            name = watched.campaign.id
            warnings = (f"{name}: {error} The states are those that the jobs wrote themselves.",)
    for repeat in watched.repeats:
        if repeat.key not in states:
            state = answers.get(repeat.key) or _from_status_file(repeat)
            states[repeat.key] = _apply_verdict(repeat, state, recorded)
    return states, warnings


def list_final_states(watched: TrackedCampaign, recorded: RecordedStates) -> dict[Key, RepeatState]:
    """Return the states that can't change any more, of those repeats that have one."""
    states = {repeat.key: _final_state(repeat, recorded) for repeat in watched.repeats}
    return {key: state for key, state in states.items() if state is not None}


def _final_state(repeat: Repeat, recorded: RecordedStates) -> RepeatState | None:
    """Return a state that can't change any more; None if it may."""
    array = repeat.array
    if array.state == "refused" or not (array.called or array.state == "submitted"):
        word = "REFUSED" if array.state == "refused" else UNKNOWN
        return RepeatState(word, parse_state(word).kind, "none", detail=array.error or UNSUBMITTED)
    if find_traits(repeat.watched.campaign.scheduler).records_end:
        # Such a scheduler keeps no accounts: the file is all that there will ever be.
        state = _from_status_file(repeat)
        return state if state.kind.over else None
    if not recorded.has(array, repeat.number):
        # Ask Slurm first and read the file then: its content must not be older.
        return None
    record = repeat.newest
    verdict = recorded.verdict(array, repeat.number, record.attempt)
    if verdict is None or parse_state(verdict.word).returns:
        # An attempt after the one that was judged, or one that Slurm may have started since.
        return None
    return record.renew(verdict)


def _apply_verdict(repeat: Repeat, state: RepeatState, recorded: RecordedStates) -> RepeatState:
    """Return a state unless there is a verdict on the same attempt, which stays.

    If the repeat waits or runs in spite of it, there is an attempt that the job has not written
    about yet.
    """
    verdict = recorded.verdict(repeat.array, repeat.number, state.attempt)
    if verdict is None:
        return state
    if state.kind.alive:
        return replace(state, attempt=state.attempt + 1)
    return repeat.newest.renew(verdict)


def _from_status_file(repeat: Repeat) -> RepeatState:
    silent = RepeatState(UNKNOWN, Kind.UNKNOWN, "none", detail="no source says how it ended")
    record = repeat.newest
    return record.complete(record.end_state or silent)


# --- All attempts of a repeat -------------------------------------------------------------------


@dataclass(frozen=True)
class AttemptState:
    """One attempt.

    Attributes:
        array: The array that it was submitted in.
        state: Its state, with its number.
        job_record: What the job wrote about it.
    """

    array: Array
    state: RepeatState
    job_record: JobRecord


@dataclass(frozen=True)
class History:
    """All known attempts of one repeat, oldest first; at least one."""

    number: int
    attempts: tuple[AttemptState, ...]

    @property
    def newest(self) -> RepeatState:
        """The state of the last one."""
        return self.attempts[-1].state

    @property
    def full_state(self) -> RepeatState:
        """The state of the last one, with the states of earlier attempts."""
        return replace(self.newest, earlier=tuple(attempt.state for attempt in self.attempts[:-1]))

    @property
    def counted(self) -> AttemptState:
        """The attempt that counts: the last one, unless only one before it completed.

        A completed job may be requeued by hand, and the new attempt cancelled.
        """
        if self.newest.word == "COMPLETED":
            return self.attempts[-1]
        for attempt in reversed(self.attempts):
            state = attempt.state
            if state.kind is Kind.SUCCEEDED and state.step_exit == 0 and not state.suspended:
                return attempt
        return self.attempts[-1]

    def list_attempts(self, directory: Path) -> tuple[Attempt, ...]:
        """Return the attempts for a table; none if there is only one."""
        if len(self.attempts) == 1:
            return ()
        return tuple(_list_attempt(directory, self.number, attempt) for attempt in self.attempts)


def read_history(repeat: Repeat, newest: RepeatState, recorded: RecordedStates) -> History:
    """Return every attempt of one repeat, from all arrays that it was submitted in.

    `newest` is the state of the newest one, with what the scheduler says about earlier ones.
    """
    arrays = [submission.array for submission in (*repeat.before, repeat)]
    submitted = [array for array in arrays if array.state == "submitted"]
    record = repeat.record
    repeat_states = {repeat_state.attempt: repeat_state for repeat_state in newest.earlier}
    # An attempt that died before its script began has written nothing, but who submitted or
    # requeued it knows about it.
    attempt_numbers = {
        newest.attempt,
        *repeat_states,
        *record.attempts,
        *(array.first_attempt for array in submitted),
    }
    numbers = sorted(number for number in attempt_numbers if 0 <= number <= newest.attempt)
    attempt_states = []
    for attempt, next_attempt in zip(numbers, [*numbers[1:], None], strict=True):
        array = _find_array(submitted, attempt) or arrays[-1]
        job_record = record.attempt(attempt)
        state = newest
        if next_attempt is not None:
            job_state = _state_from_retry(arrays, repeat.number, next_attempt)
            job_state = job_state or _state_from_job(
                job_record, requeued=_find_array(submitted, next_attempt) == array
            )
            verdict = recorded.verdict(array, repeat.number, attempt)
            state = _choose_state(job_record, verdict, repeat_states.get(attempt), job_state)
        suspended = recorded.suspended(array, repeat.number, attempt)
        suspended = max(state.suspended, job_record.suspended, suspended)
        attempt_states.append(AttemptState(array, replace(state, suspended=suspended), job_record))
    return History(repeat.number, tuple(attempt_states))


def _find_array(arrays: Sequence[Array], attempt: int) -> Array | None:
    """Return the array that an attempt belongs to, among those that a repeat was submitted in."""
    return next((array for array in reversed(arrays) if array.first_attempt <= attempt), None)


def _choose_state(
    job_record: JobRecord,
    verdict: RepeatState | None,
    earlier_state: RepeatState | None,
    job_state: RepeatState,
) -> RepeatState:
    """Return an attempt's end by the scheduler's verdict, or else by the other sources."""
    if verdict is not None:
        return job_record.renew(verdict)
    if earlier_state is not None and earlier_state.kind.over:
        return job_record.complete(earlier_state)
    return job_record.renew(replace(job_state, attempt=job_record.attempt))


def _state_from_retry(
    arrays: Sequence[Array], number: int, next_attempt: int
) -> RepeatState | None:
    """Return the end of an attempt by the record of the retry that made the next one.

    The record has only the reasons against the repeat: if it had completed, and the reason is not
    its state, its log and its files are judged again.
    """
    for array in arrays:
        if not array.retry or array.first_attempt != next_attempt:
            continue
        for repeat, word, reason in array.why:
            is_state_reason = reason.startswith("state: ")
            if repeat == number and word != UNKNOWN and (is_state_reason or word != "COMPLETED"):
                return RepeatState(word, Kind.FAILED, "manifest", detail=reason)
    return None


def _state_from_job(job_record: JobRecord, *, requeued: bool) -> RepeatState:
    """Return the end of an attempt that another one followed, by what its job wrote.

    Args:
        requeued: Whether the scheduler, not a retry, started the next one: then this attempt ended
            by being requeued, whatever its script noticed.
    """
    repeat_state = job_record.end_state
    if repeat_state is not None and repeat_state.kind is Kind.SUCCEEDED:
        return repeat_state
    where = f", {job_record.where}" if job_record.where else ""
    detail = f"{repeat_state.detail if repeat_state else 'never wrote its end'}{where}"
    if requeued:
        return RepeatState("REQUEUED", Kind.REQUEUED, "status-file", detail=detail)
    if repeat_state is not None:
        return replace(repeat_state, detail=detail)
    lost_detail = f"never recorded its end: it was killed or requeued, or its node was lost{where}"
    return RepeatState(UNKNOWN, Kind.UNKNOWN, "none", detail=lost_detail)


def _list_attempt(directory: Path, number: int, attempt_state: AttemptState) -> Attempt:
    log = store.log_path(directory, attempt_state.array, number, attempt_state.state.attempt)
    state, job_record = attempt_state.state, attempt_state.job_record
    return Attempt(
        attempt=state.attempt,
        job=job_record.jobs[0] if job_record.jobs else attempt_state.array.element(number),
        state=state.word,
        detail=state.detail,
        nodes=state.nodes,
        start=job_record.start if state.start is None else state.start,
        end=job_record.end if state.end is None else state.end,
        log=str(log.relative_to(directory)) if log.is_file() else "",
        state_source=state.source,
    )
