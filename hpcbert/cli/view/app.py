"""The screen of the view, with Textual: a tree of rows, lines of text, and the end of a log."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rich.style import Style
from rich.text import Text
from textual.app import App
from textual.binding import Binding
from textual.containers import Container, VerticalScroll
from textual.events import Click
from textual.widgets import Input, Static, Tree

from hpcbert.cli.progress import format_counts, format_duration
from hpcbert.cli.view.rows import (
    INDENT,
    Level,
    RowKey,
    Scene,
    Sheet,
    TreeRow,
    choose_style,
    clean,
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
    from textual.widgets.tree import TreeNode

# On a screen at least this wide, the log is next to the rows, else below them.
_WIDE_COLUMNS = 110
# On a screen lower than this, two lines describe the row at the cursor, else three.
_HIGH_LINES = 24
# Seconds after the end in which you may press a key; then the view of a script's terminal closes.
_CLOSE_AFTER = 20.0
_STDIN = 0
# Bytes of the end of a log that its pane has.
_END_BYTES = 1 << 16
# With more repeats than this, points are folded at first.
_FOLD_ABOVE = 500
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
escape                                 close the innermost: question, help, log, filter
q                                      leave; the jobs continue
"""


class Monitor(App[None]):
    """Campaigns, points and repeats as rows, with a log next to them, and keys to act.

    Attributes:
        interrupted: Whether the user left by Ctrl-C.
    """

    ENABLE_COMMAND_PALETTE = False
    ALLOW_SELECT = False
    CSS = """
    Screen { color: ansi_default; overflow: hidden; }
    Screen, Static, Rows, Rows:focus, VerticalScroll, Input, .tree--highlight-line,
    Rows > .tree--cursor, Rows:focus > .tree--cursor
    { background: ansi_default; color: ansi_default; background-tint: transparent; }
    Rows > .tree--cursor, Rows:focus > .tree--cursor { text-style: reverse; }
    Rows, #log_view { scrollbar-size: 0 0; overflow-x: hidden; width: 1fr; height: 1fr; }
    #title, #heads, #log_title, #keys { height: 1; width: 100%; }
    #title { text-style: bold; }
    #heads, #log_title { text-style: dim; }
    #body { height: 1fr; layout: vertical; }
    #body.wide { layout: horizontal; }
    #log_pane, #help, #filter { display: none; width: 1fr; }
    #log_pane, #help { height: 1fr; }
    #filter { height: 1; border: none; padding: 0; }
    #log_pane.open, #help.open, #filter.open { display: block; }
    #body.wide #log_pane { padding: 0 0 0 1; }
    """
    BINDINGS: ClassVar = [
        Binding("ctrl+c", "interrupt", priority=True),
        # These act before the next key finds the widget that it is for.
        Binding("slash", "ask_filter", priority=True),
        Binding("escape", "close_innermost", priority=True),
        Binding("enter", "toggle_log"),
        Binding("c", "prepare(True)"),
        Binding("r", "prepare(False)"),
        Binding("y", "answer(True)"),
        Binding("n", "answer(False)"),
        Binding("question_mark", "toggle_help"),
        Binding("q", "quit"),
    ]

    def __init__(self, session: Session, *, unicode: bool, colour: bool) -> None:
        super().__init__(ansi_color=True)
        self._session, self._unicode, self._colour = session, unicode, colour
        self._rows = Rows(self._label, self._draw)
        self._scene: Scene | None = None
        self._ended: set[RowKey] = set()
        self._words: tuple[str, ...] = ()
        self._offer: Offer | None = None
        self._notice = ""
        self._touched = self._lingers = False
        self._texts: dict[str, str] = {}
        self._sheet = Sheet(80, unicode=unicode)
        self.interrupted = False

    # --- states ----------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """Build the screen."""
        yield Static(id="title", markup=False)
        yield Static(id="heads", markup=False)
        with Container(id="body"):
            yield self._rows
            with Container(id="log_pane"):
                yield Static(id="log_title", markup=False)
                with VerticalScroll(id="log_view"):
                    yield Static(id="log", markup=False)
        yield Static(_HELP, id="help", markup=False)
        yield Static(id="about", markup=False)
        yield Input(id="filter", select_on_focus=False, compact=True)
        yield Static(id="keys", markup=False)

    def on_mount(self) -> None:
        """Begin to follow."""
        self._rows.focus()
        self._say("title", "hpcbert monitor: asking for states ...")
        self._say("keys", _KEYS)
        self.set_interval(0.5, self._read_log)
        if os.isatty(_STDIN):
            self.set_interval(0.5, self._leave_lost_terminal)
        self._session.begin(
            lambda scene: self._hand(self.show_scene, scene),
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

    def _say(self, name: str, text: str) -> None:
        """Show a text in one of the widgets; none is there any more while the screen closes."""
        text = clean(text, unicode=self._unicode)
        if self._texts.get(name) != text:
            self._texts[name] = text
            for widget in self.query(f"#{name}").results(Static):
                widget.update(text)

    def on_resize(self) -> None:
        """Lay the screen out for another size, when the rows have theirs."""
        self.query_one("#body").set_class(self.size.width >= _WIDE_COLUMNS, "wide")
        self.query_one("#about").styles.height = 2 if self.size.height < _HIGH_LINES else 3

    def show_scene(self, scene: Scene) -> None:
        """Draw new states; some time after all is over, close unless a key was pressed."""
        previous, self._scene = self._scene, scene
        if self._words or previous is None or previous.view.repeats is not scene.view.repeats:
            self._arrange()
        self._fold_ended(scene)
        self._rows.draw()
        self._draw()
        if scene.over and not self._lingers:
            self._lingers = True
            self.set_timer(_CLOSE_AFTER, self._close)

    def _close(self) -> None:
        self._lingers = False
        if not self._touched and self._scene and self._scene.over:
            self.exit()

    def _fold_ended(self, scene: Scene) -> None:
        """Fold each point when it ends, and unfold it if it starts again.

        The only point, and the one with the cursor, stay as they are.
        """
        points = [row for row in scene.groups if row.level is Level.POINT]
        ended = {row.key for row in points if not scene.tally(row.key).alive}
        changed, self._ended = ended ^ self._ended, ended
        current_key = self._rows.row.key[:2] if self._rows.row else ()
        for key in changed - {current_key} if len(points) > 1 else ():
            self._rows.fold(key, folded=key in ended)

    def _arrange(self) -> None:
        """Build the rows: with a filter, of the repeats that match, and nothing is folded."""
        if self._scene is None:
            return
        rows = list(self._scene.rows.values())
        if self._words:
            matches = make_filter(self._words, self._scene.view)
            rows = [row for row in rows if any(map(matches, row.repeats))]
        elif not self._rows.nodes and len(self._scene.view.repeats) > _FOLD_ABOVE:
            self._rows.folded = {row.key for row in rows if row.level is Level.POINT}
        self._rows.show(rows, unfolded=bool(self._words))
        self._draw()

    def _draw(self) -> None:
        """Draw what is around the rows, and let details of those on the screen be read."""
        if self._scene is None:
            return
        self._sheet = Sheet(self._rows.size.width or self.size.width, unicode=self._unicode)
        self._session.show_details_of(self._rows.visible_rows())
        row = self._rows.row
        self._say("heads", self._sheet.heads(self._session.unit))
        self._say("title", self._title(self._scene))
        self._say("about", describe_row(row, self._scene) if row else "nothing matches")
        question = f"{self._offer.question} y/n" if self._offer else ""
        self._say("keys", question or self._notice or _KEYS)

    def _title(self, scene: Scene) -> str:
        tally = scene.tally(())
        words = ["hpcbert monitor", format_counts(tally.marks)]
        if scene.view.trouble:
            words.append(f"no answer: {scene.view.trouble}")
        if scene.over:
            words.append("all is over")
        elif (seconds := scene.total_time_left) is not None:
            words.append(f"about {format_duration(seconds)} left")
            if tally.running:
                now, end = scene.view.time, time.localtime(scene.view.time + seconds)
                is_today = end[:3] == time.localtime(now)[:3]
                clock = time.strftime("%H:%M" if is_today else "%Y-%m-%d %H:%M", end)
                words[-1] += f", ends {clock}"
        if self._words:
            words.append(f"filter: {' '.join(self._words)}")
        words.append(f"{self._rows.cursor_line + 1}/{self._rows.last_line + 1}")
        title = "  ".join(words)
        return title if len(title) <= self.size.width else "  ".join(words[1:])

    def _label(self, row: TreeRow, *, folded: bool) -> Text:
        if self._scene is None or row.key not in self._scene.rows:
            return Text()
        head, state = self._sheet.line(row, self._scene, folded=folded)
        style = choose_style(self._scene.tally(row.key).marks)
        label = Text(head, "bold" if row.level is Level.CAMPAIGN else "")
        return label.append(state, style if self._colour or style == "dim" else "")

    # --- the log ---------------------------------------------------------------------------------

    @property
    def _log_open(self) -> bool:
        return bool(self.query("#log_pane.open"))

    def _read_log(self) -> None:
        """Show the newest log of the repeat at the cursor, or of a running one below it."""
        scene, row = self._scene, self._rows.row
        if not self._log_open or scene is None or row is None:
            return
        states = scene.view.states
        running = [item for item in row.repeats if states[item.key].kind is Kind.RUNNING]
        repeat = (running or row.repeats)[0]
        log, text = find_newest_log(repeat), "The repeat has no log yet."
        name = f"{repeat.array.point.key} repeat {repeat.number}  {log.path.name if log else ''}"
        try:
            text = _read_end(log.path) if log else text
        except (NotALogError, OSError) as error:
            text = f"The log {error}."
        if name != self._texts.get("log_title"):
            self.query_one("#log_view").anchor()
        self._say("log_title", name)
        self._say("log", text)

    # --- keys ------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:  # noqa: ARG002
        """Return whether a key acts: in the filter's box, a slash is a slash."""
        return action != "ask_filter" or not self.query("#filter.open")

    def on_key(self) -> None:
        """Note that somebody is there, who has read the notice."""
        self._touched, self._notice = True, ""
        self.call_next(self._draw)

    def action_interrupt(self) -> None:
        """Leave as an interrupt does."""
        self.interrupted = True
        self.exit()

    def on_tree_node_highlighted(self) -> None:
        """Show what belongs to the row at the cursor."""
        self._draw()
        self._read_log()

    def action_toggle_help(self) -> None:
        """Show the keys instead of the rows, or the rows again."""
        self.query_one("#help").toggle_class("open")
        self.query_one("#body").display = not self.query("#help.open")

    def on_tree_node_selected(self) -> None:
        """Open the log of the row at the cursor, or close it."""
        self.action_toggle_log()

    def action_toggle_log(self) -> None:
        """Open or close the log of the row at the cursor."""
        self.query_one("#log_pane").toggle_class("open")
        self._rows.focus()
        self.call_after_refresh(self._read_log)

    def action_ask_filter(self) -> None:
        """Let the user type a filter."""
        self.on_key()
        box = self.query_one("#filter", Input)
        box.value = " ".join(self._words)
        box.add_class("open")
        self.query_one("#keys").display = False
        self.screen.set_focus(box)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the user types."""
        if self._words != tuple(event.value.split()):
            self._words = tuple(event.value.split())
            self._arrange()

    def on_input_submitted(self) -> None:
        """Keep a filter."""
        self.query_one("#filter").remove_class("open")
        self.query_one("#keys").display = True
        self.screen.set_focus(self._rows)

    def action_close_innermost(self) -> None:
        """Close a question, the filter's box, the help, the log, or remove the filter."""
        self.on_key()
        if self._offer:
            self._offer = None
        elif self.query("#help.open"):
            self.action_toggle_help()
        elif self._log_open and not self.query("#filter.open"):
            self.action_toggle_log()
        elif self._words or self.query("#filter.open"):
            self.query_one("#filter", Input).value = ""
            self.on_input_submitted()

    # --- acting ----------------------------------------------------------------------------------

    def notify_user(self, text: str) -> None:
        """Show a sentence until the user presses a key."""
        self._notice = text.replace("\n", " ")
        self._draw()

    def action_prepare(self, cancels: bool) -> None:
        """Ask whether to cancel a campaign, or else whether to retry its repeats."""
        if self._rows.row is None:
            return
        tracked_campaign = self._rows.row.watched
        make_offer = self._session.offer_cancel if cancels else self._session.offer_retry
        self._notice = f"Looking at {tracked_campaign.campaign.id} ..."
        self._in_thread(lambda: make_offer(tracked_campaign))

    def action_answer(self, consents: bool) -> None:
        """Do what was asked about, or don't."""
        offer, self._offer = self._offer, None
        if offer and consents:
            self._notice = "..."
            self._in_thread(offer.act)

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


class Rows(Tree[TreeRow]):
    """The rows, drawn when they are on the screen, for ten or ten thousand."""

    BINDINGS: ClassVar = [
        Binding("j", "cursor_down"),
        Binding("k", "cursor_up"),
        Binding("left", "fold_cursor"),
        Binding("right", "unfold_cursor"),
    ]

    def __init__(self, make_label: Callable[..., Text], look: Callable[[], None]) -> None:
        super().__init__("", id="rows")
        self._make_label, self._look = make_label, look
        self.show_root = self.show_guides = self.auto_expand = False
        self.guide_depth = INDENT
        self.nodes: dict[RowKey, TreeNode[TreeRow]] = {}
        self._labels: dict[RowKey, Text] = {}
        self.folded: set[RowKey] = set()

    @property
    def row(self) -> TreeRow | None:
        """The row at the cursor."""
        return self.cursor_node.data if self.cursor_node and self.cursor_line >= 0 else None

    def show(self, rows: list[TreeRow], *, unfolded: bool) -> None:
        """Build the tree; the cursor stays on its row, or moves to one above."""
        current_key = self.row.key if self.row else ()
        self.unselect()
        self.clear()
        self.nodes = {(): self.root.expand()}
        for row in rows:
            self.nodes[row.key] = self.nodes[row.key[:-1]].add(
                "",
                row,
                expand=unfolded or row.key not in self.folded,
                allow_expand=row.level is not Level.REPEAT,
            )
        if rows and self.last_line >= 0:
            keys = (current_key[:length] for length in (3, 2, 1) if current_key)
            key = next((key for key in keys if key in self.nodes), rows[0].key)
            self.move_cursor(self.nodes[key])

    def fold(self, key: RowKey, *, folded: bool) -> None:
        """Fold or unfold a row."""
        if folded:
            self.folded.add(key)
        else:
            self.folded.discard(key)
        if node := self.nodes.get(key):
            node.collapse() if folded else node.expand()

    def visible_rows(self) -> list[TreeRow]:
        """Return the rows on the screen."""
        return [node.data for node in self._visible_nodes() if node.data]

    def _visible_nodes(self) -> list[TreeNode[TreeRow]]:
        top = round(self.scroll_offset.y)
        nodes = [self.get_node_at_line(top + line) for line in range(self.size.height)]
        return [node for node in nodes if node]

    def draw(self) -> None:
        """Draw the rows on the screen that are not as they were drawn last."""
        for node in self._visible_nodes():
            if node.data and self._labels.get(node.data.key) != self._label(node):
                node.refresh()

    def _label(self, node: TreeNode[TreeRow]) -> Text:
        return self._make_label(node.data, folded=not node.is_expanded) if node.data else Text()

    def _forget_drawn(self) -> None:
        """Let rows that come onto the screen be drawn as they are now, not as they were."""
        for node in self.root.children:
            node.refresh()

    def get_label_width(self, node: TreeNode[TreeRow]) -> int:  # noqa: ARG002 - Textual's
        """Return no width: a row never needs more than the screen's."""
        return 0

    def render_label(
        self,
        node: TreeNode[TreeRow],
        base_style: Style,  # noqa: ARG002 - Textual's
        style: Style,
    ) -> Text:
        """Return a row as text."""
        label = self._label(node)
        if node.data:
            self._labels[node.data.key] = label.copy()
        label.stylize(style)
        return label

    def action_fold_cursor(self) -> None:
        """Fold the row at the cursor, or else move to the row above it."""
        node, row = self.cursor_node, self.row
        if node and row and node.is_expanded and node.allow_expand:
            self.fold(row.key, folded=True)
        elif node and row and node.parent is not self.root:
            self.move_cursor(node.parent)

    def action_unfold_cursor(self) -> None:
        """Unfold the row at the cursor."""
        if self.row:
            self.fold(self.row.key, folded=False)

    def on_click(self, event: Click) -> None:
        """Move to a row; on the row at the cursor, fold or unfold it, or open its log."""
        event.prevent_default()
        line = round(self.scroll_offset.y) + event.y
        if line != self.cursor_line:
            self.cursor_line = min(line, self.last_line)
        elif self.row and self.row.level is Level.REPEAT:
            self.action_select_cursor()
        elif self.row:
            self.fold(self.row.key, folded=self.row.key not in self.folded)
            self._look()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Scroll, and let details of the new rows be read."""
        self._forget_drawn()
        super().watch_scroll_y(old_value, new_value)
        self._look()

    def on_resize(self) -> None:
        """Lay the rows out for another size."""
        self._forget_drawn()
        self._look()


def _read_end(path: Path) -> str:
    descriptor, size = open_log(path)
    with os.fdopen(descriptor, "rb") as file:
        file.seek(max(0, size - _END_BYTES))
        text = file.read(_END_BYTES).decode(errors="replace")
    text = text.replace("\r\n", "\n").replace("\r", "\n").expandtabs()
    return text.partition("\n")[2] if size > _END_BYTES else text
