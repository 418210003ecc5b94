"""The rows of the view: campaigns, their points and the repeats of those, and how they look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from hpcbert.campaign.repeats import Key, Repeat, TrackedCampaign
from hpcbert.cli.output import replace_controls
from hpcbert.cli.progress import (
    MARKS,
    advise,
    convert_rate,
    format_counts,
    format_duration,
    format_earlier_attempts,
)
from hpcbert.cli.streams import to_ascii
from hpcbert.commands.monitor import RepeatProgress, View
from hpcbert.model import Unit
from hpcbert.slurm.hostlist import fold
from hpcbert.slurm.states import Kind, RepeatState

# With more rows than this, points are folded at first.
_FOLD_ABOVE = 500


class Level(IntEnum):
    """The depth of a row."""

    CAMPAIGN = 0
    POINT = 1
    REPEAT = 2


@dataclass(frozen=True)
class TreeRow:
    """A campaign, a point or a repeat.

    Attributes:
        key: Its campaign's id, its point's key, its number, as far as it has them.
        repeats: The repeats below it; for a repeat, itself.
    """

    level: Level
    key: tuple[str | int, ...]
    repeats: tuple[Repeat, ...]

    @property
    def watched(self) -> TrackedCampaign:
        """The campaign of the row."""
        return self.repeats[0].watched


@dataclass(frozen=True)
class Scene:
    """What is shown at one moment.

    Attributes:
        view: The states.
        counts: Number of repeats of each kind in a campaign or point, by the row's key.
        times_left: Seconds until a campaign or point ends, if they can be estimated.
        details: Progress of the running repeats on the screen.
        failures: Why the failed repeats on the screen failed, from their logs.
        over: Whether nothing waits or runs any more.
        unit: What rates count.
    """

    view: View
    counts: Mapping[tuple[str | int, ...], Mapping[Kind, int]]
    times_left: Mapping[tuple[str | int, ...], float]
    details: Mapping[Key, RepeatProgress] = field(default_factory=dict)
    failures: Mapping[Key, str] = field(default_factory=dict)
    over: bool = False
    unit: Unit = "samples"


class Tree:
    """The rows of some repeats, in their order.

    Args:
        repeats: Repeats of all campaigns; those of a campaign, and of a point, are adjacent.

    Attributes:
        groups: Campaigns and points, each campaign before its points.
        folded: Keys of rows with everything below them hidden.
    """

    def __init__(self, repeats: Sequence[Repeat]) -> None:
        campaigns: dict[str, dict[str, list[Repeat]]] = {}
        for repeat in repeats:
            points = campaigns.setdefault(repeat.watched.campaign.id, {})
            points.setdefault(repeat.array.point.key, []).append(repeat)
        self.groups: list[TreeRow] = []
        self._rows: dict[tuple[str | int, ...], tuple[TreeRow, ...]] = {}
        for name, points in campaigns.items():
            campaign_repeats = tuple(repeat for group in points.values() for repeat in group)
            self.groups.append(TreeRow(Level.CAMPAIGN, (name,), campaign_repeats))
            for key, group in points.items():
                self.groups.append(TreeRow(Level.POINT, (name, key), tuple(group)))
                self._rows[name, key] = tuple(
                    TreeRow(Level.REPEAT, (name, key, repeat.number), (repeat,)) for repeat in group
                )
        self.folded = (
            {row.key for row in self.groups if row.level} if len(repeats) > _FOLD_ABOVE else set()
        )

    def rows(self, matches: Callable[[Repeat], bool] | None = None) -> list[TreeRow]:
        """Return the visible rows; with `make_filter`, those repeats and all rows above them."""
        visible: list[TreeRow] = []
        for group in self.groups:
            if group.level is Level.POINT and group.key[:1] in self.folded and not matches:
                continue
            if matches and not any(map(matches, group.repeats)):
                continue
            visible.append(group)
            if group.level is Level.POINT and (matches or group.key not in self.folded):
                repeat_rows = self._rows[group.key]
                visible += [row for row in repeat_rows if not matches or matches(row.repeats[0])]
        return visible


def summarise(tree: Tree, view: View, details: Mapping[Key, RepeatProgress]) -> Scene:
    """Return the states of the groups of a tree at one moment."""
    counts: dict[tuple[str | int, ...], Counter[Kind]] = {}
    typical_times: dict[tuple[str | int, ...], float] = {}
    for group in tree.groups:
        if group.level is Level.POINT:
            counts[group.key] = Counter(view.states[repeat.key].kind for repeat in group.repeats)
            if typical_time := _typical_seconds(view, group.repeats, details):
                typical_times[group.key] = typical_time
    times_left: dict[tuple[str | int, ...], float] = {}
    for group in tree.groups:
        if group.level is Level.CAMPAIGN:
            points = [key for key in counts if key[:1] == group.key and len(key) > 1]
            counts[group.key] = sum((counts[key] for key in points), Counter())
            seconds = [typical_times[key] for key in points if key in typical_times]
            if seconds:
                typical_times[group.key] = sum(seconds) / len(seconds)
    for group in tree.groups:
        typical_time = typical_times.get(group.key) or typical_times.get(group.key[:1])
        if typical_time:
            remaining_work = sum(
                _seconds_left(view, repeat.key, view.states[repeat.key], details, typical_time)
                for repeat in group.repeats
                if view.states[repeat.key].kind.alive
            )
            times_left[group.key] = remaining_work / max(1, counts[group.key][Kind.RUNNING])
    is_over = not any(state.kind.alive for state in view.states.values())
    return Scene(view, counts, times_left, details, over=is_over)


def _typical_seconds(
    view: View, repeats: Sequence[Repeat], details: Mapping[Key, RepeatProgress]
) -> float | None:
    """Return the seconds that a repeat of a point takes: the mean of the completed ones.

    If none has completed, the estimate from a running one's log; None without either.
    """
    states = [(repeat.key, view.states[repeat.key]) for repeat in repeats]
    elapsed_times = (state.elapsed for _, state in states if state.kind is Kind.SUCCEEDED)
    # In whole seconds: one that took less than a second took no time.
    run_times = [max(1.0, elapsed) for elapsed in elapsed_times if elapsed is not None]
    if run_times:
        return sum(run_times) / len(run_times)
    for key, state in states:
        ends = details[key].ends if key in details else None
        if state.kind is Kind.RUNNING and ends is not None and state.start is not None:
            return ends - state.start
    return None


def _seconds_left(
    view: View,
    key: Key,
    state: RepeatState,
    details: Mapping[Key, RepeatProgress],
    typical_time: float,
) -> float:
    if key in details and (ends := details[key].ends) is not None:
        return max(0.0, ends - view.time)
    if state.kind is Kind.RUNNING and state.start is not None:
        return max(0.0, typical_time - (view.time - state.start))
    return typical_time


def make_filter(words: Collection[str], view: View) -> Callable[[Repeat], bool] | None:
    """Return a function that checks a repeat for all words of a filter; None without a filter.

    It looks in the campaign's id or name, the point's key, the state, the reason and the nodes.
    """
    if not words:
        return None
    lower_words = [word.lower() for word in words]

    def matches_all(repeat: Repeat) -> bool:
        state = view.states[repeat.key]
        text = " ".join(
            (
                *(repeat.watched.campaign.id, repeat.array.point.key, repeat.array.point.framework),
                *(f"repeat {repeat.number}", state.word, MARKS[state.kind].name, state.reason),
                *(repeat.watched.campaign.name, state.detail, *state.nodes),
            )
        ).lower()
        return all(word in text for word in lower_words)

    return matches_all


def running_repeats(rows: Sequence[TreeRow], view: View) -> Iterator[Repeat]:
    """Yield the running repeats among rows."""
    for row in rows:
        if row.level is Level.REPEAT and view.states[row.repeats[0].key].kind is Kind.RUNNING:
            yield row.repeats[0]


# Name, title, width, least width of the screen. The state gets the remaining width.
_COLUMNS = (
    ("bar", "", 6, 60),
    ("done", "done", 9, 60),
    ("rate", "{unit}/s", 11, 120),
    ("left", "left", 8, 76),
    ("nodes", "nodes", 14, 140),
)
_NAME_WIDTHS = (22, 38)
_ENDED = {Kind.SUCCEEDED, Kind.FAILED, Kind.UNKNOWN, Kind.UNNEEDED}


class Piece(NamedTuple):
    """A text and its style, one of rich's."""

    text: str
    style: str = ""


