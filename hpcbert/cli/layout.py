"""Lay campaigns out as text: ages, shapes, numbers."""

from __future__ import annotations

from collections.abc import Sequence

from hpcbert.campaign.overview import Best
from hpcbert.results.grid import format_number

# Up to this many shapes are named one by one.
_MAX_SHAPES = 3
# Marks numbers that collect found before all repeats had ended.
PROVISIONAL = "*"
COLLECT_AGAIN = (
    f"{PROVISIONAL} Provisional: collected before all repeats had ended; run hpcbert collect again."
)
_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "m"), (1.0, "s"))


def format_age(seconds: float | None) -> str:
    """Return an age in its largest unit, `3d`; a dash if unknown."""
    if seconds is None:
        return "-"
    size, unit = next((entry for entry in _UNITS if seconds >= entry[0]), _UNITS[-1])
    return f"{seconds // size:.0f}{unit}"


def format_shapes(shapes: Sequence[str]) -> str:
    """Return shapes in few characters: each one, or first, last and number."""
    if len(shapes) <= _MAX_SHAPES:
        return ",".join(shapes) or "-"
    return f"{shapes[0]}..{shapes[-1]} ({len(shapes)})"


def format_best(best: Best | None) -> str:
    """Return a campaign's highest number and its point."""
    return "-" if best is None else f"{format_number(best.throughput)} {best.shape}"
