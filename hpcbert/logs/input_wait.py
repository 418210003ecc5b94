"""The share of time that a program waited for its input, as far as its log says so."""

from __future__ import annotations

import math
import re
from contextlib import closing, suppress
from pathlib import Path

from hpcbert.logs.lines import NotALogError, read_pieces

# From the PyTorch reference: seconds that rank 0 waited inside the window, and the window's
# seconds.
_WHOLE = re.compile(
    rb'^hpcbert-result \{[^\n]{0,20000}"data_wait_seconds": ([0-9.e+-]{1,25})', re.MULTILINE
)
_MEAN = re.compile(rb'"iteration_seconds_mean": ([0-9.e+-]{1,25})')
_COUNT = re.compile(rb'"iters": (\d{1,9}), "skip": (\d{1,9})')
# From Paddle's programs: seconds of reading and of a whole batch, the means of each record.
_PARTS = re.compile(rb"reader_cost: ([0-9.]{1,20}) s(?:ec)?, (?:avg_)?batch_cost: ([0-9.]{1,20}) s")
# Records to leave out at the beginning: the first batch waits for the reader to start.
_FIRST = 1


def read_wait_share(log: Path) -> float | None:
    """Return the share of the time that a program waited for its input; None if unknown."""
    costs: list[tuple[float, float]] = []
    share: float | None = None
    with suppress(NotALogError), closing(read_pieces(log)) as pieces:
        for piece in pieces:
            costs += [
                pair
                for match in _PARTS.finditer(piece)
                if (pair := _parse_costs(match[1], match[2])) is not None
            ]
            share = _share_of_result(piece) if share is None else share
    if share is not None:
        return share
    later_costs = costs[_FIRST:]
    total = math.fsum(batch_seconds for _, batch_seconds in later_costs)
    return (
        min(1.0, math.fsum(read_seconds for read_seconds, _ in later_costs) / total)
        if total > 0
        else None
    )


def _share_of_result(piece: bytes) -> float | None:
    match = _WHOLE.search(piece)
    if match is None:
        return None
    line = piece[match.start() : piece.find(b"\n", match.end())]
    mean, count = _MEAN.search(line), _COUNT.search(line)
    if mean is None or count is None:
        return None
    with suppress(ValueError):
        window = float(mean[1]) * (int(count[1]) - int(count[2]))
        share = float(match[1]) / window if window > 0 else math.nan
        return share if 0 <= share <= 1 else None
    return None


def _parse_costs(read_text: bytes, batch_text: bytes) -> tuple[float, float] | None:
    with suppress(ValueError):
        pair = float(read_text), float(batch_text)
        return pair if pair[1] > 0 else None
    return None
