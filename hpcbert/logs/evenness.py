"""Whether the steps of a window are alike, so that their mean stands for them. Pure."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from hpcbert.logs.arithmetic import median
from hpcbert.model import Note

if TYPE_CHECKING:
    from collections.abc import Sequence

# Share by which a number may differ from the median of its window's records.
MEAN = 0.05
# Share by which the medians of the window's blocks may differ. If half of a window is slow, the
# median of the whole lies between the halves, as the mean does.
BLOCKS = 0.2
# Blocks of a window, at most, and the records that each should have.
_MOST, _RECORDS = 4, 3
_FEWEST = 2
_SHOWN = 3


class WindowRecord(NamedTuple):
    """One record of a window.

    Attributes:
        place: The iteration that it completes.
        rate: Its samples per second.
        seconds: Its length, 0 if unknown.
        paused: Whether the log explains why it may be slow.
        steps: The iterations that it covers.
    """

    place: int
    rate: float
    seconds: float
    paused: bool
    steps: int


def find_unevenness(value: float, parts: Sequence[WindowRecord]) -> Note | None:
    """Return how a window's number differs from its usual step; None if the steps are alike.

    Args:
        value: The number, samples per second.
        parts: The window's records, in order.
    """
    if len(parts) < _FEWEST:
        return None
    middle = median([part.rate for part in parts])
    blocks = _medians_of_blocks(parts)
    usual, more = middle, ""
    if max(blocks) > min(blocks) * (1 + BLOCKS):
        usual = max(blocks)
        more = f", {min(blocks):,.2f} to {usual:,.2f} in its {len(blocks)} parts"
    elif max(value, middle) <= min(value, middle) * (1 + MEAN):
        return None
    unlike = [part for part in parts if abs(part.rate / usual - 1) > MEAN]
    numbers = f"{value:,.2f} samples/s in all, {middle:,.2f} at the median step{more}"
    return Note("uneven", f"{numbers}; see {_places(unlike)}")


def _medians_of_blocks(parts: Sequence[WindowRecord]) -> list[float]:
    count = max(2, min(_MOST, len(parts) // _RECORDS))
    bounds = [len(parts) * block // count for block in range(count + 1)]
    return [median([part.rate for part in parts[low:high]]) for low, high in pairwise(bounds)]


def _places(parts: Sequence[WindowRecord]) -> str:
    """Return the iterations of some records: `iterations 41 to 60, 81`."""
    spans: list[tuple[int, int]] = []
    for part in parts:
        first = part.place - max(part.steps, 1) + 1
        if spans and spans[-1][1] >= first - 1:
            spans[-1] = (spans[-1][0], part.place)
        else:
            spans.append((first, part.place))
    shown = [f"{low}" if low == high else f"{low} to {high}" for low, high in spans[:_SHOWN]]
    more = f" and {len(spans) - _SHOWN} more" if len(spans) > _SHOWN else ""
    single = len(spans) == 1 and spans[0][0] == spans[0][1]
    return f"iteration{'' if single else 's'} {', '.join(shown)}{more}"
