"""Whether the steps of a window are alike, so that their mean stands for them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from hpcbert.logs.arithmetic import median
from hpcbert.model import Note

# Share by which a number may differ from the median of its window's records.
MEAN_TOLERANCE = 0.05
# Share by which the medians of the window's blocks may differ. If half of a window is slow, the
# median of the whole lies between the halves, as the mean does.
BLOCK_TOLERANCE = 0.2
# Blocks of a window, at most, and the records that each should have.
_MAX_BLOCKS, _RECORDS_PER_BLOCK = 4, 3
_MIN_PARTS = 2
_SHOWN_SPANS = 3


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
    if len(parts) < _MIN_PARTS:
        return None
    median_rate = median([part.rate for part in parts])
    block_medians = _medians_of_blocks(parts)
    usual_rate, block_range = median_rate, ""
    if max(block_medians) > min(block_medians) * (1 + BLOCK_TOLERANCE):
        usual_rate = max(block_medians)
        block_range = (
            f", {min(block_medians):,.2f} to {usual_rate:,.2f} in its {len(block_medians)} parts"
        )
    elif max(value, median_rate) <= min(value, median_rate) * (1 + MEAN_TOLERANCE):
        return None
    unusual_records = [part for part in parts if abs(part.rate / usual_rate - 1) > MEAN_TOLERANCE]
    rates = f"{value:,.2f} samples/s in all, {median_rate:,.2f} at the median step{block_range}"
    return Note("uneven", f"{rates}; see {_format_places(unusual_records)}")


def _medians_of_blocks(parts: Sequence[WindowRecord]) -> list[float]:
    count = max(2, min(_MAX_BLOCKS, len(parts) // _RECORDS_PER_BLOCK))
    bounds = [len(parts) * block // count for block in range(count + 1)]
    return [median([part.rate for part in parts[low:high]]) for low, high in pairwise(bounds)]


def _format_places(parts: Sequence[WindowRecord]) -> str:
    """Return the iterations of some records: `iterations 41 to 60, 81`."""
    spans: list[tuple[int, int]] = []
    for part in parts:
        first_place = part.place - max(part.steps, 1) + 1
        if spans and spans[-1][1] >= first_place - 1:
            spans[-1] = (spans[-1][0], part.place)
        else:
            spans.append((first_place, part.place))
    span_texts = [
        f"{low}" if low == high else f"{low} to {high}" for low, high in spans[:_SHOWN_SPANS]
    ]
    remainder = f" and {len(spans) - _SHOWN_SPANS} more" if len(spans) > _SHOWN_SPANS else ""
    is_single = len(spans) == 1 and spans[0][0] == spans[0][1]
    return f"iteration{'' if is_single else 's'} {', '.join(span_texts)}{remainder}"
