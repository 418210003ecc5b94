"""Which part of a run a rule measures, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcbert.logs.setting import END
from hpcbert.model import Counted

if TYPE_CHECKING:
    from hpcbert.logs.grammar import Rule


def counted(rule: Rule, skip: int, iters: int) -> Counted:
    """Return the part that a rule measures under a protocol; `iters` may be END."""
    return Counted(skip, None if iters == END else iters, _what(rule, skip, iters))


def _what(rule: Rule, skip: int, iters: int) -> str:
    if rule.kind == "footer":
        return "the run's own closing line"
    if rule.kind == "custom":
        return "what the recipe's own reader counts"
    after = rule.after.resolve(skip=skip, iters=iters)
    until = rule.until.resolve(skip=skip, iters=iters)
    end = "the end" if until == END else str(until)
    if rule.after.by == rule.until.by:
        return f"{rule.after.by}s {after + 1} to {end}"
    end = end if until == END else f"{rule.until.by} {end}"
    return f"{rule.after.by} {after + 1} to {end}"
