"""Whether a program was started again inside the window: its header is printed again."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hpcbert.logs.arithmetic import CannotReduceError
from hpcbert.logs.grammar import STARTED_FACT

if TYPE_CHECKING:
    from hpcbert.logs.grammar import Fact, Grammar
    from hpcbert.logs.lines import Line


class Restart:
    """Compares the facts before the first record, the header, with those inside the window.

    A rank that prints its header late repeats some facts, and a line may state one again; a program
    that starts again prints all of them, as often as before. Not the line of its job, if a launcher
    starts it again inside the job; that line alone means that the job has begun again.

    Args:
        grammar: How the framework's logs are read.
    """

    def __init__(self, grammar: Grammar) -> None:
        self._records = [record.contains for record in grammar.records]
        self._header: Counter[Fact] = Counter()
        self._again: Counter[Fact] = Counter()
        self._after = 0

    def add(self, fact: Fact, line: Line, iteration: int, *, inside: bool) -> None:
        """Take a line with a fact, after this many iterations."""
        if any(text in line.text for text in self._records):
            return
        if not iteration:
            self._header[fact] += 1
        elif inside and fact in self._header:
            self._after = self._after or iteration
            self._again[fact] += 1

    def check(self) -> None:
        """Search for a second header.

        Raises:
            CannotReduceError: There is one.
        """
        program = [fact for fact in self._header if fact is not STARTED_FACT]
        if self._again[STARTED_FACT] or (program and all(map(self._is_repeated, program))):
            detail = (
                f"the header is printed again after iteration {self._after}, inside the window:"
                " the program was started again"
            )
            raise CannotReduceError("window", detail)

    def _is_repeated(self, fact: Fact) -> bool:
        return self._again[fact] >= self._header[fact]
