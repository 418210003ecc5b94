"""All attempts of a repeat, for the record: one counts, none is forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcbert import store
from hpcbert.model import Attempt
from hpcbert.slurm.hostlist import expand
from hpcbert.slurm.ladder import from_witness
from hpcbert.slurm.states import UNKNOWN, witness

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hpcbert.model import Array, Campaign
    from hpcbert.slurm.states import RepeatState

Events = tuple[dict[str, Any], ...]


def attempts(
    directory: Path, campaign: Campaign, array: Array, number: int, newest: RepeatState
) -> tuple[Attempt, ...]:
    """Return every attempt of one repeat that is known of, oldest first; none if there is but one.

    Args:
        directory: The campaign's.
        campaign: Its manifest.
        array: The array that the repeat was submitted in last.
        number: The repeat.
        newest: The state of its newest attempt.
    """
    arrays = [one for one in campaign.arrays if one.point == array.point and number in one.repeats]
    events = store.read_status(directory, array, number)
    numbers = {newest.attempt, *(one.first_attempt for one in arrays if one.state == "submitted")}
    told: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        if isinstance(one := event.get("attempt"), int):
            told.setdefault(one, []).append(event)
    ordered = sorted(one for one in {*numbers, *told} if 0 <= one <= newest.attempt)
    if len(ordered) == 1:
        return ()
    found = []
    for attempt, after in zip(ordered, [*ordered[1:], None], strict=True):
        own = tuple(told.get(attempt, ()))
        word, detail = newest.word, newest.detail
        if after is not None:
            word, detail = _told_by_retry(arrays, number, after) or _own_word(own)
        made = [one for one in arrays if one.first_attempt <= attempt][-1]
        log = store.log_path(directory, made, number, attempt)
        found.append(
            _attempt(
                attempt,
                own,
                job=made.element(number),
                end=(word, detail),
                log=str(log.relative_to(directory)) if log.is_file() else "",
            )
        )
    return tuple(found)


def _told_by_retry(arrays: Sequence[Array], number: int, after: int) -> tuple[str, str] | None:
    """Return how an attempt ended by what the retry says whose first attempt came after it."""
    for array in arrays:
        if array.retry and array.first_attempt == after:
            return next(((word, why) for one, word, why in array.why if one == number), None)
    return None


def _own_word(events: Events) -> tuple[str, str]:
    """Return how an attempt that Slurm requeued ended by its own account."""
    seen = witness(events)
    own = from_witness(seen)
    where = f", {seen.where}" if seen.where else ""
    if own is not None:
        return own.word, f"{own.detail}{where}" if own.detail else ""
    return UNKNOWN, f"never wrote its end: killed, requeued, or its node was lost{where}"


def _attempt(attempt: int, events: Events, *, job: str, end: tuple[str, str], log: str) -> Attempt:
    seen = witness(events)
    return Attempt(
        attempt=attempt,
        job=seen.jobs[0] if seen.jobs else job,
        state=end[0],
        detail=end[1],
        nodes=expand(seen.nodelist),
        start=seen.start,
        end=seen.end,
        log=log,
    )
