"""Lay campaigns out as text: columns, ages, shapes, numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcbert.results.text import number

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from hpcbert.campaign.overview import Best

_GAP = "  "
# Up to this many shapes are named one by one.
_NAMED = 3
# The last column gets at least this many characters, even if the terminal is too narrow.
_LEAST = 12
# Marks numbers that collect found before all repeats had ended.
PROVISIONAL = "*"
COLLECT_AGAIN = (
    f"{PROVISIONAL} Provisional: collected before all repeats had ended; run hpcbert collect again."
)
_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "m"), (1.0, "s"))


def columns(
    rows: Sequence[Sequence[str]], width: int = 0, *, right: Collection[int] = ()
) -> list[str]:
    """Return rows as lines with all columns but the last aligned.

    Args:
        rows: The cells of each row.
        width: Maximum length of a line: the last cell is cut. 0: no limit.
        right: Columns to align on the right, by number from 0.
    """
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    before = sum(sizes) + len(_GAP) * len(sizes)
    room = max(width - before, _LEAST) if width else 0
    lines = []
    for *cells, last in rows:
        aligned = [
            cell.rjust(size) if at in right else cell.ljust(size)
            for at, (cell, size) in enumerate(zip(cells, sizes, strict=True))
        ]
        short = f"{last[: room - 1]}…" if room and len(last) > room else last
        lines.append(_GAP.join([*aligned, short]).rstrip())
    return lines


def since_text(seconds: float | None) -> str:
    """Return an age in its largest unit, `3d`; a dash if unknown."""
    if seconds is None:
        return "-"
    size, unit = next((one for one in _UNITS if seconds >= one[0]), _UNITS[-1])
    return f"{seconds // size:.0f}{unit}"


def span(shapes: Sequence[str]) -> str:
    """Return shapes in few characters: each one, or first, last and number."""
    if len(shapes) <= _NAMED:
        return ",".join(shapes) or "-"
    return f"{shapes[0]}..{shapes[-1]} ({len(shapes)})"


def best_text(best: Best | None) -> str:
    """Return a campaign's highest number and its point."""
    return "-" if best is None else f"{number(best.throughput)} {best.shape}"
