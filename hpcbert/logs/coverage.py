"""Which iterations a number covers, and whether the log has them."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from hpcbert.logs.arithmetic import CannotReduceError

if TYPE_CHECKING:
    from hpcbert.logs.grammar import Grammar, Record, Rule
    from hpcbert.logs.setting import Setting


class Span(NamedTuple):
    """The window: after one iteration, up to another; None is as far as the log goes."""

    after: int | None = None
    until: int | None = None


class Coverage:
    """Checks that a log has its iterations if the rule itself does not check that.

    A closing line covers the program's own window, and a rule that counts lines begins wherever
    they
    do: a log with lost iterations is still not a log of a whole run.

    Args:
        record: The lines that count iterations.
        whole: Whether all from the first printed one on must be there, not only the window's.
    """

    def __init__(self, record: Record, *, whole: bool) -> None:
        self.record = record
        self.whole = whole
        self._places: set[int] = set()

    @classmethod
    def of(cls, grammar: Grammar, rule: Rule) -> Coverage | None:
        """Return the check of a log for a rule; None if the rule checks its own records."""
        whole = rule.kind != "footer" and rule.after.by == "record"
        if (rule.kind != "footer" and not whole) or rule.record.irregular:
            return None
        counting = (one.record for one in grammar.rules if _counts(one))
        record = next(counting, None)
        return cls(record, whole=whole) if record else None

    def add(self, record: Record, iteration: int | None) -> None:
        """Take a record."""
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
            last, end = places[0] if places else 0, min([*places[-1:], end])
        elif self._is_asked_for(places, setting):
            # Some programs print the first step under the second's number.
            late = places[0] - stride
            last = max(setting.skip, late) if late <= setting.skip + stride else setting.skip
        else:
            return
        if stride > 1 and not self.record.every and places[0] % stride:
            detail = f"records begin at iteration {places[0]} and then come every {stride}"
            raise CannotReduceError("window", detail)
        for place in (*(place for place in places if last < place <= end), end):
            if place - last > stride:
                detail = f"no record covers the iterations {last + 1} to {place - 1}"
                raise CannotReduceError("window", detail)
            last = place

    @staticmethod
    def _is_asked_for(places: list[int], setting: Setting) -> bool:
        """Return whether a log must have the window.

        A log of other origin may be only the end of one, with its closing line. If nobody
        requested a window, it has one if it has lines before the window and at its end.
        """
        if not places or setting.reach:
            return bool(places)
        before = [place for place in places if place <= setting.skip]
        return len(before) > 1 and places[-1] >= setting.iters


def _counts(rule: Rule) -> bool:
    record = rule.record
    return (
        rule.kind not in ("footer", "custom") and record.has("iteration") and not record.irregular
    )
