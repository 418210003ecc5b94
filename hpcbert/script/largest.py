"""What a script needs to find the largest batch by itself: largest.sh.j2."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hpcbert.errors import UsageError
from hpcbert.model import Protocol
from hpcbert.script.multiple import MARK, Multiple

if TYPE_CHECKING:
    from hpcbert.model import Array, Point
    from hpcbert.script.resolve import Resolved

# Iterations of a probe, and how many of them are warm-up.
_ITERS, _SKIP = 10, 5
# Samples per device above which nothing is tried: what trains with so many is limited by nothing.
_MOST = 1 << 16
# What a stand-in has room for in a rehearsal, in halves of the size that the search begins with:
# on the way to 11 it doubles, fails, and halves the gap upwards and downwards.
_ROOM = 11
# What it says of more: words that every recipe takes for a lack of memory.
_LACK = {True: "MemoryError: more than there is room for", False: "Cuda failure 2 'out of memory'"}


def symbolic(point: Point) -> Point:
    """Return a point whose batch size is a mark, for a template to reckon with."""
    return replace(point, batch_size_per_device=Multiple())  # type: ignore[arg-type]


def probing(protocol: Protocol) -> Protocol:
    """Return the protocol of a probe."""
    iters = min(_ITERS, protocol.iters)
    return Protocol(1, iters, min(protocol.skip, _SKIP, iters - 1))


def stand_in(resolved: Resolved, array: Array) -> dict[str, Any]:
    """Return how a rehearsed probe ends: for want of memory where it has more than the room."""
    room = _ROOM * _start(resolved, array) // 2
    return {"room": room, "size": str(Multiple()), "lack": _LACK[array.point.device == "cpu"]}


def context(resolved: Resolved, array: Array, script: str) -> dict[str, Any]:
    """Return what largest.sh.j2 is rendered with.

    Args:
        resolved: What was decided.
        array: Whose batch size is to be found.
        script: The rank script of a probe.

    Raises:
        UsageError: No batch size stands in it.
    """
    recipe, rehearse = resolved.recipe, resolved.options.rehearse
    if MARK not in script:
        raise UsageError(
            f"What {recipe.name} runs here does not depend on the batch size: there is no largest.",
            hint="Leave --batch-size out.",
        )
    from hpcbert.logs import failures, grammar  # with patterns that few submissions need

    known = grammar.parse(recipe.log, where=recipe.folder)
    lacking = failures.shortage(known, array.point.device)
    # A record of several lines is recognised by the text that begins it.
    patterns = (
        one.match if one.lines == 1 else re.compile(re.escape(one.contains))
        for one in known.records
        if "iteration" in one.match.groupindex
    )
    return {
        "probe_script": script,
        "iterations": "" if rehearse else failures.alternatives(patterns),
        "memory": lacking.words,
        "exits": " ".join(map(str, lacking.exits)),
        "granularity": recipe.batch_granularity,
        "start": _start(resolved, array),
        "most": _MOST,
    }


def _start(resolved: Resolved, array: Array) -> int:
    return resolved.plan.sizes.get(array.point.precision, 1)
