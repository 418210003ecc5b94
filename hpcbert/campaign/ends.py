"""Ends of repeats that no job wrote: cancelled while waiting, or never started by the scheduler.

Whichever command learns of such an end writes it down, because `list` and `show` ask nobody and the
scheduler forgets. No number depends on it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from hpcbert.campaign import store
from hpcbert.campaign.repeats import Key, TrackedCampaign
from hpcbert.errors import HpcbertError
from hpcbert.model import Array
from hpcbert.slurm.states import RepeatState
from hpcbert.system.decode import IgnoreUnknown, decode

ENDS = "ends.json"
_SCHEMA = 1


@dataclass(frozen=True)
class UnwrittenEnd(IgnoreUnknown):
    """The end of one attempt.

    Attributes:
        array, job_id: The array of the repeat and its job.
        state: The scheduler's word.
        detail: A sentence; may be empty.
    """

    array: str
    job_id: str
    repeat: int
    attempt: int
    state: str
    detail: str = ""


@dataclass(frozen=True)
class _Document(IgnoreUnknown):
    schema: int
    ends: tuple[UnwrittenEnd, ...]


class Ends(NamedTuple):
    """The ends on record, by array, job and repeat."""

    by_repeat: Mapping[tuple[str, str, int], UnwrittenEnd]

    def of(self, array: Array, repeat: int, attempt: int = 0) -> UnwrittenEnd | None:
        """Return the end of a repeat; None if a later attempt has begun, or none is on record."""
        end = self.by_repeat.get((array.name, array.job_id, repeat))
        return end if end and end.attempt >= attempt else None


NO_ENDS = Ends({})


def read(directory: Path) -> Ends:
    """Return a campaign's recorded ends; none if the file is missing or damaged."""
    path = directory / ENDS
    with contextlib.suppress(HpcbertError):
        document = decode(_Document, store.read_json(path), file=str(path))
        return Ends({(end.array, end.job_id, end.repeat): end for end in document.ends})
    return NO_ENDS


def write(
    watched: TrackedCampaign, states: Mapping[Key, RepeatState], final: Collection[Key]
) -> None:
    """Write the ends that a campaign's jobs did not write themselves.

    An end of a repeat that lives again is removed. In another user's campaign, or one that can't be
    written to, nothing changes.
    """
    before = read(watched.directory).by_repeat
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
        document = {"schema": _SCHEMA, "ends": [asdict(end) for end in ends.values()]}
        with contextlib.suppress(HpcbertError):
            store.write_json(watched.directory / ENDS, document)
