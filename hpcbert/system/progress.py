"""How far long work has come, for a listener that a command may install; silent without one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import TypeVar

T = TypeVar("T")
# Receives what is worked on, the number that is done, and the number of all.
Listener = Callable[[str, int, int], None]
# Seconds between two looks at the work of another process.
_LOOK = 0.5
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


@contextmanager
def follow_count(activity: str, total: int, count: Callable[[], int]) -> Iterator[None]:
    """Report the work of another process until the context ends.

    Args:
        total: The number of all items, as far as known before; 0 if nobody knows.
    """
    if _listener.get() is None:
        yield
        return
    end = threading.Event()

    def look() -> None:
        while not end.wait(_LOOK):
            report(activity, min(count(), total - 1) if total else count(), total)

    # A thread of its own has no listener otherwise.
    thread = threading.Thread(target=copy_context().run, args=(look,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
        report(activity, max(total, 1), max(total, 1))
