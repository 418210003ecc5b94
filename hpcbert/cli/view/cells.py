"""A row of the view as text: the columns that fit a width, and their contents."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from hpcbert.cli.output import printable
from hpcbert.cli.streams import ascii_only
from hpcbert.cli.view.rows import Level
from hpcbert.cli.watching import MARKS, count_text, duration, earlier_attempts
from hpcbert.slurm.hostlist import fold
from hpcbert.slurm.states import Kind

if TYPE_CHECKING:
    from hpcbert.campaign.repeats import Repeat
    from hpcbert.cli.view.rows import Scene, TreeRow
    from hpcbert.slurm.states import RepeatState

# Name, title, width, least width of the screen. The state gets the remaining width.
_COLUMNS = (
    ("bar", "", 6, 60),
    ("done", "done", 9, 60),
    ("rate", "samples/s", 10, 120),
    ("left", "left", 8, 76),
    ("nodes", "nodes", 14, 140),
)
_NAME = (22, 38)
_REPEATS = {Kind.SUCCEEDED, Kind.FAILED, Kind.UNKNOWN, Kind.UNNEEDED}


class Piece(NamedTuple):
    """A text and its style, one of rich's."""

    text: str
    style: str = ""


class Sheet:
    """Formats rows.

    Args:
        width: Characters per line.
        unicode: Whether characters may be outside ASCII.
    """

    def __init__(self, width: int, *, unicode: bool) -> None:
        self.width, self.unicode = width, unicode
        self._columns = [
            column for column in _COLUMNS if width >= column[3] or column[3] == _COLUMNS[0][3]
        ]
        least, most = _NAME
        self._name = max(least, min(most, width * 3 // 8))

    def heads(self) -> str:
        """Return the titles of the columns."""
        titles = [title.rjust(width) for _, title, width, _ in self._columns]
        return f"{self._line('  campaign, point, repeat', titles)} state"

    def line(self, row: TreeRow, shown: Scene, *, folded: bool) -> tuple[Piece, Piece]:
        """Return a row: all columns but its state, and the state."""
        texts = _cells(row, shown)
        name = f"{self._sign(row, shown, folded=folded)} {_name(row)}"
        cells = []
        for column, _, width, _ in self._columns:
            text = self._bar(texts.get("share", ""), width) if column == "bar" else texts[column]
            cells.append(self.cut(text, width).rjust(width))
        head = self._line("  " * row.level + name, cells)
        state = self.cut(texts["state"], max(0, self.width - len(head) - 1))
        return Piece(head, "bold" if row.level is Level.CAMPAIGN else ""), Piece(
            f" {state}", _style(row, shown)
        )

    def _line(self, name: str, cells: list[str]) -> str:
        return " ".join([self.cut(name, self._name).ljust(self._name), *cells])

    def _sign(self, row: TreeRow, shown: Scene, *, folded: bool) -> str:
        if row.level is Level.REPEAT:
            unicode, plain, *_ = MARKS[shown.view.states[row.repeats[0].key].kind]
            return unicode if self.unicode else plain
        signs = "▸▾" if self.unicode else "+-"
        return signs[0] if folded else signs[1]

    def _bar(self, share: str, width: int) -> str:
        if not share:
            return ""
        full = round(float(share) * width)
        signs = "█░" if self.unicode else "#."
        return signs[0] * full + signs[1] * (width - full)

    def cut(self, text: str, width: int) -> str:
        """Return a text cut or filled to a number of characters."""
        text = printable(text).replace("\n", " ")
        text = text if self.unicode else ascii_only(text)
        end = "…" if self.unicode else "~"
        return text if len(text) <= width else text[: max(0, width - 1)] + end[: max(0, width)]


def _name(row: TreeRow) -> str:
    if row.level is Level.CAMPAIGN:
        return str(row.key[0])
    if row.level is Level.REPEAT:
        return f"repeat {row.key[2]}"
    point = row.repeats[0].array.point
    cpu = " cpu" if point.device == "cpu" else ""
    return f"{point.model} {point.shape} {point.precision} b{point.batch}{cpu}"


def _cells(row: TreeRow, shown: Scene) -> dict[str, str]:
    if row.level is not Level.REPEAT:
        return _of_group(row, shown)
    (repeat,) = row.repeats
    state = shown.view.states[repeat.key]
    detail = shown.details.get(repeat.key)
    ends = detail.ends - shown.view.time if detail and detail.ends is not None else None
    here = detail if state.kind is Kind.RUNNING else None
    iteration, of = (here.iteration, here.iterations) if here else (None, 0)
    return {
        "share": f"{min(1.0, iteration / of)}" if iteration is not None and of else "",
        "done": f"{iteration}/{of}" if iteration is not None else "",
        "rate": f"{here.throughput:,.2f}" if here and here.throughput is not None else "",
        "left": duration(max(0.0, ends)) if here and ends is not None else "",
        "nodes": fold(state.nodes),
        "state": f"{state.word}  {_reason(repeat, state, shown)}".rstrip(),
    }


def _campaign_name(row: TreeRow) -> str:
    """Return a campaign's name; empty if it has none, and for rows inside it."""
    return row.watched.campaign.name if row.level is Level.CAMPAIGN else ""


def _reason(repeat: Repeat, state: RepeatState, shown: Scene) -> str:
    """Return the reason of a state in words: why it waits, or how and why it ended."""
    attempt = f"attempt {state.attempt}" if state.attempt else ""
    failure = shown.failures.get(repeat.key, "")
    return "; ".join(filter(None, (failure, state.detail, attempt, earlier_attempts(state))))


def _of_group(row: TreeRow, shown: Scene) -> dict[str, str]:
    counts = shown.counts[row.key]
    done, total = sum(counts.get(kind, 0) for kind in _REPEATS), len(row.repeats)
    left = shown.left.get(row.key)
    alive = any(kind.alive for kind in counts)
    texts = (_campaign_name(row), _reasons(row, shown), count_text(counts))
    return {
        "share": f"{done / total}",
        "done": f"{done}/{total}",
        "rate": "",
        "left": duration(left) if alive and left is not None else "",
        "nodes": "",
        "state": "; ".join(filter(None, texts)),
    }


def _reasons(row: TreeRow, shown: Scene) -> str:
    """Return why a point's repeats failed, once for equal reasons, or else why it waits."""
    if row.level is Level.CAMPAIGN:
        return ""
    texts = (shown.failures.get(repeat.key) for repeat in row.repeats)
    failures = Counter(text for text in texts if text)
    if failures:
        return "; ".join(
            f"{count} repeat{'s' if count > 1 else ''}: {failure}"
            for failure, count in failures.items()
        )
    states = (shown.view.states[repeat.key] for repeat in row.repeats)
    return next(
        (f"waits: {state.detail}" for state in states if state.kind.queued and state.detail), ""
    )


def _style(row: TreeRow, shown: Scene) -> str:
    if row.level is Level.REPEAT:
        return MARKS[shown.view.states[row.repeats[0].key].kind][2]
    counts = shown.counts[row.key]
    worst = (Kind.FAILED, Kind.UNKNOWN, Kind.REQUEUED, Kind.RUNNING, Kind.WAITING)
    return next((MARKS[kind][2] for kind in worst if counts.get(kind)), "green")


def about(row: TreeRow, shown: Scene) -> str:
    """Return everything known about a row, as a sentence that may be folded."""
    if row.level is not Level.REPEAT:
        left = shown.left.get(row.key)
        alive = any(kind.alive for kind in shown.counts[row.key])
        words = [_name(row), _of_group(row, shown)["state"]]
        words += [f"about {duration(left)} left"] if alive and left is not None else []
        return "  ".join(words)
    (repeat,) = row.repeats
    state, view = shown.view.states[repeat.key], shown.view
    texts = _cells(row, shown)
    used = (
        state.elapsed if state.start is None else max(0.0, (state.end or view.time) - state.start)
    )
    limit = f" of {duration(state.limit)}" if state.limit else ""
    words = [
        f"{repeat.array.point.key} repeat {repeat.number}",
        f"job {repeat.job_id}" if repeat.job_id else "",
        f"on {texts['nodes']}" if texts["nodes"] else "",
        f"ran {duration(used)}{limit}" if used is not None else "",
        f"{texts['rate']} samples/s" if texts["rate"] else "",
        f"{texts['left']} left" if texts["left"] else "",
        texts["state"],
        f"→ {state.advice}" if state.advice else "",
    ]
    return "  ".join(filter(None, words))
