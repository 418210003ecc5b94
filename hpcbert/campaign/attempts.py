"""All attempts of a repeat: what is known about each, from which source, and the valid one.

The sources for an attempt, in this order: the scheduler's word that an earlier collect recorded,
what accounting says now, what a retry wrote into the manifest, and what the job wrote itself. A
verdict once reached is final: no later answer, or lack of one, makes an attempt better.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpcbert.campaign import store
from hpcbert.model import Attempt
from hpcbert.slurm.states import UNKNOWN, Kind, RepeatState

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
        array: The array that it was submitted in.
        state: Its state, with its number.
        seen: What the job wrote about it.
    """

    array: Array
    state: RepeatState
    seen: JobRecord


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
    def told(self) -> RepeatState:
        """The same, with the states of earlier attempts."""
        return replace(self.newest, earlier=tuple(one.state for one in self.attempts[:-1]))

    @property
    def counted(self) -> AttemptState:
        """The attempt that counts: the last one, unless only one before it completed.

        A completed job may be requeued by hand, and the new attempt cancelled.
        """
        if self.newest.word == "COMPLETED":
            return self.attempts[-1]
        for one in reversed(self.attempts):
            state = one.state
            if state.kind is Kind.SUCCEEDED and state.step_exit == 0 and not state.suspended:
                return one
        return self.attempts[-1]

    def listed(self, directory: Path) -> tuple[Attempt, ...]:
        """Return the attempts for a table; none if there is only one."""
        if len(self.attempts) == 1:
            return ()
        return tuple(_listed(directory, self.number, one) for one in self.attempts)


def history(repeat: Repeat, newest: RepeatState, memory: Memory) -> History:
    """Return what is known about every attempt of one repeat.

    Args:
        repeat: The repeat, in the array that it was submitted in last.
        newest: The state of its newest attempt, and what the scheduler says about earlier ones.
        memory: What an earlier collect recorded.
    """
    arrays = [one.array for one in (*repeat.before, repeat)]
    submitted = [one for one in arrays if one.state == "submitted"]
    record = repeat.record
    said = {one.attempt: one for one in newest.earlier}
    # An attempt that died before its script began has written nothing, but who submitted or
    # requeued it knows about it.
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
    """Return the array that an attempt belongs to, among those that a repeat was submitted in."""
    return next((one for one in reversed(arrays) if one.first_attempt <= attempt), None)


def _believed(
    seen: JobRecord, kept: RepeatState | None, said: RepeatState | None, own: RepeatState
) -> RepeatState:
    """Return how an attempt ended: by the scheduler's verdict, or else by the other sources."""
    if kept is not None:
        return seen.renew(kept)
    if said is not None and said.kind.over:
        return seen.complete(said)
    return seen.renew(replace(own, attempt=seen.attempt))


def _by_retry(arrays: Sequence[Array], number: int, after: int) -> RepeatState | None:
    """Return how an attempt ended by the record of the retry that made the next attempt.

    The record has only the reasons against the repeat: if it had completed, and the reason is not
    its state, its log and its files are judged again.
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
    """Return how an attempt ended that another one followed, by what its job wrote.

    Args:
        seen: What it wrote.
        requeued: Whether the scheduler, not a retry, started the next one: then this attempt ended
            by being requeued, whatever its script noticed.
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
    lost = f"never recorded its end: it was killed or requeued, or its node was lost{where}"
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
