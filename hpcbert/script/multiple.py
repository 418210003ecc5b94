"""A multiple of a batch size that only the job finds, for a recipe's template to calculate with.

A template writes it as the shell's arithmetic, and the job sets `batch` (shell/largest.bash). The
result must be what a template makes of that number, so it may only be multiplied by whole
numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from hpcbert.errors import UsageError


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