class Sheet:
    """Formats rows.

    Args:
        width: Characters per line.
        unicode: Whether characters may be outside ASCII.
        unit: What rates count.
    """

    def __init__(self, width: int, *, unicode: bool, unit: Unit = "samples") -> None:
        self.width, self.unicode, self._unit = width, unicode, unit
        self._columns = [
            column for column in _COLUMNS if width >= column[3] or column[3] == _COLUMNS[0][3]
        ]
        min_width, max_width = _NAME_WIDTHS
        self._name = max(min_width, min(max_width, width * 3 // 8))

    def heads(self) -> str:
        """Return the titles of the columns."""
        titles = [
            title.format(unit=self._unit).rjust(width) for _, title, width, _ in self._columns
        ]
        return f"{self._line('  campaign, point, repeat', titles)} state"

    def line(self, row: TreeRow, scene: Scene, *, folded: bool) -> tuple[Piece, Piece]:
        """Return a row: all columns but its state, and the state."""
        texts = _cells(row, scene)
        name = f"{self._sign(row, scene, folded=folded)} {_format_name(row)}"
        cells = []
        for column, _, width, _ in self._columns:
            text = self._bar(_share(row, scene), width) if column == "bar" else texts[column]
            cells.append(self.shorten(text, width).rjust(width))
        head = self._line("  " * row.level + name, cells)
        state = self.shorten(texts["state"], max(0, self.width - len(head) - 1))
        return Piece(head, "bold" if row.level is Level.CAMPAIGN else ""), Piece(
            f" {state}", _choose_style(row, scene)
        )

    def _line(self, name: str, cells: list[str]) -> str:
        return " ".join([self.shorten(name, self._name).ljust(self._name), *cells])

    def _sign(self, row: TreeRow, scene: Scene, *, folded: bool) -> str:
        if row.level is Level.REPEAT:
            return MARKS[scene.view.states[row.repeats[0].key].kind].sign
        return "▸" if folded else "▾"

    def _bar(self, share: float | None, width: int) -> str:
        if share is None:
            return ""
        full = round(share * width)
        return "█" * full + "░" * (width - full)

    def shorten(self, text: str, width: int) -> str:
        """Return a text cut or filled to a number of characters."""
        text = replace_controls(text).replace("\n", " ")
        text = text if self.unicode else to_ascii(text)
        ellipsis = "…" if self.unicode else "~"
        return text if len(text) <= width else text[: max(0, width - 1)] + ellipsis[: max(0, width)]


def _format_name(row: TreeRow) -> str:
    if row.level is Level.CAMPAIGN:
        return str(row.key[0])
    if row.level is Level.REPEAT:
        return f"repeat {row.key[2]}"
    point = row.repeats[0].array.point
    cpu = " cpu" if point.device == "cpu" else ""
    return f"{point.model} {point.shape} {point.precision} b{point.batch}{cpu}"


def _share(row: TreeRow, scene: Scene) -> float | None:
    """Return the part of a row's repeats, or of a repeat's iterations, that is done."""
    if row.level is not Level.REPEAT:
        return _count_ended(row, scene) / len(row.repeats)
    running = _running_progress(row.repeats[0], scene)
    if running is None or running.iteration is None or not running.iterations:
        return None
    return min(1.0, running.iteration / running.iterations)


def _count_ended(row: TreeRow, scene: Scene) -> int:
    return sum(scene.counts[row.key].get(kind, 0) for kind in _ENDED)


def _running_progress(repeat: Repeat, scene: Scene) -> RepeatProgress | None:
    is_running = scene.view.states[repeat.key].kind is Kind.RUNNING
    return scene.details.get(repeat.key) if is_running else None


def _cells(row: TreeRow, scene: Scene) -> dict[str, str]:
    if row.level is not Level.REPEAT:
        return _group_cells(row, scene)
    (repeat,) = row.repeats
    state = scene.view.states[repeat.key]
    cells = {"done": "", "rate": "", "left": "", "nodes": fold(state.nodes)}
    cells["state"] = f"{state.word}  {_format_reason(repeat, state, scene)}".rstrip()
    running = _running_progress(repeat, scene)
    if running and running.iteration is not None:
        cells["done"] = f"{running.iteration}/{running.iterations}"
    rate = convert_rate(repeat, running.throughput, scene.unit) if running else None
    if rate is not None:
        cells["rate"] = f"{rate:,.0f}" if scene.unit == "tokens" else f"{rate:,.2f}"
    if running and running.ends is not None:
        cells["left"] = format_duration(max(0.0, running.ends - scene.view.time))
    return cells


def _format_reason(repeat: Repeat, state: RepeatState, scene: Scene) -> str:
    attempt = f"attempt {state.attempt}" if state.attempt else ""
    failure = scene.failures.get(repeat.key, "")
    progress = _running_progress(repeat, scene)
    flags = "; ".join(f"{note.flag}: {note.detail}" for note in progress.notes) if progress else ""
    texts = (failure, flags, state.detail, attempt, format_earlier_attempts(state))
    return "; ".join(filter(None, texts))


def _group_cells(row: TreeRow, scene: Scene) -> dict[str, str]:
    counts = scene.counts[row.key]
    time_left = scene.times_left.get(row.key)
    is_alive = any(kind.alive for kind in counts)
    campaign_name = row.watched.campaign.name if row.level is Level.CAMPAIGN else ""
    texts = (campaign_name, _format_reasons(row, scene), format_counts(counts))
    return {
        "done": f"{_count_ended(row, scene)}/{len(row.repeats)}",
        "rate": "",
        "left": format_duration(time_left) if is_alive and time_left is not None else "",
        "nodes": "",
        "state": "; ".join(filter(None, texts)),
    }


def _format_reasons(row: TreeRow, scene: Scene) -> str:
    """Return the causes of failures with their numbers, or else the reason for waiting."""
    if row.level is Level.CAMPAIGN:
        return ""
    texts = (scene.failures.get(repeat.key) for repeat in row.repeats)
    failures = Counter(text for text in texts if text)
    if failures:
        return "; ".join(
            f"{count} repeat{'s' if count > 1 else ''}: {failure}"
            for failure, count in failures.items()
        )
    states = (scene.view.states[repeat.key] for repeat in row.repeats)
    return next(
        (f"waits: {state.detail}" for state in states if state.kind.queued and state.detail), ""
    )


def _choose_style(row: TreeRow, scene: Scene) -> str:
    if row.level is Level.REPEAT:
        return MARKS[scene.view.states[row.repeats[0].key].kind].style
    counts = scene.counts[row.key]
    kinds = (Kind.FAILED, Kind.UNKNOWN, Kind.REQUEUED, Kind.RUNNING, Kind.WAITING)
    return next((MARKS[kind].style for kind in kinds if counts.get(kind)), "green")


def describe_row(row: TreeRow, scene: Scene) -> str:
    """Return everything known about a row, as a sentence that may be folded."""
    texts = _cells(row, scene)
    if row.level is not Level.REPEAT:
        words = [_format_name(row), texts["state"]]
        words += [f"about {texts['left']} left"] if texts["left"] else []
        return "  ".join(words)
    (repeat,) = row.repeats
    state, view = scene.view.states[repeat.key], scene.view
    used_time = (
        state.elapsed if state.start is None else max(0.0, (state.end or view.time) - state.start)
    )
    limit = f" of {format_duration(state.limit)}" if state.limit else ""
    words = [
        f"{repeat.array.point.key} repeat {repeat.number}",
        f"job {repeat.job_id}" if repeat.job_id else "",
        f"on {texts['nodes']}" if texts["nodes"] else "",
        f"ran {format_duration(used_time)}{limit}" if used_time is not None else "",
        f"{texts['rate']} {scene.unit}/s" if texts["rate"] else "",
        f"{texts['left']} left" if texts["left"] else "",
        texts["state"],
        f"→ {advice}" if (advice := advise(repeat, state)) else "",
    ]
    return "  ".join(filter(None, words))
