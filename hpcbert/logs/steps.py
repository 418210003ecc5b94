"""The duration of each iteration of a run, from its log."""

from __future__ import annotations

import math
from array import array
from itertools import pairwise
from typing import TYPE_CHECKING

from hpcbert.logs.arithmetic import CannotReduceError, throughputs
from hpcbert.logs.setting import UnknownError
from hpcbert.model import Steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hpcbert.logs.grammar import Rule
    from hpcbert.logs.setting import Setting
    from hpcbert.logs.window import Collector, Entry


def steps_of(rule: Rule, setting: Setting, collector: Collector) -> Steps | None:
    """Return the iterations in a rule's records; None if they have none."""
    seen, span = collector.seen, collector.span
    if not seen:
        return None
    try:
        found = [
            (at, seconds) for at, seconds in _seconds(rule, setting, seen) if 0 < seconds < math.inf
        ]
    except (CannotReduceError, UnknownError):
        return None  # A closing line, a bandwidth, or a rate of unknown batches.
    iterations = array("q", [at for at, _ in found])
    until = seen[-1][0] if span.until is None else span.until
    return Steps(iterations, array("d", [one for _, one in found]), span.after or 0, until)


def _seconds(rule: Rule, setting: Setting, seen: Sequence[Entry]) -> Iterator[tuple[int, float]]:
    """Yield each record's end, and the seconds of one of its iterations."""
    if rule.kind == "clock":
        for (before, begin), (at, end) in pairwise(seen):
            if at > before:
                yield at, (end - begin) / (at - before)
        return
    micro = rule.record.counts == "micro-batches"
    batch = setting.batch("global", micro=micro)
    if rule.kind == "rate":
        places = [at for at, value in seen if value > 0]
        rates = throughputs(rule, [value for _, value in seen if value > 0], setting)
        yield from ((at, batch / rate) for at, rate in zip(places, rates, strict=True))
        return
    # If a program counts only the steps of a node, one step is a share of the run's.
    share = batch / setting.batch(rule.batch, micro=micro)
    gaps = (b - a for (a, _), (b, _) in pairwise(seen) if b > a)
    stride = (rule.record.every or min(gaps, default=1)) if rule.kind == "elapsed" else 1
    for at, value in seen:
        if value > 0:
            yield at, share * (1 / value if rule.kind == "step-rate" else value / stride)
