"""Points that are repeated until their median is known: unneeded repeats, and who decided."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcbert.model import Adaptive, Run
from hpcbert.slurm.hostlist import fold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcbert.campaign.repeats import TrackedCampaign
    from hpcbert.model import Protocol
    from hpcbert.slurm.states import RepeatState


def of_point(protocol: Protocol, unneeded: Sequence[int]) -> Adaptive | None:
    """Return what ended the repeats of a point; None if their number was fixed."""
    if protocol.precision_of_median is None:
        return None
    return Adaptive(protocol.precision_of_median, protocol.repeats, tuple(unneeded))


def unneeded(number: int, state: RepeatState) -> Run:
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


def warnings(watched: TrackedCampaign) -> tuple[str, ...]:
    """Return a sentence if nodes could not decide whether repeats were needed, which then ran."""
    if watched.campaign.protocol.precision_of_median is None:
        return ()
    attempts = [
        attempt for repeat in watched.repeats for attempt in repeat.record.attempts.values()
    ]
    blind = [
        attempt for attempt in attempts if any(one.get("event") == "undecided" for one in attempt)
    ]
    if not blind:
        return ()
    hosts = {str(one["host"]) for own in blind for one in own if "host" in one}
    text = "1 repeat was" if len(blind) == 1 else f"{len(blind)} repeats were"
    told = f"{text} made without knowing whether they were needed"
    where = f"hpcbert did not run on {fold(tuple(sorted(hosts)))}"
    return (f"{watched.campaign.id}: {told}: {where}; see slurm/*.out.",)
