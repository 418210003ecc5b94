"""All attempts of a repeat: what is known of each, who said so, and which one counts.

Of an attempt are believed, in this order: what an earlier collect wrote down of the scheduler's
word, what accounting says now, what a retry wrote into the manifest, and what the job wrote itself.
A verdict once reached stands: no later question, and no silence, makes an attempt better.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hpcbert.campaign import store
from hpcbert.model import Attempt
from hpcbert.slurm.hostlist import expand
from hpcbert.slurm.ladder import from_witness, with_witness
from hpcbert.slurm.states import UNKNOWN, Kind, RepeatState, Witness, witness

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hpcbert.campaign.memory import Memory
    from hpcbert.model import Array, Campaign

Events = tuple[dict[str, Any], ...]
_REQUEUED = "REQUEUED"


@dataclass(frozen=True)
class Try:
    """One attempt.

    Attributes:
        array: What it was submitted in.
        state: How it is, with its number.
        seen: What the job wrote about it.
    """

    array: Array
    state: RepeatState
    seen: Witness


@dataclass(frozen=True)
class History:
    """All attempts of one repeat that are known of, oldest first; at least one."""

    number: int
    tries: tuple[Try, ...]

    @property
    def newest(self) -> RepeatState:
        """The state of the last one."""
        return self.tries[-1].state

    @property
    def told(self) -> RepeatState:
        """The same, with the states of those before it."""
        return replace(self.newest, earlier=tuple(one.state for one in self.tries[:-1]))

    @property
    def counted(self) -> Try:
        """The attempt that counts: the last one, unless only one before it completed.

        A job that completed may be requeued by hand, and the new attempt cancelled.
        """
        if self.newest.word == "COMPLETED":
            return self.tries[-1]
        good = (one for one in reversed(self.tries) if _completed(one.state))
        return next(good, self.tries[-1])

    def record(self, directory: Path) -> tuple[Attempt, ...]:
        """Return the attempts as they stand in a table; none if there is but one."""
        if len(self.tries) == 1:
            return ()
        return tuple(_attempt(directory, self.number, one) for one in self.tries)


def _completed(state: RepeatState) -> bool:
    return state.kind == Kind.SUCCEEDED and state.step_exit == 0 and not state.suspended


def history(
    directory: Path,
    campaign: Campaign,
    repeat: tuple[Array, int],
    newest: RepeatState,
    memory: Memory,
) -> History:
    """Return what is known of every attempt of one repeat.

    Args:
        directory: The campaign's.
        campaign: Its manifest.
        repeat: The array that it was submitted in last, and its number.
        newest: The state of its newest attempt, and what the scheduler says of those before.
        memory: What was written down before.
    """
    array, number = repeat
    arrays = [one for one in campaign.arrays if one.point == array.point and number in one.repeats]
    submitted = [one for one in arrays if one.state == "submitted"]
    told: dict[int, list[dict[str, Any]]] = {}
    for event in store.read_status(directory, array, number):
        if isinstance(one := event.get("attempt"), int):
            told.setdefault(one, []).append(event)
    numbers = {newest.attempt, *(one.first_attempt for one in submitted), *told}
    numbers |= {one.attempt for one in newest.earlier}
    ordered = sorted(one for one in numbers if 0 <= one <= newest.attempt)
    said = {one.attempt: one for one in newest.earlier}
    found = []
    for attempt, after in zip(ordered, [*ordered[1:], None], strict=True):
        made = _array(submitted, attempt) or arrays[-1]
        seen = witness(told.get(attempt, ()), first=attempt)
        state = newest
        if after is not None:
            known = memory.verdict(made, number, attempt), said.get(attempt)
            retried = _told_by_retry(arrays, number, after)
            again = _array(submitted, after) == made
            state = _judged(seen, known, retried or _own_word(seen, again=again))
        pause = max(state.suspended, seen.suspended, memory.suspended(made, number, attempt))
        found.append(Try(made, replace(state, suspended=pause), seen))
    return History(number, tuple(found))


def _array(arrays: Sequence[Array], attempt: int) -> Array | None:
    """Return the array that an attempt belongs to, of those that a repeat was submitted in."""
    return next((one for one in reversed(arrays) if one.first_attempt <= attempt), None)


def _judged(
    seen: Witness, known: tuple[RepeatState | None, RepeatState | None], otherwise: RepeatState
) -> RepeatState:
    """Return how an attempt ended: a verdict of the scheduler's, or else what others say."""
    kept, said = known
    if kept is not None:
        return renewed(kept, seen)
    if said is not None and said.done:
        return with_witness(said, seen)
    return renewed(replace(otherwise, attempt=seen.attempt), seen)


def renewed(kept: RepeatState, seen: Witness) -> RepeatState:
    """Return a state that was written down, with what the job's own file says of it now."""
    if seen.attempt != kept.attempt:
        return kept
    return replace(
        kept,
        nodes=kept.nodes or expand(seen.nodelist),
        step_exit=seen.step_exit,
        suspended=max(kept.suspended, seen.suspended),
    )


def _told_by_retry(arrays: Sequence[Array], number: int, after: int) -> RepeatState | None:
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


def _own_word(seen: Witness, *, again: bool) -> RepeatState:
    """Return how an attempt ended by the job's account, which Slurm started again or did not."""
    own = from_witness(seen)
    if own is not None and own.kind == Kind.SUCCEEDED:
        return own
    where = f", {seen.where}" if seen.where else ""
    detail = f"{own.detail if own else 'never wrote its end'}{where}"
    if again:
        return RepeatState(_REQUEUED, Kind.REQUEUED, "status-file", detail=detail)
    if own is not None:
        return replace(own, detail=detail)
    lost = f"never wrote its end: killed, requeued, or its node was lost{where}"
    return RepeatState(UNKNOWN, Kind.UNKNOWN, "none", detail=lost)


def _attempt(directory: Path, number: int, one: Try) -> Attempt:
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
