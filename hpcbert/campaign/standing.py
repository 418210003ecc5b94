"""In which state every repeat of a campaign stands: on record, by its own account, or asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hpcbert.campaign import store
from hpcbert.campaign.attempts import renewed
from hpcbert.config.schedulers import traits
from hpcbert.errors import HpcbertError
from hpcbert.slurm.ladder import from_witness, with_witness
from hpcbert.slurm.states import UNKNOWN, UNSUBMITTED, Kind, RepeatState, parse, witness

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from hpcbert.campaign.memory import Memory
    from hpcbert.model import Array, Campaign
    from hpcbert.slurm.states import Witness

    States = Callable[[Path, Campaign], Mapping[tuple[str, int], RepeatState]]


def standing(
    directory: Path, campaign: Campaign, ask: States, memory: Memory
) -> tuple[dict[tuple[str, int], RepeatState], tuple[str, ...]]:
    """Return the state of every repeat's newest attempt: on record, or asked for."""
    found: dict[tuple[str, int], RepeatState] = {}
    for array, number in campaign.current:
        known = _known(directory, campaign, array, number, memory)
        if known is not None:
            found[array.name, number] = known
    unknown = [(array, n) for array, n in campaign.current if (array.name, n) not in found]
    warnings: tuple[str, ...] = ()
    answers: Mapping[tuple[str, int], RepeatState] = {}
    if unknown:
        try:
            answers = ask(directory, campaign)
        except HpcbertError as error:
            warnings = (f"{campaign.id}: {error} States are what the jobs wrote themselves.",)
    for array, number in unknown:
        key = array.name, number
        told = answers.get(key) or _own_word(directory, array, number)
        found[key] = _standing(directory, array, number, told, memory)
    return found, warnings


def _standing(
    directory: Path, array: Array, number: int, told: RepeatState, memory: Memory
) -> RepeatState:
    """Return a state unless there is a verdict on the same attempt, which stands.

    If the repeat waits or runs in spite of it, that is an attempt of which the job has not written
    anything yet.
    """
    verdict = memory.verdict(array, number, told.attempt)
    if verdict is None:
        return told
    if told.done or told.kind == Kind.UNKNOWN:
        return renewed(verdict, _witness(directory, array, number))
    return replace(told, attempt=told.attempt + 1)


def _known(
    directory: Path,
    campaign: Campaign,
    array: Array,
    number: int,
    memory: Memory,
) -> RepeatState | None:
    """Return a state that can't change any more and for which nobody has to be asked."""
    if array.state == "refused" or not (array.called or array.state == "submitted"):
        word = "REFUSED" if array.state == "refused" else UNKNOWN
        detail = array.error or UNSUBMITTED
        return RepeatState(word, parse(word).kind, "none", detail=detail)
    if traits(campaign.scheduler).writes_ends:
        own = _own_word(directory, array, number)
        return own if own.done else None
    seen = _witness(directory, array, number)
    verdict = memory.verdict(array, number, seen.attempt)
    if verdict is None or parse(verdict.word).returns:
        return None
    return renewed(verdict, seen)


def _witness(directory: Path, array: Array, number: int) -> Witness:
    return witness(store.read_status(directory, array, number), first=array.first_attempt)


def _own_word(directory: Path, array: Array, number: int) -> RepeatState:
    seen = _witness(directory, array, number)
    silent = RepeatState(UNKNOWN, Kind.UNKNOWN, "none", detail="nothing says how it ended")
    return with_witness(from_witness(seen) or silent, seen)
