"""Values by key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


def group(pairs: Iterable[tuple[KeyT, ValueT]]) -> dict[KeyT, list[ValueT]]:
    """Return the values of each key; keys and values keep their order."""
    groups: dict[KeyT, list[ValueT]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def group_sorted(pairs: Iterable[tuple[KeyT, str]]) -> dict[KeyT, list[str]]:
    """Return the different texts of each key, sorted; keys keep their order."""
    return {key: sorted({*texts}) for key, texts in group(pairs).items()}
