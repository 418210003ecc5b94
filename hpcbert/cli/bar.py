"""A line on the terminal that shows how far long work has come: a bar, a rate, what is left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TextIO, TypeVar

import click

from hpcbert.cli import streams
from hpcbert.system import progress

R = TypeVar("R")
# Seconds: shorter work is not shown, and the line changes no more often.
_SHORTEST, _PAUSE = 2.0, 0.1
_WIDTH = 24
_MINUTE = 60
_CLEAR = "\r\x1b[2K"


@dataclass
class ProgressBar:
    """The line; work inside other work is part of that and is not shown.

    Attributes:
        stream: The terminal.
        clock: Returns seconds.
    """

    stream: TextIO
    clock: Callable[[], float] = time.monotonic
    _activity: str = ""
    _start: float = 0.0
    _next: float = 0.0

    def update(self, activity: str, count: int, total: int) -> None:
        """Show that so many of all items are done."""
        now = self.clock()
        if not self._activity:
            self._activity, self._start, self._next = activity, now, now + _SHORTEST
        if activity != self._activity:
            return
        if count >= total > 0:
            self.clear()
        elif now >= self._next:
            self._next = now + _PAUSE
            text = format_progress(activity, count, total, now - self._start)
            width = streams.line_width(self.stream)
            self.stream.write(_CLEAR + (text[: width - 1] if width else text))
            self.stream.flush()

    def clear(self) -> None:
        """Remove the line."""
        if self._next > self._start + _SHORTEST:
            self.stream.write(_CLEAR)
            self.stream.flush()
        self._activity, self._start, self._next = "", 0.0, 0.0


def format_progress(activity: str, count: int, total: int, elapsed: float) -> str:
    """Return `reading logs ██████░░ 1,200/5,000, 480/s, 8 s left`; before the first item, the time.

    Args:
        activity: What is worked on.
        count: The number of items that are done.
        total: The number of all; 0 if nobody knows.
        elapsed: Seconds since the beginning.
    """
    if not total:
        speed = f", {count / elapsed:,.3g}/s" if count else ""
        return f"{activity} {count:,}{speed}, {_format_seconds(elapsed)}"
    filled = _WIDTH * count // total
    bar = "█" * filled + "░" * (_WIDTH - filled)
    text = f"{activity} {bar} {count:,}/{total:,}"
    if not count:
        return f"{text}, {_format_seconds(elapsed)}"
    rate = count / elapsed
    return f"{text}, {rate:,.3g}/s, {_format_seconds((total - count) / rate)} left"


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < _MINUTE else f"{seconds / _MINUTE:.0f} min"


def shows_progress(body: Callable[..., R]) -> Callable[..., R]:
    """Make a command show on stderr how far its long work has come.

    Only on a terminal, and never with --json.
    """

    @wraps(body)
    def command(*args: object, **values: object) -> R:
        context = click.get_current_context(silent=True)
        as_json = context is not None and context.params.get("as_json")
        if as_json or not sys.stderr.isatty():
            return body(*args, **values)
        bar = ProgressBar(sys.stderr)
        try:
            with progress.listen(bar.update):
                return body(*args, **values)
        finally:
            bar.clear()

    return command
