"""Widgets of the view: scrolling lines, bars of text, and the end of a log."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from rich.segment import Segment
from rich.style import Style
from textual.events import Click
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Static

from hpcbert.campaign.repeats import Repeat
from hpcbert.cli.view.rows import Piece
from hpcbert.commands.monitor import find_newest_log
from hpcbert.logs.lines import NotALogError, open_log

Line = tuple[Piece, ...]


_END_BYTES = 1 << 16


class Scroll(ScrollView):
    """Scrolling lines that are computed when they are on the screen, for ten or ten thousand."""

    DEFAULT_CSS = "Scroll { scrollbar-size: 0 0; overflow-x: hidden; }"

    def __init__(
        self,
        line: Callable[[int], Line],
        *,
        name: str,
        colour: bool,
        resized: Callable[[], None],
        scrolled: Callable[[], None] = lambda: None,
        clicked: Callable[[int], None] = lambda _: None,
    ) -> None:
        super().__init__(id=name)
        self._line, self._colour, self._resized = line, colour, resized
        self._scrolled, self._clicked = scrolled, clicked
        self._count = 0
        self.cursor = -1

    @property
    def window(self) -> range:
        """The numbers of the lines on the screen."""
        top = round(self.scroll_offset.y)
        return range(top, min(self._count, top + self.size.height))

    def show(self, count: int) -> None:
        """Set the number of lines, and draw those on the screen."""
        self._count = count
        self.virtual_size = Size(self.size.width, count)
        self.refresh()

    def move(self, line_number: int) -> None:
        """Move the cursor to a line, and scroll the line onto the screen."""
        previous, self.cursor = self.cursor, max(0, min(line_number, self._count - 1))
        window = self.window
        if self.cursor < window.start:
            self.scroll_to(y=self.cursor, animate=False, force=True, immediate=True)
        elif self.cursor >= window.stop:
            line_number = self.cursor - max(1, self.size.height) + 1
            self.scroll_to(y=line_number, animate=False, force=True, immediate=True)
        for line in {previous, self.cursor}:
            self.refresh_line(line)

    def on_click(self, event: Click) -> None:
        """Act on the line that was clicked."""
        self._clicked(round(self.scroll_offset.y) + event.y)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Scroll, and let details of the new lines be read."""
        super().watch_scroll_y(old_value, new_value)
        self._scrolled()

    def on_resize(self) -> None:
        """Draw everything for another size."""
        self.show(self._count)
        self._resized()

    def render_line(self, y: int) -> Strip:
        """Return a line of the screen."""
        number = round(self.scroll_offset.y) + y
        width = self.size.width
        if number >= self._count:
            return Strip.blank(width)
        style = Style(reverse=number == self.cursor)
        parts = [
            Segment(piece.text, self._style(piece.style) + style) for piece in self._line(number)
        ]
        return Strip(parts).adjust_cell_length(width, style)

    def _style(self, words: str) -> Style:
        if not self._colour:
            words = " ".join(word for word in words.split() if word in {"bold", "dim"})
        return Style.parse(words) if words else Style()


class Bar(Static):
    """One or a few lines of text, drawn when they change."""

    def __init__(self, *, name: str, lines: int) -> None:
        super().__init__("", id=name, markup=False)
        self._text = ""
        self.styles.height = lines

    def say(self, text: str) -> None:
        """Show a text."""
        if text != self._text:
            self._text = text
            self.update(text)


class Tail:
    """The last lines of the log of the repeat at the cursor.

    Attributes:
        lines: At least one.
        title: The repeat of the log.
        fresh: Whether the log is another one than before.
    """

    def __init__(self) -> None:
        self.lines: list[str] = [""]
        self.title = ""
        self.fresh = True
        self._known: tuple[Path | None, int] | None = None

    def read(self, repeat: Repeat) -> bool:
        """Look at a repeat's newest log, and return whether anything is new."""
        log = find_newest_log(repeat)
        path = log.path if log else None
        name = f"{repeat.array.point.key} repeat {repeat.number}"
        try:
            log_size = (path, path.stat().st_size if path else 0)
            if log_size == self._known and self.title.startswith(name):
                return False
            self.fresh = self._known is None or self._known[0] != path
            self._known = log_size
            self.lines = _read_end(path) if path else ["The repeat has no log yet."]
        except (NotALogError, OSError) as error:
            self.lines = [f"The log {error}."]
        self.title = f"{name}  {path.name if path else ''}".rstrip()
        return True


def _read_end(path: Path) -> list[str]:
    descriptor, size = open_log(path)
    with os.fdopen(descriptor, "rb") as file:
        file.seek(max(0, size - _END_BYTES))
        data = file.read(_END_BYTES)
    text = data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    lines = text.expandtabs().split("\n")
    return (lines[1:] if size > _END_BYTES and len(lines) > 1 else lines) or [""]
