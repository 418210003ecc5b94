"""Waiting for an event: what a test does instead of sleeping."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

Found = TypeVar("Found")
# Seconds after which something hangs. Far above what a busy machine needs: nothing waits so long
# but a test that fails.
CEILING = 300.0


def until(
    condition: Callable[[], Found], what: str | Callable[[], object], *, pause: float = 0.05
) -> Found:
    """Return what a condition gives as soon as that is true; fail where it never is.

    Args:
        condition: Asked again and again.
        what: What never came, or a function that says so.
        pause: Seconds between two questions.
    """
    end = time.monotonic() + CEILING
    while not (found := condition()):
        if time.monotonic() > end:
            pytest.fail(f"in vain: {what if isinstance(what, str) else what()}")
        time.sleep(pause)
    return found
