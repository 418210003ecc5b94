"""All attempts of a repeat: what is known of each, who said so, and which one counts.

Of an attempt are believed, in this order: what an earlier collect wrote down of the scheduler's
word, what accounting says now, what a retry wrote into the manifest, and what the job wrote itself.
A verdict once reached stands: no later question, and no silence, makes an attempt better.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hpcbert.campaign import store
from hpcbert.model import Attempt
from hpcbert.slurm.states import UNKNOWN, Kind, RepeatState
from hpcbert.system.lazy import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hpcbert.campaign.repeats import Repeat
    from hpcbert.campaign.standing import Memory
    from hpcbert.model import Array
    from hpcbert.slurm.jobrecord import JobRecord


@dataclass(frozen=True)
class AttemptState:
    """One attempt.

    Attributes:
        array: What it was submitted in.
        state: How it is, with its number.
        seen: What the job wrote about it.
    """

    array: Array
    state: RepeatState
    seen: JobRecord


@dataclass(frozen=True)
class History:
    """All attempts of one repeat that are known of, oldest first; at least one."""

    number: int
    attempts: tuple[AttemptState, ...]

    @property
    def newest(self) -> RepeatState:
        """The state of the last one."""
        return self.attempts[-1].state

    @property
    def told(self) -> RepeatState:
        """The same, with the states of those before it."""
        return replace(self.newest, earlier=tuple(one.state for one in self.attempts[:-1]))

    @property
    def counted(self) -> AttemptState:
        """The attempt that counts: the last one, unless only one before it completed.

        A job that completed may be requeued by hand, and the new attempt cancelled.
        """
        if self.newest.word == "COMPLETED":
            return self.attempts[-1]
        for one in reversed(self.attempts):
            state = one.state
            if state.kind is Kind.SUCCEEDED and state.step_exit == 0 and not state.suspended:
                return one
        return self.attempts[-1]

    def listed(self, directory: Path) -> tuple[Attempt, ...]:
        """Return the attempts as they stand in a table; none if there is but one."""
        if len(self.attempts) == 1:
            return ()
        return tuple(_listed(directory, self.number, one) for one in self.attempts)


def history(repeat: Repeat, newest: RepeatState, memory: Memory) -> History:
    """Return what is known of every attempt of one repeat.

    Args:
        repeat: Which one, in the array that it was submitted in last.
        newest: The state of its newest attempt, and what the scheduler says of those before.
        memory: What was written down before.
    """
    arrays = [one.array for one in (*repeat.before, repeat)]
    submitted = [one for one in arrays if one.state == "submitted"]
    record = repeat.record
    said = {one.attempt: one for one in newest.earlier}
    # An attempt that died before its script began has written nothing; who submitted or requeued
    # it knows of it.
    known = {newest.attempt, *said, *record.attempts, *(one.first_attempt for one in submitted)}
    ordered = sorted(one for one in known if 0 <= one <= newest.attempt)
    found = []
    for attempt, after in zip(ordered, [*ordered[1:], None], strict=True):
        array = _array(submitted, attempt) or arrays[-1]
        seen = record.attempt(attempt)
        state = newest
        if after is not None:
            own = _by_retry(arrays, repeat.number, after)
            own = own or _by_its_record(seen, requeued=_array(submitted, after) == array)
            kept = memory.verdict(array, repeat.number, attempt)
            state = _believed(seen, kept, said.get(attempt), own)
        pause = memory.suspended(array, repeat.number, attempt)
        pause = max(state.suspended, seen.suspended, pause)
        found.append(AttemptState(array, replace(state, suspended=pause), seen))
    return History(repeat.number, tuple(found))


def _array(arrays: Sequence[Array], attempt: int) -> Array | None:
    """Return the array that an attempt belongs to, of those that a repeat was submitted in."""
    return next((one for one in reversed(arrays) if one.first_attempt <= attempt), None)


def _believed(
    seen: JobRecord, kept: RepeatState | None, said: RepeatState | None, own: RepeatState
) -> RepeatState:
    """Return how an attempt ended: a verdict of the scheduler's, or else what others say."""
    if kept is not None:
        return seen.renew(kept)
    if said is not None and said.kind.over:
        return seen.complete(said)
    return seen.renew(replace(own, attempt=seen.attempt))


def _by_retry(arrays: Sequence[Array], number: int, after: int) -> RepeatState | None:
    """Return how an attempt ended by what the retry says whose first attempt came after it.

    It tells of nothing but the reasons that the repeat did not count for: where it had completed,
    and the reason is not its state, its log and its files are judged again.
    """
    for array in arrays:
        if not array.retry or array.first_attempt != after:
            continue
        for one, word, why in array.why:
            spoilt = why.startswith("state: ")
            if one == number and word != UNKNOWN and (spoilt or word != "COMPLETED"):
                return RepeatState(word, Kind.FAILED, "manifest", detail=why)
    return None


def _by_its_record(seen: JobRecord, *, requeued: bool) -> RepeatState:
    """Return how an attempt that another one followed ended, by what its job wrote.

    Args:
        seen: What it wrote.
        requeued: Whether the scheduler started the next one, and no retry did: then that is how
            this one ended, whatever its script caught of it.
    """
    own = seen.end_state
    if own is not None and own.kind is Kind.SUCCEEDED:
        return own
    where = f", {seen.where}" if seen.where else ""
    detail = f"{own.detail if own else 'never wrote its end'}{where}"
    if requeued:
        return RepeatState("REQUEUED", Kind.REQUEUED, "status-file", detail=detail)
    if own is not None:
        return replace(own, detail=detail)
    lost = f"never wrote its end: killed, requeued, or its node was lost{where}"
    return RepeatState(UNKNOWN, Kind.UNKNOWN, "none", detail=lost)


def _listed(directory: Path, number: int, one: AttemptState) -> Attempt:
    log = store.log_path(directory, one.array, number, one.state.attempt)
    state, seen = one.state, one.seen
    return Attempt(
        attempt=state.attempt,
        job=seen.jobs[0] if seen.jobs else one.array.element(number),
        state=state.word,
        detail=state.detail,
        nodes=state.nodes,
        start=seen.start if state.start is None else state.start,
        end=seen.end if state.end is None else state.end,
        log=str(log.relative_to(directory)) if log.is_file() else "",
        state_source=state.source,
    )
