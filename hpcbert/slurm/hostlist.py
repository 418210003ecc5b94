"""Slurm's node lists, `n[1-4,7],gpu[01-02]`, to names and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby

# More names than any cluster has nodes: a longer expansion is an error in the text.
LIMIT = 65_536
_CHARACTERS = 1 << 22  # of all names together, for the same reason
_NOBODY = frozenset({"", "None assigned", "(null)", "None", "N/A", "n/a"})
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")
_TAIL = re.compile(r"(.*?)(\d{0,18})", re.DOTALL)


def expand(text: str, *, limit: int = LIMIT) -> tuple[str, ...]:
    """Return the names in a node list; a text that is not a node list stands for itself.

    Args:
        text: As squeue, sacct and SLURM_JOB_NODELIST write it; `None assigned` is not a node.
    """
    text = text.strip()
    if text in _NOBODY:
        return ()
    if "[" not in text and "," not in text:
        return (text,)
    names: list[str] = []
    room_left = max(_CHARACTERS, len(text))
    try:
        for group in _split_groups(text):
            group_names = _expand_group(group, limit - len(names), room_left)
            names += group_names
            room_left -= sum(map(len, group_names))
    except ValueError:
        return (text,)
    return tuple(names)


def _split_groups(text: str) -> Iterator[str]:
    """Yield the parts between the commas outside brackets."""
    depth = start = 0
    for place, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if depth not in (0, 1):
            raise ValueError(text)
        if char == "," and depth == 0:
            yield text[start:place]
            start = place + 1
    if depth:
        raise ValueError(text)
    yield text[start:]


def _expand_group(group: str, limit: int, room: int) -> list[str]:
    names = [""]
    for part in re.split(r"(\[[^\]]*\])", group):
        endings = _expand_range(part[1:-1], limit) if part.startswith("[") else [part]
        count, longest = len(names) * len(endings), len(names[-1]) + len(endings[-1])
        if count > limit or count * longest > room:
            raise ValueError(group)
        names = [name + ending for name in names for ending in endings]
    return [name for name in names if name]


def _expand_range(inside: str, limit: int) -> list[str]:
    endings: list[str] = []
    for part in inside.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(part)
        low, high = int(match[1]), int(match[2] or match[1])
        if not 0 <= high - low < limit - len(endings):
            raise ValueError(part)
        endings += [f"{number:0{len(match[1])}}" for number in range(low, high + 1)]
    return endings


def fold(names: Iterable[str]) -> str:
    """Return names as a node list with runs of numbers folded: `n[1-4]`, `n[8-12]`, `n[08-12]`."""
    parts = {(match[1], match[2]) for match in map(_TAIL.fullmatch, names) if match}
    padded = {(prefix, len(digits)) for prefix, digits in parts if re.match("0.", digits)}

    def rank(part: tuple[str, str]) -> tuple[str, int]:
        prefix, digits = part
        return prefix, len(digits) if (prefix, len(digits)) in padded else min(len(digits), 1)

    ordered = sorted(parts, key=lambda part: (*rank(part), len(part[1]), part[1]))
    folded = []
    for (prefix, _), members in groupby(ordered, key=rank):
        runs = list(_fold_runs([digits for _, digits in members]))
        single = len(runs) == 1 and "-" not in runs[0]
        folded.append(prefix + (runs[0] if single else f"[{','.join(runs)}]"))
    return ",".join(folded)


def _fold_runs(numbers: list[str]) -> Iterator[str]:
    """Yield ascending numbers, padded to one width or not at all, as `7` or `1-4`."""
    first = last = numbers[0]
    for number in numbers[1:]:
        if int(number) != int(last) + 1:
            yield first if first == last else f"{first}-{last}"
            first = number
        last = number
    yield first if first == last else f"{first}-{last}"
