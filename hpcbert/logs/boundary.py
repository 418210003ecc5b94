"""Where a number in a log begins and ends, so that a part is never read as the whole.

A group like `([\\d.]+)` finds 4.987 in `4.987K`, 1 in `1,234.5` and 5.0 in `5.0abc`. Everything
that touches a number is therefore taken with it, and the text is then not a number. Only what the
pattern itself has directly next to the group, as in `([\\d.]+)K`, is known to the recipe and left
out. A unit that the pattern does not have there is taken with the number, too, unless it is samples
per second: `([\\d.]+)` does not read the 65.5 of `65.5 Ktokens/s`.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import NamedTuple

_GROUP = re.compile(r"\(\?P<(\w+)>")
_BEFORE = re.compile(rb"(?:\d[\d.,]*|(?<![\w)\]])[+-])\Z")
# The bytes that _BEFORE can end with; most numbers touch other bytes.
_BEFORE_ENDS = b"0123456789.,+-"
_AFTER = re.compile(rb"(?:[eE][+-]?\d|[\w%]|[.,](?=\d))+| [kKMGT](?!\w)")
# A unit other than samples per second, or seconds.
_UNIT = re.compile(
    rb" ?\(?(?!(?:samples?|seq(?:uence)?s?|sentences|examples)/s(?:ec|econd)?\b)"
    rb"(?:[kKMGT] )?(?:[A-Za-z]*(?:/|[ _]per[ _])"
    rb"(?:[mu]?s|secs?|seconds?|min|minutes?|h|hours?|step|batch|iter\w*|GPU|gpu)|(?<= )[mun]s)\b"
)
# The same in a pattern.
_UNIT_IN_PATTERN = re.compile(r"/s|/\(|/min|\bms\b|\bs\b|\bsec|per[ _]")
# Longer than any number in a log, and short enough to show.
_REACH = 40


class NumberGroup(NamedTuple):
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
            unit_match = _BEFORE.search(text[max(0, start - _REACH) : start])
            start -= len(unit_match[0]) if unit_match else 0
        if self.after and (unit_match := _AFTER.match(text, end, end + _REACH)):
            end = unit_match.end()
        if self.unit and (unit_match := _UNIT.match(text, end, end + _REACH)):
            end = unit_match.end()
        return text[start:end]


def find_number_groups(pattern: str, names: Container[str]) -> tuple[NumberGroup, ...]:
    """Return the groups of a pattern that are numbers, and how far to check each.

    Args:
        pattern: A regular expression that compiles, as the recipe has it.
        names: Names of groups that are numbers.
    """
    number_groups = []
    for group in _GROUP.finditer(pattern):
        after = _end_of_group(pattern, group.end())
        # An optional letter, as in `(…)K?`, ends nothing.
        has_own_text = _is_literal(pattern, after) and pattern[after + 1 : after + 2] not in (
            "?",
            "*",
            "{",
        )
        if group[1] in names:
            before = not _is_literal(pattern, group.start() - 1)
            unit = not _UNIT_IN_PATTERN.search(pattern, after, after + _REACH)
            number_groups.append(NumberGroup(group[1], before, not has_own_text, unit))
    return tuple(number_groups)


def _is_literal(pattern: str, position: int) -> bool:
    """Return whether a place in a pattern has a letter, digit or underscore without a backslash."""
    if (
        position < 0
        or position >= len(pattern)
        or not (pattern[position].isalnum() or pattern[position] == "_")
    ):
        return False
    backslashes = len(pattern[:position]) - len(pattern[:position].rstrip("\\"))
    return backslashes % 2 == 0


def _end_of_group(pattern: str, position: int) -> int:
    """Return the place after the parenthesis that closes the group around a place."""
    depth, in_set = 1, False
    while position < len(pattern) and depth:
        character = pattern[position]
        if character == "\\":
            position += 1
        elif in_set:
            in_set = character != "]"
        elif character == "[":
            in_set = True
            # A bracket that comes first in a set is literal.
            position += len(re.match(r"\^?\]?", pattern[position + 1 :])[0])  # type: ignore[index]
        else:
            depth += {"(": 1, ")": -1}.get(character, 0)
        position += 1
    return position
