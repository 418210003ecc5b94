"""Collecting in this process, with a scheduler that reports the states that a test sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpcbert.campaign.foreign import Recipes
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.commands.collect import CollectRequest, CollectResult, collect
from hpcbert.slurm.states import Kind, RepeatState, parse_state

States = Callable[[TrackedCampaign], Mapping[tuple[str, int], RepeatState]]


def nobody(watched: TrackedCampaign) -> dict[tuple[str, int], RepeatState]:
    return {}


def unreachable(watched: TrackedCampaign) -> dict[tuple[str, int], RepeatState]:
    raise AssertionError("the scheduler was asked")


def says(*words: str, source: str = "sacct", default: str = "COMPLETED") -> States:
    """A scheduler with a state for each repeat, the default for further ones."""

    def states(watched: TrackedCampaign) -> dict[tuple[str, int], RepeatState]:
        repeat_states = {}
        for array in watched.campaign.arrays:
            for number in array.repeats:
                word = words[number - 1] if number <= len(words) else default
                state = RepeatState(word, parse_state(word).kind, source)  # type: ignore[arg-type]
                job_record = watched.record(array, number).newest()
                repeat_states[array.name, number] = job_record.complete(state)
        return repeat_states

    return states


def waits(watched: TrackedCampaign) -> dict[tuple[str, int], RepeatState]:
    """Report that everything waits."""
    return {
        (array.name, number): RepeatState("PENDING", Kind.WAITING, "squeue")
        for array in watched.campaign.arrays
        for number in array.repeats
    }


def gathered(*paths: Path, states: States = nobody, **request: Any) -> CollectResult:
    """Collect campaigns, asking that scheduler."""
    return collect(paths, CollectRequest(**request), Recipes(()), states=states)
