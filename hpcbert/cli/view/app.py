"""The screen of the view, with Textual: scrolling rows, bars of text, and the end of a log."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.app import App
from textual.binding import Binding
from textual.containers import Container
from textual.events import Click
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Input, Static

from hpcbert.campaign.repeats import Repeat
from hpcbert.cli.output import replace_controls
from hpcbert.cli.progress import format_counts, format_duration
from hpcbert.cli.streams import to_ascii
from hpcbert.cli.view.rows import (
    Level,
    Piece,
    Scene,
    Sheet,
    Tree,
    TreeRow,
    describe_row,
    make_filter,
)
from hpcbert.cli.view.session import Offer, Session
from hpcbert.commands.monitor import find_newest_log
from hpcbert.errors import HpcbertError
from hpcbert.logs.lines import NotALogError, open_log
from hpcbert.slurm.states import Kind

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.events import Key

# On a screen at least this wide, the log is next to the rows, else below them.
_WIDE_COLUMNS = 110
# On a screen lower than this, two lines describe the row at the cursor, else three.
_HIGH_LINES = 24
# Seconds after the end in which you may press a key; then the view of a script's terminal closes.
_CLOSE_AFTER = 20.0
_STDIN = 0
# Bytes of the end of a log that its pane has.
_END_BYTES = 1 << 16
# The repeats whose logs are most interesting are first.
_KINDS = (
    *(Kind.RUNNING, Kind.FAILED, Kind.SUCCEEDED, Kind.REQUEUED),
    *(Kind.UNKNOWN, Kind.WAITING, Kind.UNNEEDED),
)
_KEYS = "arrows  / filter  enter log  c cancel  r retry  ?  q quit"
_HELP = """\
arrows, j k, page up/down, home, end   move
left, right, or a second click         fold, unfold
click, wheel                           move to a row; scroll
enter                                  open or close the row's log
tab                                    into the log and back
/                                      show only repeats with all these words
c                                      cancel the row's campaign, if you confirm
r                                      retry its invalid repeats, if you confirm
escape                                 close the innermost: help, log, filter
q                                      leave; the jobs continue
"""
_MOVE_KEYS = {"up": -1, "k": -1, "down": 1, "j": 1}


class Monitor(App[None]):
    """Campaigns, points and repeats as rows, with a log next to them, and keys to act.

    Attributes:
        interrupted: Whether the user left by Ctrl-C.
    """

    ENABLE_COMMAND_PALETTE = False
    ALLOW_SELECT = False
    CSS = """
    Screen { background: ansi_default; color: ansi_default; overflow: hidden; }
    Bar { background: ansi_default; color: ansi_default; width: 100%; }
    #title { text-style: bold; }
    #heads, #log_title { text-style: dim; }
    #body { height: 1fr; layout: vertical; }
    #body.wide { layout: horizontal; }
    #rows { width: 1fr; height: 1fr; }
    #log_pane { display: none; width: 1fr; height: 1fr; layout: vertical; }
    #log_pane.open { display: block; }
    #body.wide #log_pane { padding: 0 0 0 1; }
    #log { height: 1fr; width: 100%; }
    Scroll { background: ansi_default; color: ansi_default; }
    Scroll:focus { background: ansi_default; }
    #filter { display: none; height: 1; border: none; padding: 0; background: ansi_default;
              color: ansi_default; }
    #filter.open { display: block; }
    #help { display: none; height: 1fr; }
    #help.open { display: block; }
    """
    BINDINGS: ClassVar = [Binding("ctrl+c", "interrupt", show=False, priority=True)]

    def __init__(self, session: Session, *, unicode: bool, colour: bool) -> None:
        super().__init__(ansi_color=True)
        self._session, self._unicode, self._colour = session, unicode, colour
        self._tree: Tree | None = None
        self._shown: Scene | None = None
        self._rows_shown: list[TreeRow] = []
        self._words: tuple[str, ...] = ()
        self._offer: Offer | None = None
        self._notice = ""
        self._touched = self._lingers = False
        self._tail = Tail()
        self._log_lines: list[str] = []
        self._sheet = Sheet(80, unicode=unicode)
        self.interrupted = False

    # --- states ----------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """Build the screen."""
        yield Bar(name="title", lines=1)
        yield Bar(name="heads", lines=1)
        with Container(id="body"):
            yield Scroll(
                self._line,
                name="rows",
                colour=self._colour,
                resized=self._lay_out,
                scrolled=self._draw,
                clicked=self._click,
            )
            with Container(id="log_pane"):
                yield Bar(name="log_title", lines=1)
                yield Scroll(
                    self._log_line, name="log", colour=self._colour, resized=self._wrap_log
                )
        yield Bar(name="help", lines=len(_HELP.splitlines()))
        yield Bar(name="about", lines=2)
        yield Input(id="filter", select_on_focus=False, compact=True)
        yield Bar(name="keys", lines=1)

    def on_mount(self) -> None:
        """Begin to follow."""
        self._rows.focus()
        self._bar("title").say("hpcbert monitor: asking for states ...")
        self._bar("keys").say(_KEYS)
        self._bar("help").say(_HELP)
        self.set_interval(0.5, lambda: self._unless_closed(self._read_log))
        if os.isatty(_STDIN):
            self.set_interval(0.5, self._leave_lost_terminal)
        self._session.begin(
            lambda tree, scene: self._hand(self.show_scene, tree, scene),
            lambda text: self._hand(self.notify_user, text),
            lambda: self._hand(self.exit),
        )

    def _leave_lost_terminal(self) -> None:
        """End the view if its terminal is gone: nobody watches, and Textual would read forever.

        A process that ignores SIGHUP, as below nohup, learns of it in no other way.
        """
        terminal = select.poll()
        terminal.register(_STDIN, 0)
        if any(event & select.POLLHUP for _, event in terminal.poll(0)):
            self.action_interrupt()

    def _hand(self, function: Callable[..., None], *values: object) -> None:
        """Run a function in the screen's own thread, unless the screen has closed."""
        if self.is_running:
            self.call_later(self._unless_closed, function, *values)

    def _unless_closed(self, function: Callable[..., None], *values: object) -> None:
        """Run a function unless the widgets are gone: when the screen closes, they go first."""
        if self.query("#log_pane"):
            function(*values)

    @property
    def _rows(self) -> Scroll:
        return self.query_one("#rows", Scroll)

    def _bar(self, name: str) -> Bar:
        return self.query_one(f"#{name}", Bar)

    def on_resize(self) -> None:
        """Lay the screen out for another size."""
        self.query_one("#body").set_class(self.size.width >= _WIDE_COLUMNS, "wide")
        self._bar("about").styles.height = 2 if self.size.height < _HIGH_LINES else 3

    def _lay_out(self) -> None:
        """Choose the columns that the rows have room for."""
        width = self._rows.size.width or self.size.width
        self._sheet = Sheet(width, unicode=self._unicode, unit=self._session.unit)
        self._bar("heads").say(self._sheet.heads())
        if self._rows.cursor >= 0:
            self._rows.move(self._rows.cursor)
        self._draw()

    def show_scene(self, tree: Tree, scene: Scene) -> None:
        """Draw new states; some time after all is over, close unless a key was pressed."""
        is_new_tree = tree is not self._tree
        self._tree, self._shown = tree, scene
        is_refolded = tree.fold_ended(scene, self._row.key if self._row else ())
        if is_new_tree or is_refolded or self._words:
            self._arrange()
        else:
            self._draw()
        if scene.over and not self._lingers:
            self._lingers = True
            self.set_timer(_CLOSE_AFTER, self._close)

    def _close(self) -> None:
        self._lingers = False
        if not self._touched and self._shown and self._shown.over:
            self.exit()

    def _arrange(self) -> None:
        """Find the rows to show; the cursor stays on its row, or moves to one above."""
        if self._tree is None or self._shown is None:
            return
        current_row = self._row
        self._rows_shown = self._tree.rows(make_filter(self._words, self._shown.view))
        places = {row.key: number for number, row in enumerate(self._rows_shown)}
        keys = [current_row.key[:length] for length in (3, 2, 1)] if current_row else []
        cursor = next((places[key] for key in keys if key in places), 0)
        self._rows.show(len(self._rows_shown))
        self._rows.move(cursor)
        self._draw()

    @property
    def _row(self) -> TreeRow | None:
        cursor = self._rows.cursor
        return self._rows_shown[cursor] if 0 <= cursor < len(self._rows_shown) else None

    def _draw(self) -> None:
        if self._shown is None:
            return
        self._rows.show(len(self._rows_shown))
        self._session.show_details_of([self._rows_shown[number] for number in self._rows.window])
        row = self._row
        texts = {
            "title": self._title(self._shown),
            "about": describe_row(row, self._shown) if row else "nothing matches",
            "keys": f"{self._offer.question} y/n" if self._offer else self._notice or _KEYS,
        }
        for name, text in texts.items():
            self._bar(name).say(self._text(text))

    def _text(self, text: str) -> str:
        text = replace_controls(text)
        return text if self._unicode else to_ascii(text)

    def _title(self, scene: Scene) -> str:
        counts: dict[Kind, int] = {}
        for group in scene.counts:
            if len(group) == 1:
                for kind, count in scene.counts[group].items():
                    counts[kind] = counts.get(kind, 0) + count
        words = ["hpcbert monitor", format_counts(counts, scene.view.cancelled)]
        if scene.view.trouble:
            words.append(f"no answer: {scene.view.trouble}")
        if scene.over:
            words.append("all is over")
        elif (seconds := scene.time_left) is not None:
            words.append(f"about {format_duration(seconds)} left")
            if counts.get(Kind.RUNNING):
                now, end = scene.view.time, time.localtime(scene.view.time + seconds)
                is_today = end[:3] == time.localtime(now)[:3]
                clock = time.strftime("%H:%M" if is_today else "%Y-%m-%d %H:%M", end)
                words[-1] += f", ends {clock}"
        words += [f"filter: {' '.join(self._words)}"] if self._words else []
        words.append(f"{self._rows.cursor + 1}/{len(self._rows_shown)}")
        title = "  ".join(words)
        return title if len(title) <= self.size.width else "  ".join(words[1:])

    def _line(self, number: int) -> tuple[Piece, ...]:
        if self._shown is None or self._tree is None or number >= len(self._rows_shown):
            return (Piece(""),)
        row = self._rows_shown[number]
        return self._sheet.line(row, self._shown, folded=row.key in self._tree.folded)

    # --- the log ---------------------------------------------------------------------------------

    @property
    def _log_open(self) -> bool:
        return self.query_one("#log_pane").has_class("open")

    def _log_line(self, number: int) -> tuple[Piece, ...]:
        return (Piece(self._log_lines[number] if number < len(self._log_lines) else ""),)

    def _wrap_log(self) -> None:
        """Break the lines of the log at the width of its pane: a rate is often at a line's end."""
        log = self.query_one("#log", Scroll)
        width = max(1, log.size.width)
        texts = map(self._text, self._tail.lines)
        self._log_lines = [
            text[start : start + width]
            for text in texts
            for start in range(0, max(1, len(text)), width)
        ]
        log.show(len(self._log_lines))

    def _read_log(self) -> None:
        if not self._log_open or self._shown is None or self._row is None:
            return
        log = self.query_one("#log", Scroll)
        at_end = log.window.stop >= len(self._log_lines)
        states = self._shown.view.states
        repeats = sorted(self._row.repeats, key=lambda entry: _KINDS.index(states[entry.key].kind))
        if not self._tail.read(repeats[0]):
            return
        self._bar("log_title").say(self._text(self._tail.title))
        self._wrap_log()
        if at_end or self._tail.fresh:
            log.scroll_end(animate=False, force=True, immediate=True)

    # --- keys ------------------------------------------------------------------------------------

    def on_key(self, event: Key) -> None:
        """Act on a key; while a question is open, only its answers have an effect."""
        key = event.key
        self._touched = True
        self._notice = ""
        box = self.query_one("#filter", Input)
        if self._bar("help").has_class("open"):
            if key in {"escape", "question_mark", "q"}:
                self._toggle_help()
        elif box.has_class("open"):
            if key == "escape":
                self._filter("", is_done=True)
            elif event.is_printable and not box.has_focus:  # typed before the box has the focus
                box.value += event.character or ""
                box.cursor_position = len(box.value)
        elif self._offer:
            self._answer(key)
        else:
            self._pressed(key)
        self._draw()

    def _pressed(self, key: str) -> None:
        page = max(1, self._rows.size.height - 1)
        moves = {**_MOVE_KEYS, "pageup": -page, "pagedown": page, "home": -(10**9), "end": 10**9}
        actions: dict[str, Callable[[], None]] = {
            "left": lambda: self._fold(folded=True),
            "right": lambda: self._fold(folded=False),
            "slash": self._ask_filter,
            "enter": self._toggle_log,
            "escape": self._escape,
            "tab": self._other,
            "c": lambda: self._prepare(cancels=True),
            "r": lambda: self._prepare(cancels=False),
            "question_mark": self._toggle_help,
            "q": self.exit,
        }
        log = self.query_one("#log", Scroll)
        if key in moves and log.has_focus:
            log.scroll_relative(y=moves[key], animate=False, force=True)
        elif key in moves:
            self._rows.move(self._rows.cursor + moves[key])
            self._read_log()
        elif key in actions:
            actions[key]()

    def action_interrupt(self) -> None:
        """Leave as an interrupt does."""
        self.interrupted = True
        self.exit()

    def _click(self, number: int) -> None:
        """Move to a row; on the row at the cursor, fold or unfold it, or open its log."""
        self._touched = True
        row = self._rows_shown[number] if number < len(self._rows_shown) else None
        if row is None or self._offer or self._tree is None:
            return
        if row is not self._row:
            self._rows.move(number)
            self._read_log()
        elif row.level is Level.REPEAT:
            self._toggle_log()
        else:
            self._fold(folded=row.key not in self._tree.folded)
        self._draw()

    def _toggle_help(self) -> None:
        self._bar("help").toggle_class("open")
        self.query_one("#body").display = not self._bar("help").has_class("open")

    def _fold(self, *, folded: bool) -> None:
        row = self._row
        if row is None or self._tree is None:
            return
        if folded and (row.level is Level.REPEAT or row.key in self._tree.folded):
            keys = [candidate.key for candidate in self._rows_shown]
            if row.key[:-1] in keys:
                self._rows.move(keys.index(row.key[:-1]))
        elif row.level is not Level.REPEAT:
            change = self._tree.folded.add if folded else self._tree.folded.discard
            change(row.key)
            self._arrange()

    def _ask_filter(self) -> None:
        box = self.query_one("#filter", Input)
        box.value = " ".join(self._words)
        box.add_class("open")
        self._bar("keys").display = False
        box.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the user types."""
        self._filter(event.value, is_done=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep a filter."""
        self._filter(event.value, is_done=True)

    def _filter(self, text: str, *, is_done: bool) -> None:
        if is_done:
            self.query_one("#filter").remove_class("open")
            self._bar("keys").display = True
            self._rows.focus()
        if self._words != tuple(text.split()):
            self._words = tuple(text.split())
            self._arrange()

    def _toggle_log(self) -> None:
        self.query_one("#log_pane").toggle_class("open")
        self._tail = Tail()
        self._rows.focus()
        self.call_after_refresh(self._read_log)

    def _escape(self) -> None:
        if self._log_open:
            self._toggle_log()
        elif self._words:
            self._filter("", is_done=True)

    def _other(self) -> None:
        log = self.query_one("#log", Scroll)
        (self._rows if log.has_focus or not self._log_open else log).focus()

    # --- acting ----------------------------------------------------------------------------------

    def notify_user(self, text: str) -> None:
        """Show a sentence until the user presses a key."""
        self._notice = text.replace("\n", " ")
        self._draw()

    def _prepare(self, *, cancels: bool) -> None:
        if self._row is None:
            return
        tracked_campaign = self._row.watched
        make_offer = self._session.offer_cancel if cancels else self._session.offer_retry
        self._notice = f"Looking at {tracked_campaign.campaign.id} ..."
        self._in_thread(lambda: make_offer(tracked_campaign))

    def _answer(self, key: str) -> None:
        open_offer, self._offer = self._offer, None
        if open_offer and key == "y":
            self._notice = "..."
            self._in_thread(open_offer.act)
        elif key not in {"n", "escape", "q"}:
            self._offer = open_offer

    def _in_thread(self, action: Callable[[], Offer | str]) -> None:
        def body() -> None:
            try:
                outcome: Offer | str = action()
            except HpcbertError as error:
                outcome = f"{error} {error.hint}".strip()
            self._hand(self._show_outcome, outcome)

        self.run_worker(body, thread=True, group="act", exclusive=True)

    def _show_outcome(self, outcome: Offer | str) -> None:
        self._offer = outcome if isinstance(outcome, Offer) else None
        self.notify_user("" if isinstance(outcome, Offer) else outcome)


