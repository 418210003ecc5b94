"""What a script needs to find the largest batch by itself: hpcbert/shell/largest.bash."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import gcd
from typing import Any, NoReturn

from hpcbert.errors import UsageError
from hpcbert.model import Array, Point, Protocol
from hpcbert.script.resolve import Resolved


def _refusal() -> UsageError:
    message = "The recipe needs to know the batch size, but --batch-size max leaves it to the job."
    return UsageError(message, hint="Give --batch-size a number.")


@dataclass(frozen=True, eq=False)
class Multiple:
    """The batch size times a factor."""

    factor: int = 1

    def __str__(self) -> str:
        return f"$(({self.factor} * batch))"

    def __mul__(self, other: object) -> Multiple:
        if isinstance(other, Quotient):
            return NotImplemented
        if not isinstance(other, int):
            raise _refusal()
        return Multiple(self.factor * other)

    __rmul__ = __mul__

    def _refuse(self, _other: object = None) -> NoReturn:
        raise _refusal()

    __add__ = __radd__ = __sub__ = __rsub__ = __floordiv__ = __rfloordiv__ = _refuse
    __truediv__ = __rtruediv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _refuse
    __bool__ = __int__ = __index__ = __neg__ = _refuse
    __hash__ = None  # type: ignore[assignment]


class Quotient:
    """The micro-batches of a step: its samples on a device over the batch size.

    There are two at least: the search refuses a batch size that fills the step.
    """

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __str__(self) -> str:
        return f"$(({self._samples} / batch))"

    def __rmul__(self, other: object) -> int:
        if not isinstance(other, Multiple):
            raise _refusal()
        return other.factor * self._samples

    def __gt__(self, other: object) -> bool:
        if other != 1:
            raise _refusal()
        return True


# A text that the job calculates, in a script.
EXPRESSION = re.compile(r"(\$\(\(\d+ [*/] batch\)\))")
# Micro-batches in a step of a probe, if a step has several: gradients accumulate.
_PROBE_ACCUMULATION = 2
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


def with_symbolic_batch(point: Point, *, is_probe: bool = False) -> Point:
    """Return a point with marks for sizes, for a template to calculate with."""
    accumulation: Any = point.accumulation
    if point.samples_per_step:
        samples = point.samples_per_step // point.shape.gpus
        accumulation = _PROBE_ACCUMULATION if is_probe else Quotient(samples)
    marks: dict[str, Any] = {"batch_size_per_device": Multiple(), "accumulation": accumulation}
    return replace(point, **marks)


def probe_protocol(protocol: Protocol) -> Protocol:
    """Return the protocol of a probe."""
    iters = min(_ITERS, protocol.iters)
    return Protocol(1, iters, min(protocol.skip, _SKIP, iters - 1))


def stand_in_options(resolved: Resolved, array: Array) -> list[Any]:
    """Return options that make a rehearsed probe lack memory beyond some batch size."""
    room = _ROOM * _first_batch_size(resolved, array) // 2
    message = _OUT_OF_MEMORY[array.point.device == "cpu"]
    return ["--room", room, "--lack", message]


def largest_settings(resolved: Resolved, array: Array, program: str) -> dict[str, Any]:
    """Return the variables that largest.bash reads.

    Raises:
        UsageError: The program does not contain a batch size.
    """
    from hpcbert.logs import failures, grammar  # most campaigns search for no batch size

    recipe, rehearse = resolved.recipe, resolved.options.rehearse
    points = (array.point,) if resolved.by_hand else resolved.plan.points
    sharers = [point for point in points if point.search == array.point.search]
    leader = max(sharers, key=lambda point: (point.shape.gpus, point.shape.nodes))
    if not EXPRESSION.search(program):
        message = f"{recipe.name} does not depend on the batch size here, so none is the largest."
        raise UsageError(message, hint="Leave --batch-size out.")
    log_grammar = grammar.parse(recipe.log, where=recipe.folder)
    words, exits = failures.shortage_signs(log_grammar, array.point.device)
    # A record of several lines is recognised by the text that begins it.
    patterns = (
        record.match if record.lines == 1 else re.compile(re.escape(record.contains))
        for record in log_grammar.records
        if "iteration" in record.match.groupindex
    )
    return {
        "search": array.point.search,
        "leader": leader.key if leader != array.point else "",
        "samples": gcd(*(point.samples_per_step // point.shape.gpus for point in sharers)) or "",
        "iterations": "" if rehearse else failures.join_patterns(patterns),
        "memory": words,
        "exits": " ".join(map(str, exits)),
        "granularity": recipe.batch_granularity,
        "start": _first_batch_size(resolved, array),
        "most": _MOST,
    }


def _first_batch_size(resolved: Resolved, array: Array) -> int:
    return resolved.plan.sizes.get(array.point.precision, 1)
