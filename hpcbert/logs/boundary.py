"""Where a number in a log begins and ends, so that a part is never read as the whole.

A group like `([\\d.]+)` finds 4.987 in `4.987K`, 1 in `1,234.5` and 5.0 in `5.0abc`. Everything
that touches a number is therefore taken with it, and the text is then not a number. Only what the
pattern itself has directly next to the group, as in `([\\d.]+)K`, is known to the recipe and left
out. A unit that the pattern does not have there is taken with the number, too, unless it is samples
per second: `([\\d.]+)` does not read the 65.5 of `65.5 Ktokens/s`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container

_GROUP = re.compile(r"\(\?P<(\w+)>")
_BEFORE = re.compile(rb"(?:\d[\d.,]*|(?<![\w)\]])[+-])\Z")
# The bytes that _BEFORE can end with: what touches most numbers is none of them.
_BEFORE_ENDS = b"0123456789.,+-"
_AFTER = re.compile(rb"(?:[eE][+-]?\d|[\w%]|[.,](?=\d))+| [kKMGT](?!\w)")
# A unit other than samples per second, or seconds.
_UNIT = re.compile(
    rb" ?\(?(?!(?:samples?|seq(?:uence)?s?|sentences|examples)/s(?:ec|econd)?\b)"
    rb"(?:[kKMGT] )?(?:[A-Za-z]*(?:/|[ _]per[ _])"
    rb"(?:[mu]?s|secs?|seconds?|min|minutes?|h|hours?|step|batch|iter\w*|GPU|gpu)|(?<= )[mun]s)\b"
)
# The same in a pattern.
_STATED = re.compile(r"/s|/\(|/min|\bms\b|\bs\b|\bsec|per[ _]")
# Longer than any number in a log, and short enough to show.
_REACH = 40


class Number(NamedTuple):
    """A group of a pattern that is a number.

    Attributes:
        before, after: Whether to check the line on that side of the group: not if the pattern has a
            letter, a digit or an underscore of its own there.
        unit: Whether to check for a unit: not if the pattern has one after the group.
    """

    name: str
    before: bool
    after: bool
    unit: bool

    def read(self, match: re.Match[bytes]) -> bytes:
        """Return the number with everything that touches it in the line."""
        start, end = match.span(self.name)
        text = match.string
        if self.before and start and text[start - 1] in _BEFORE_ENDS:
            found = _BEFORE.search(text[max(0, start - _REACH) : start])
            start -= len(found[0]) if found else 0
        if self.after and (found := _AFTER.match(text, end, end + _REACH)):
            end = found.end()
        if self.unit and (found := _UNIT.match(text, end, end + _REACH)):
            end = found.end()
        return text[start:end]


def numbers(pattern: str, names: Container[str]) -> tuple[Number, ...]:
    """Return the groups of a pattern that are numbers, and how far to check each.

    Args:
        pattern: A regular expression that compiles, as the recipe has it.
        names: Names of groups that are numbers.
    """
    found = []
    for group in _GROUP.finditer(pattern):
        after = _end_of_group(pattern, group.end())
        # An optional letter, as in `(…)K?`, ends nothing.
        states = _is_own(pattern, after) and pattern[after + 1 : after + 2] not in ("?", "*", "{")
        if group[1] in names:
            before = not _is_own(pattern, group.start() - 1)
            unit = not _STATED.search(pattern, after, after + _REACH)
            found.append(Number(group[1], before, not states, unit))
    return tuple(found)


def _is_own(pattern: str, at: int) -> bool:
    """Return whether a pattern has a literal letter, digit or underscore at a place."""
    if at < 0 or at >= len(pattern) or not (pattern[at].isalnum() or pattern[at] == "_"):
        return False
    backslashes = len(pattern[:at]) - len(pattern[:at].rstrip("\\"))
    return backslashes % 2 == 0


def _end_of_group(pattern: str, at: int) -> int:
    """Return the place after the parenthesis that closes the group around a place."""
    depth, in_set = 1, False
    while at < len(pattern) and depth:
        sign = pattern[at]
        if sign == "\\":
            at += 1
        elif in_set:
            in_set = sign != "]"
        elif sign == "[":
            in_set = True
            # A bracket that comes first in a set is literal.
            at += len(re.match(r"\^?\]?", pattern[at + 1 :])[0])  # type: ignore[index]
        else:
            depth += {"(": 1, ")": -1}.get(sign, 0)
        at += 1
    return at
