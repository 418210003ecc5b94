"""Points that are repeated until their median is known: unneeded repeats, and who decided."""

from __future__ import annotations

from collections.abc import Sequence

from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.model import Adaptive, Protocol, Run
from hpcbert.slurm.hostlist import fold
from hpcbert.slurm.states import RepeatState


def make_adaptive(protocol: Protocol, unneeded: Sequence[int]) -> Adaptive | None:
    """Return what ended the repeats of a point; None if their number was fixed."""
    if protocol.precision_of_median is None:
        return None
    return Adaptive(protocol.precision_of_median, protocol.repeats, tuple(unneeded))


def make_unneeded_run(number: int, state: RepeatState) -> Run:
    """Return a repeat that was not needed: it has neither a number nor a reason against it."""
    return Run(
        repeat=number,
        attempt=state.attempt,
        throughput=None,
        valid=False,
        reasons=(),
        state=state.word,
        state_source=state.source,
        log="",
        nodes=state.nodes,
    )


def warn_about_undecided(watched: TrackedCampaign) -> tuple[str, ...]:
    """Return a sentence if nodes could not decide whether repeats were needed, which then ran."""
    if watched.campaign.protocol.precision_of_median is None:
        return ()
    attempts = [
        attempt for repeat in watched.repeats for attempt in repeat.record.attempts.values()
    ]
    undecided = [
        attempt
        for attempt in attempts
        if any(event.get("event") == "undecided" for event in attempt)
    ]
    if not undecided:
        return ()
    hosts = {str(event["host"]) for attempt in undecided for event in attempt if "host" in event}
    text = "1 repeat was" if len(undecided) == 1 else f"{len(undecided)} repeats were"
    clause = f"{text} made without knowing whether they were needed"
    reason = f"hpcbert did not run on {fold(tuple(sorted(hosts)))}"
    return (f"{watched.campaign.id}: {clause}: {reason}; see slurm/*.out.",)
