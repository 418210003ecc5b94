"""Which iterations a number covers, and whether the log has them."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import NamedTuple

from hpcbert.logs.arithmetic import CannotReduceError
from hpcbert.logs.fields import DIGITS, has_field, whole_matches
from hpcbert.logs.grammar import STARTED_FACT, Fact, Grammar, Record, Rule, Skip
from hpcbert.logs.lines import Line
from hpcbert.logs.setting import Setting


class Span(NamedTuple):
    """The window: after one iteration, up to another; None is as far as the log goes."""

    after: int | None = None
    until: int | None = None


class CoverageCheck:
    """Checks that a log has its iterations if the rule itself does not check that.

    A closing line covers the program's own window, and a rule that counts lines begins wherever
    they do: a log with lost iterations is still not a log of a whole run.

    Args:
        covers_all: Whether all from the first printed one on must be there, not only the window's.
    """

    def __init__(self, record: Record, *, covers_all: bool) -> None:
        self.record = record
        self.whole = covers_all
        self._places: set[int] = set()

    @classmethod
    def of(cls, grammar: Grammar, rule: Rule) -> CoverageCheck | None:
        """Return the check of a log for a rule; None if the rule checks its own records."""
        covers_all = rule.kind != "footer" and rule.after.by == "record"
        if (rule.kind != "footer" and not covers_all) or rule.record.irregular:
            return None
        counting_records = (
            other_rule.record for other_rule in grammar.rules if _counts_iterations(other_rule)
        )
        record = next(counting_records, None)
        return cls(record, covers_all=covers_all) if record else None

    def add(self, record: Record, iteration: int | None) -> None:
        """Take a record; only those that count iterations matter."""
        if record is self.record and iteration is not None:
            self._places.add(iteration)

    def check(self, setting: Setting) -> None:
        """Search for a gap in the protocol's window, and before it.

        Raises:
            CannotReduceError: There is one.
        """
        places = sorted(self._places)
        stride = self.record.every or min((b - a for a, b in pairwise(places)), default=0)
        end = setting.iters
        if self.whole:
            last_place, end = places[0] if places else 0, min([*places[-1:], end])
        elif self._is_asked_for(places, setting):
            # Some programs print the first step under the second's number.
            first_start = places[0] - stride
            last_place = (
                max(setting.skip, first_start)
                if first_start <= setting.skip + stride
                else setting.skip
            )
        else:
            return
        if stride > 1 and not self.record.every and places[0] % stride:
            detail = f"records begin at iteration {places[0]} and then come every {stride}"
            raise CannotReduceError("window", detail)
        for place in (*(place for place in places if last_place < place <= end), end):
            if place - last_place > stride:
                detail = f"no record covers the iterations {last_place + 1} to {place - 1}"
                raise CannotReduceError("window", detail)
            last_place = place

    @staticmethod
    def _is_asked_for(places: list[int], setting: Setting) -> bool:
        """Return whether the protocol's window is required of a log.

        A foreign log may be only the end of a log, with its closing line. If nobody requested a
        window, it is required of logs that have lines before the window and at its end.
        """
        if not places or setting.reach:
            return bool(places)
        warm_up_places = [place for place in places if place <= setting.skip]
        return len(warm_up_places) > 1 and places[-1] >= setting.iters


def _counts_iterations(rule: Rule) -> bool:
    record = rule.record
    return (
        rule.kind not in ("footer", "custom") and record.has("iteration") and not record.irregular
    )


class SkippedSteps:
    """Counts the optimizer steps in a window that were thrown away: their gradients overflowed.

    Attributes:
        count: Those inside it, according to the lines.
    """

    def __init__(self) -> None:
        self.count = 0
        self._totals: dict[bytes, int] = {}

    def add(self, skip: Skip, line: Line, *, inside: bool) -> None:
        """Take a line that may report skipped steps."""
        for match in whole_matches(skip.match, line):
            steps = self._steps(skip, match)
            self.count += steps if inside else 0

    def _steps(self, skip: Skip, match: re.Match[bytes]) -> int:
        if has_field(match, "count"):
            return _parse_count(match["count"])
        if not has_field(match, "total"):
            return 1
        total = _parse_count(match["total"])
        # It is unknown whether the steps of the first total were before the window.
        previous_total = self._totals.get(skip.contains, total)
        self._totals[skip.contains] = total
        return max(0, total - previous_total)


def _parse_count(text: bytes) -> int:
    return int(text) if text.isdigit() and len(text) <= DIGITS else 0


class RestartCheck:
    """Finds out whether a program was started again inside the window.

    It compares the facts before the first record, the header, with those inside the window.

    A rank that prints its header late repeats some facts, and a line may state one again; a program
    that starts again prints all of them, as often as before. Not the line of its job, if a launcher
    starts it again inside the job; that line alone means that the job has begun again.
    """

    def __init__(self, grammar: Grammar) -> None:
        self._records = [record.contains for record in grammar.records]
        self._header: Counter[Fact] = Counter()
        self._again: Counter[Fact] = Counter()
        self._after = 0

    def add(self, fact: Fact, line: Line, iteration: int, *, inside: bool) -> None:
        """Take a line with a fact; `iteration` is the number of completed iterations."""
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
        program_facts = [fact for fact in self._header if fact is not STARTED_FACT]
        if self._again[STARTED_FACT] or (
            program_facts and all(map(self._is_repeated, program_facts))
        ):
            detail = (
                f"the header is printed again after iteration {self._after}, inside the window:"
                " the program was started again"
            )
            raise CannotReduceError("window", detail)

    def _is_repeated(self, fact: Fact) -> bool:
        return self._again[fact] >= self._header[fact]
