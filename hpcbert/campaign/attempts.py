"""The attempts of every repeat: how each ended, by which source, and which one is valid.

The sources for an attempt, in this order: the scheduler's word that an earlier collect recorded,
what accounting says now, what a retry wrote into the manifest, and what the job wrote itself. A
verdict once reached is final: no later answer, or lack of one, makes an attempt better. What the
job's own files say is read again each time, because a file system may show them late.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from hpcbert.campaign import store
from hpcbert.campaign.evidence import MEASUREMENTS, SEAL, compute_seal
from hpcbert.campaign.repeats import Key, Repeat, TrackedCampaign
from hpcbert.config.schedulers import find_traits
from hpcbert.errors import HpcbertError, UsageError
from hpcbert.model import Array, Attempt
from hpcbert.slurm.state_sources import JobRecord
from hpcbert.slurm.states import UNKNOWN, UNSUBMITTED, Kind, RepeatState, load_state, parse_state
from hpcbert.system.decode import IgnoreUnknown, decode

AskStates = Callable[[TrackedCampaign], Mapping[Key, RepeatState]]


SCHEMA = 1
# Of runs that had a node at the same time.
SHARED = "shared-nodes"
_SCHEDULERS = ("sacct", "squeue")
_AttemptKey = tuple[str, str, int, int]


# --- The states on record -----------------------------------------------------------------------


class RecordedStates:
    """The states that an earlier collect recorded, by array, job, repeat and attempt.

    Args:
        directory: The campaign's. A record that is damaged, or has a broken seal, counts as
            missing.

    Attributes:
        sharing: The runs that shared nodes, by array, repeat and attempt: the reason that refused
            the run, or an empty text if it was only marked.
    """

    def __init__(self, directory: Path) -> None:
        self._states: dict[_AttemptKey, RepeatState] = {}
        self.sharing: dict[tuple[str, int, int], str] = {}
        path = directory / MEASUREMENTS
        try:
            data = store.read_json(path) if path.exists() else {}
            if data.get("schema") == SCHEMA and data.get(SEAL) == compute_seal(data):
                for run in data["runs"]:
                    self._states.update(_read_verdicts(run))
                    self.sharing.update(_read_sharing(run))
        except (UsageError, KeyError, TypeError, AttributeError):
            self._states, self.sharing = {}, {}
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


def _read_sharing(run: Mapping[str, Any]) -> Iterator[tuple[tuple[str, int, int], str]]:
    details = [reason["detail"] for reason in run["reasons"] if reason["code"] == SHARED]
    if details or SHARED in run["flags"]:
        yield (run["array"], run["repeat"], run["attempt"]), "".join(details[:1])


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
        if repeat.key in states:
            continue
        state = answers.get(repeat.key) or _from_status_file(repeat)
        verdict = recorded.verdict(repeat.array, repeat.number, state.attempt)
        if verdict and state.kind.alive:
            # There is an attempt that the job has not written about yet.
            state = replace(state, attempt=state.attempt + 1)
        elif verdict:
            state = repeat.newest.renew(verdict)
        states[repeat.key] = state
    return states, warnings


def list_final_states(watched: TrackedCampaign, recorded: RecordedStates) -> dict[Key, RepeatState]:
    """Return the states that can't change any more, of those repeats that have one."""
    states = {repeat.key: _final_state(repeat, recorded) for repeat in watched.repeats}
    return {key: state for key, state in states.items() if state is not None}


def _final_state(repeat: Repeat, recorded: RecordedStates) -> RepeatState | None:
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
    # None of an attempt after the one that was judged, or that Slurm may have started since.
    is_final = verdict is not None and not parse_state(verdict.word).returns
    return record.renew(verdict) if verdict and is_final else None


def _from_status_file(repeat: Repeat) -> RepeatState:
    silent = RepeatState(UNKNOWN, Kind.UNKNOWN, "none", detail="no source says how it ended")
    record = repeat.newest
    return record.complete(record.end_state or silent)


# --- All attempts of a repeat -------------------------------------------------------------------


class AttemptState(NamedTuple):
    """One attempt: the array that it was submitted in, its state, and what its job wrote."""

    array: Array
    state: RepeatState
    job_record: JobRecord


@dataclass(frozen=True)
class History:
    """All known attempts of one repeat, oldest first; at least one."""

    repeat: Repeat
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

    @property
    def log(self) -> str:
        """Path of the log of the attempt that counts, relative to the campaign."""
        array, attempt = self.repeat.array, self.counted.state.attempt
        return str(store.log_path(Path(), array, self.repeat.number, attempt))

    @property
    def status(self) -> str:
        """Path of the status file of the attempt that counts, relative to the campaign."""
        return self.counted.array.status(self.repeat.number)

    def list_attempts(self) -> tuple[Attempt, ...]:
        """Return the attempts for a table; none if there is only one."""
        if len(self.attempts) == 1:
            return ()
        attempts, directory = [], self.repeat.watched.directory
        for array, state, record in self.attempts:
            log = store.log_path(Path(), array, self.repeat.number, state.attempt)
            attempt = Attempt(
                attempt=state.attempt,
                job=record.jobs[0] if record.jobs else array.element(self.repeat.number),
                state=state.word,
                detail=state.detail,
                nodes=state.nodes,
                start=record.start if state.start is None else state.start,
                end=record.end if state.end is None else state.end,
                log=str(log) if (directory / log).is_file() else "",
                state_source=state.source,
            )
            attempts.append(attempt)
        return tuple(attempts)