def show_screen(session: Session, *, unicode: bool, colour: bool) -> None:
    """Show campaigns until the user leaves.

    Raises:
        KeyboardInterrupt: By Ctrl-C.
        HpcbertError: Following them failed, or the screen did.
    """
    app = Monitor(session, unicode=unicode, colour=colour)
    # The screen's real size counts, which can change, rather than exported variables.
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    try:
        app.run()
    finally:
        session.leave()
    if session.error is not None:
        raise session.error
    if app.return_code:
        raise HpcbertError("The view ended early.", hint="hpcbert monitor --plain needs no screen.")
    if app.interrupted:
        raise KeyboardInterrupt


class Scroll(ScrollView):
    """Scrolling lines that are computed when they are on the screen, for ten or ten thousand."""

    DEFAULT_CSS = "Scroll { scrollbar-size: 0 0; overflow-x: hidden; }"

    def __init__(
        self,
        line: Callable[[int], tuple[Piece, ...]],
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
        style, parts = Style(reverse=number == self.cursor), []
        for piece in self._line(number):
            words = piece.style if self._colour or piece.style in {"bold", "dim"} else ""
            parts.append(Segment(piece.text, Style.parse(words) + style))
        return Strip(parts).adjust_cell_length(width, style)


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
    return lines[1:] if size > _END_BYTES and len(lines) > 1 else lines
