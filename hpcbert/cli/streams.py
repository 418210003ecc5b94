"""The standard streams, set up so that nothing a caller does to them causes a traceback.

A stream that was closed (`>&-`) is opened again, so that no other file gets its number; writing to
a closed stdout then fails as it would on a full disk. Text that can't be written to stderr is
dropped: an unreadable error message must not hide the result. If the locale has no UTF-8, text is
written in ASCII. Long work shows a bar on a terminal: how far it has come.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import IO, TextIO, TypeVar, cast

import click

from hpcbert.system import workers

# The locale that Python sets LC_CTYPE to if the locale is C (PEP 538).
_COERCED_LOCALES = {"C.UTF-8", "C.utf8", "UTF-8"}
_ASCII: dict[int, int | str] = {
    **str.maketrans("·✓✗▶↻○▸▾⊘█░�\N{NO-BREAK SPACE}", "-+x>ro+-/#.? "),
    ord("…"): "...",
    ord("→"): "->",
}


def to_ascii(text: str) -> str:
    """Return a text in ASCII: similar characters for signs, escapes for all others."""
    if text.isascii():
        return text
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")


class Stream(io.TextIOWrapper):
    """A standard stream for text; its bytes go through the `buffer` of the stream that it replaces.

    Args:
        quiet: Whether text that can't be written is dropped.

    Attributes:
        plain: Whether it writes ASCII only.
        failure: The system's last error on writing.
    """

    def __init__(self, stream: TextIO, *, quiet: bool) -> None:
        self.plain = not _locale_has_unicode(stream.encoding)
        super().__init__(
            cast("io.BufferedWriter", stream.buffer),
            # click takes a stream with an ASCII encoding for a mistake, and writes UTF-8 to it.
            encoding="utf-8",
            errors=stream.errors,
            line_buffering=quiet or stream.isatty(),
        )
        # Without a reference to it, it would close the file.
        self._replaced = stream
        self._quiet = quiet
        self.failure: OSError | None = None

    def write(self, text: str) -> int:
        """Write a text, and return how many characters were written."""
        with self._noting():
            super().write(to_ascii(text) if self.plain else text)
        return len(text)

    def flush(self) -> None:
        """Write out the buffer."""
        with self._noting():
            super().flush()

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.failure = error
            if not self._quiet:
                raise


def replace_streams() -> None:
    """Replace this process's standard streams; call it once, before anything is written."""
    # A file that is opened gets the lowest free number. A read-only file makes a stdout that fails.
    for stream, flags in (
        (sys.stdin, os.O_RDONLY),
        (sys.stdout, os.O_RDONLY),
        (sys.stderr, os.O_WRONLY),
    ):
        if stream is None:
            os.set_inheritable(os.open(os.devnull, flags), True)
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = Stream(sys.stdout or os.fdopen(1, "w", encoding="utf-8"), quiet=False)
    sys.stderr = Stream(sys.stderr or os.fdopen(2, "w", encoding="utf-8"), quiet=True)


def _locale_has_unicode(encoding: str) -> bool:
    """Return whether the user's own locale, before Python changed it, encodes every script.

    If it is C, Python sets LC_CTYPE to a locale with UTF-8, and turns its UTF-8 mode on (PEP 538,
    PEP 540).
    """
    if encoding.lower() != "utf-8":
        return False
    if os.environ.get("PYTHONUTF8") == "1" or os.environ.get("PYTHONIOENCODING"):
        return True
    ctype = os.environ.get("LC_CTYPE", "")
    if sys.flags.utf8_mode and ctype in _COERCED_LOCALES:
        ctype = ""
    locale = os.environ.get("LC_ALL") or ctype or os.environ.get("LANG") or "C"
    return locale not in {"C", "POSIX"}


def can_show_unicode(stream: IO[str]) -> bool:
    """Return whether a stream writes every script."""
    return not getattr(stream, "plain", False)


def line_width(stream: IO[str]) -> int:
    """Return the width of a terminal's line in characters; 0 without a terminal or a limit.

    COLUMNS takes precedence over the terminal.
    """
    if not stream.isatty():
        return 0
    import shutil  # imports three modules for archives

    return shutil.get_terminal_size(fallback=(0, 0)).columns


def write_exactly(stream: TextIO, text: str) -> None:
    """Write a text in UTF-8 in any locale; bytes of a path that are not text stay as they are."""
    stream.flush()
    try:
        content = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # Half of a character: JSON's escape for it.
        content = text.encode("utf-8", "backslashreplace")
    stream.buffer.write(content)


def discard_buffer(stream: TextIO) -> None:
    """Discard what a stream still holds, so that the interpreter's last flush succeeds."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


R = TypeVar("R")
# Seconds: shorter work is not shown, and the line changes no more often.
_SHORTEST, _PAUSE = 2.0, 0.1
_CLEAR = "\r\x1b[2K"


@dataclass
class ProgressBar:
    """The line; work inside other work is part of that and is not shown."""

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
        if count >= total:
            self.clear()
        elif now >= self._next:
            self._next = now + _PAUSE
            text = format_progress(activity, count, total, now - self._start)
            width = line_width(self.stream)
            self.stream.write(_CLEAR + (text[: width - 1] if width else text))
            self.stream.flush()

    def clear(self) -> None:
        """Remove the line."""
        if self._next > self._start + _SHORTEST:
            self.stream.write(_CLEAR)
            self.stream.flush()
        self._activity, self._start, self._next = "", 0.0, 0.0


def format_progress(activity: str, count: int, total: int, elapsed: float) -> str:
    """Return `reading logs 1,200/5,000, 480/s, 8 s left`; before the first item, the time."""
    place = f"{activity} {count:,}/{total:,}"
    if not count:
        return f"{place}, {elapsed:.0f} s"
    rate = count / elapsed
    return f"{place}, {rate:,.3g}/s, {(total - count) / rate:.0f} s left"


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
            with workers.listen(bar.update):
                return body(*args, **values)
        finally:
            bar.clear()

    return command
