"""Optimizer steps that were executed and thrown away, because their gradients overflowed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcbert.logs.fields import DIGITS, has_field, whole_matches

if TYPE_CHECKING:
    import re

    from hpcbert.logs.grammar import Skip
    from hpcbert.logs.lines import Line


class Skipped:
    """Counts the skipped steps of a log's window.

    Attributes:
        count: Those inside it, according to the lines.
    """

    def __init__(self) -> None:
        self.count = 0
        self._totals: dict[bytes, int] = {}

    def add(self, skip: Skip, line: Line, *, inside: bool) -> None:
        """Take a line that may report skipped steps.

        Args:
            skip: The form of such lines.
            line: The line.
            inside: Whether it is inside the window.
        """
        for match in whole_matches(skip.match, line):
            steps = self._steps(skip, match)
            self.count += steps if inside else 0

    def _steps(self, skip: Skip, match: re.Match[bytes]) -> int:
        if has_field(match, "count"):
            return _number(match["count"])
        if not has_field(match, "total"):
            return 1
        total = _number(match["total"])
        # It is unknown whether the steps of the first total were before the window.
        before = self._totals.get(skip.contains, total)
        self._totals[skip.contains] = total
        return max(0, total - before)


def _number(text: bytes) -> int:
    return int(text) if text.isdigit() and len(text) <= DIGITS else 0