def read_history(repeat: Repeat, newest: RepeatState, recorded: RecordedStates) -> History:
    """Return every attempt of one repeat, from all arrays that it was submitted in.

    `newest` is the state of the newest one, with what the scheduler says about earlier ones.
    """
    arrays = [submission.array for submission in (*repeat.before, repeat)]
    submitted = [array for array in arrays if array.state == "submitted"]
    earlier = {state.attempt: state for state in newest.earlier}
    # An attempt that died before its script began has written nothing, but who submitted or
    # requeued it knows about it.
    first_attempts = [array.first_attempt for array in submitted]
    known_numbers = {newest.attempt, *earlier, *repeat.record.attempts, *first_attempts}
    numbers = sorted(number for number in known_numbers if 0 <= number <= newest.attempt)
    attempts = []
    for attempt, next_attempt in zip(numbers, [*numbers[1:], None], strict=True):
        array = _find_array(submitted, attempt) or arrays[-1]
        job_record, state = repeat.record.attempt(attempt), newest
        verdict = recorded.verdict(array, repeat.number, attempt)
        if next_attempt is not None and verdict is not None:
            state = job_record.renew(verdict)
        elif next_attempt is not None and attempt in earlier and earlier[attempt].kind.over:
            state = job_record.complete(earlier[attempt])
        elif next_attempt is not None:
            requeued = _find_array(submitted, next_attempt) == array
            state = _state_from_retry(arrays, repeat.number, next_attempt) or _state_from_job(
                job_record, requeued=requeued
            )
            state = job_record.renew(replace(state, attempt=attempt))
        suspended = recorded.suspended(array, repeat.number, attempt)
        suspended = max(state.suspended, job_record.suspended, suspended)
        attempts.append(AttemptState(array, replace(state, suspended=suspended), job_record))
    return History(repeat, tuple(attempts))


def _find_array(arrays: Sequence[Array], attempt: int) -> Array | None:
    return next((array for array in reversed(arrays) if array.first_attempt <= attempt), None)


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

    If the scheduler, not a retry, started the next one, this one ended by being requeued, whatever
    its script noticed.
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


# --- Ends that no job wrote: cancelled while waiting, or never started by the scheduler -----------

# Whichever command learns of such an end writes it down, because `list` and `show` ask nobody and
# the scheduler forgets. No number depends on it.
ENDS = "ends.json"


@dataclass(frozen=True)
class UnwrittenEnd(IgnoreUnknown):
    """The end of one attempt; `state` is the scheduler's word."""

    array: str
    job_id: str
    repeat: int
    attempt: int
    state: str
    detail: str = ""


# By array, job and repeat.
Ends = Mapping[tuple[str, str, int], UnwrittenEnd]


def find_end(ends: Ends, array: Array, repeat: int, attempt: int = 0) -> UnwrittenEnd | None:
    """Return the end of a repeat; None if a later attempt has begun, or none is on record."""
    end = ends.get((array.name, array.job_id, repeat))
    return end if end and end.attempt >= attempt else None


def read_ends(directory: Path) -> Ends:
    """Return a campaign's recorded ends; none if the file is missing or damaged."""
    path = directory / ENDS
    with contextlib.suppress(HpcbertError):
        ends = decode(tuple[UnwrittenEnd, ...], store.read_json(path), file=str(path))
        return {(end.array, end.job_id, end.repeat): end for end in ends}
    return {}


def write_ends(
    watched: TrackedCampaign, states: Mapping[Key, RepeatState], final: Collection[Key]
) -> None:
    """Write the ends that a campaign's jobs did not write themselves.

    An end of a repeat that lives again is removed. In another user's campaign, or one that can't be
    written to, nothing changes.
    """
    before = read_ends(watched.directory)
    ends = dict(before)
    for repeat in watched.repeats:
        array, state = repeat.array, states.get(repeat.key)
        if state is None or not array.job_id:
            continue
        name = (array.name, array.job_id, repeat.number)
        ends.pop(name, None)
        ended = repeat.newest.ended and repeat.newest.attempt >= state.attempt
        if repeat.key in final and not (state.kind.alive or ended):
            ends[name] = UnwrittenEnd(*name, state.attempt, state.word, state.detail)
    if ends != before and not store.find_foreign_owner(watched.directory):
        with contextlib.suppress(HpcbertError):
            store.write_json(watched.directory / ENDS, [asdict(end) for end in ends.values()])
