"""How far long work has come, for a listener that a command may install; silent without one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
# Receives what is worked on, the number that is done, and the number of all.
Listener = Callable[[str, int, int], None]
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listen(listener: Listener) -> Iterator[None]:
    """Send the reports of this thread to a listener until the context ends."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report(activity: str, count: int, total: int) -> None:
    """Report that so many of all items are done."""
    if listener := _listener.get():
        listener(activity, count, total)


def track(items: Collection[T], activity: str) -> Iterator[T]:
    """Yield items, and report each that is done."""
    total = len(items)
    if total > 1:
        report(activity, 0, total)
    for number, item in enumerate(items, 1):
        yield item
        if total > 1:
            report(activity, number, total)
