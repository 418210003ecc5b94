"""What a script needs to find the largest batch by itself: hpcbert/shell/largest.bash."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from hpcbert.errors import UsageError
from hpcbert.logs import failures, grammar
from hpcbert.model import Array, Point, Protocol
from hpcbert.script.resolve import Resolved


@dataclass(frozen=True, eq=False)
class Multiple:
    """The batch size times a factor."""

    factor: int = 1

    def __str__(self) -> str:
        return f"$(({self.factor} * batch))"

    def __mul__(self, other: int) -> Multiple:
        if not isinstance(other, int):
            self._refuse(other)
        return Multiple(self.factor * other)

    __rmul__ = __mul__

    def _refuse(self, _other: object = None) -> NoReturn:
        raise UsageError(
            "The recipe needs to know the batch size, but --batch-size max leaves it to the job.",
            hint="Give --batch-size a number.",
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __floordiv__ = __rfloordiv__ = _refuse
    __truediv__ = __rtruediv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _refuse
    __bool__ = __int__ = __index__ = __neg__ = _refuse
    __hash__ = None  # type: ignore[assignment]


# Iterations of a probe, and how many of them are warm-up.
_ITERS, _SKIP = 10, 5
# Most samples per device to try: training with so many has no limit.
_MOST = 1 << 16
# Room of a stand-in in a rehearsal, in halves of the size that the search begins with: on the way
# to 11 it doubles, fails, and halves the gap upwards and downwards.
_ROOM = 11
# Its message for more: words that every recipe takes for a lack of memory.
_OUT_OF_MEMORY = {
    True: "MemoryError: more than there is room for",
    False: "Cuda failure 2 'out of memory'",
}


def with_symbolic_batch(point: Point) -> Point:
    """Return a point with a mark for a batch size, for a template to calculate with."""
    return replace(point, batch_size_per_device=Multiple())  # type: ignore[arg-type]


def probe_protocol(protocol: Protocol) -> Protocol:
    """Return the protocol of a probe."""
    iters = min(_ITERS, protocol.iters)
    return Protocol(1, iters, min(protocol.skip, _SKIP, iters - 1))


def stand_in_options(resolved: Resolved, array: Array) -> list[Any]:
    """Return options that make a rehearsed probe lack memory beyond some batch size."""
    room = _ROOM * _first_batch_size(resolved, array) // 2
    message = _OUT_OF_MEMORY[array.point.device == "cpu"]
    return ["--room", room, "--lack", message]


def largest_settings(resolved: Resolved, array: Array, program: str) -> list[tuple[str, Any]]:
    """Return the variables that largest.bash reads.

    Args:
        resolved: What was decided.
        array: The array with the unknown batch size.
        program: The commands of a rank.

    Raises:
        UsageError: The program does not contain a batch size.
    """
    recipe, rehearse = resolved.recipe, resolved.options.rehearse
    if not re.search(r"\$\(\(\d+ \* batch\)\)", program):
        raise UsageError(
            f"{recipe.name} does not depend on the batch size here, so there is no largest one.",
            hint="Leave --batch-size out.",
        )
    log_grammar = grammar.parse(recipe.log, where=recipe.folder)
    shortage = failures.shortage_signs(log_grammar, array.point.device)
    # A record of several lines is recognised by the text that begins it.
    patterns = (
        record.match if record.lines == 1 else re.compile(re.escape(record.contains))
        for record in log_grammar.records
        if "iteration" in record.match.groupindex
    )
    return [
        ("search", array.point.search),
        ("iterations", "" if rehearse else failures.join_patterns(patterns)),
        ("memory", shortage.words),
        ("exits", " ".join(map(str, shortage.exits))),
        ("granularity", recipe.batch_granularity),
        ("start", _first_batch_size(resolved, array)),
        ("most", _MOST),
    ]


def _first_batch_size(resolved: Resolved, array: Array) -> int:
    return resolved.plan.sizes.get(array.point.precision, 1)
