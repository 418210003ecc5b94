"""The state of every repeat of a campaign: from the record, its own account, or the scheduler.

The record is what an earlier collect wrote to measurements.json, from which only a verdict is used:
the scheduler's word on an attempt that has ended, and how long it was suspended. What the job's own
files say is read again each time, because a file system may show them late.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hpcbert.campaign import store
from hpcbert.campaign.evidence import MEASUREMENTS, SEAL, seal
from hpcbert.config.schedulers import traits
from hpcbert.errors import HpcbertError, UsageError
from hpcbert.slurm.states import UNKNOWN, UNSUBMITTED, Kind, RepeatState, parse, recalled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from hpcbert.campaign.repeats import Key, Repeat, TrackedCampaign
    from hpcbert.model import Array

    States = Callable[[TrackedCampaign], Mapping[Key, RepeatState]]

SCHEMA = 1
_SCHEDULERS = ("sacct", "squeue")
_Key = tuple[str, str, int, int]


class Memory:
    """The states on record, by array, job, repeat and attempt.

    Args:
        directory: The campaign's. A record that is damaged, or has a broken seal, counts as
            missing.
    """

    def __init__(self, directory: Path) -> None:
        self._states: dict[_Key, RepeatState] = {}
        path = directory / MEASUREMENTS
        try:
            data = store.read_json(path) if path.exists() else {}
            if data.get("schema") == SCHEMA and data.get(SEAL) == seal(data):
                self._states = dict(one for run in data["runs"] for one in _recall(run))
        except (UsageError, KeyError, TypeError, AttributeError):
            self._states = {}
        self._known = {key[:3] for key in self._states}

    def knows(self, array: Array, number: int) -> bool:
        """Return whether any attempt of a repeat is on record."""
        return (array.name, array.job_id, number) in self._known

    def verdict(self, array: Array, number: int, attempt: int) -> RepeatState | None:
        """Return the scheduler's word on an attempt that has ended; None: it is not on record."""
        state = self._states.get((array.name, array.job_id, number, attempt))
        return state if state and state.kind.over and state.source in _SCHEDULERS else None

    def suspended(self, array: Array, number: int, attempt: int) -> float:
        """Return the seconds for which an attempt was suspended, as far as recorded."""
        state = self._states.get((array.name, array.job_id, number, attempt))
        return state.suspended if state else 0.0


def _recall(run: Mapping[str, Any]) -> Iterator[tuple[_Key, RepeatState]]:
    """Yield the records of a repeat's attempts."""
    for one in run["verdicts"]:
        state = recalled(one["state"])
        yield (one["array"], one["job_id"], run["repeat"], state.attempt), state


def standing(
    watched: TrackedCampaign, ask: States, memory: Memory
) -> tuple[dict[Key, RepeatState], tuple[str, ...]]:
    """Return the state of every repeat's newest attempt, and a warning if nothing answers.

    Args:
        watched: The campaign.
        ask: Asks its scheduler; called only if a repeat's state is not on record.
        memory: What an earlier collect recorded.
    """
    known = {one.key: _on_record(one, memory) for one in watched.repeats}
    found = {key: state for key, state in known.items() if state is not None}
    warnings: tuple[str, ...] = ()
    answers: Mapping[Key, RepeatState] = {}
    if len(found) < len(known):
        try:
            answers = ask(watched)
        except HpcbertError as error:
            id_ = watched.campaign.id
            warnings = (f"{id_}: {error} The states are those that the jobs wrote themselves.",)
    for one in watched.repeats:
        if one.key not in found:
            told = answers.get(one.key) or _by_its_record(one)
            found[one.key] = _unless_judged(one, told, memory)
    return found, warnings


def _on_record(one: Repeat, memory: Memory) -> RepeatState | None:
    """Return a state that can't change any more and that needs no question to the scheduler."""
    array = one.array
    if array.state == "refused" or not (array.called or array.state == "submitted"):
        word = "REFUSED" if array.state == "refused" else UNKNOWN
        return RepeatState(word, parse(word).kind, "none", detail=array.error or UNSUBMITTED)
    if traits(one.watched.campaign.scheduler).writes_ends:
        # Such a scheduler keeps no accounts: the file is all that there will ever be.
        own = _by_its_record(one)
        return own if own.kind.over else None
    if not memory.knows(array, one.number):
        # Ask Slurm first and read the file then: its content must not be older.
        return None
    seen = one.newest
    verdict = memory.verdict(array, one.number, seen.attempt)
    if verdict is None or parse(verdict.word).returns:
        # An attempt after the one that was judged, or one that Slurm may have started since.
        return None
    return seen.renew(verdict)


def _unless_judged(one: Repeat, told: RepeatState, memory: Memory) -> RepeatState:
    """Return a state unless there is a verdict on the same attempt, which stays.

    If the repeat waits or runs in spite of it, there is an attempt that the job has not written
    about yet.
    """
    verdict = memory.verdict(one.array, one.number, told.attempt)
    if verdict is None:
        return told
    if told.kind.alive:
        return replace(told, attempt=told.attempt + 1)
    return one.newest.renew(verdict)


def _by_its_record(one: Repeat) -> RepeatState:
    silent = RepeatState(UNKNOWN, Kind.UNKNOWN, "none", detail="no source says how it ended")
    seen = one.newest
    return seen.complete(seen.end_state or silent)
