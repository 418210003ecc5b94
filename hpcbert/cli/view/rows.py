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
    find_mark,
    format_counts,
    format_duration,
    format_earlier_attempts,
)
from hpcbert.cli.streams import to_ascii
from hpcbert.commands.monitor import Rates, RepeatProgress, View
from hpcbert.errors import format_count
from hpcbert.model import Row, Run, Unit
from hpcbert.results.metrics import row_rate
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
        cancelled: Number of cancelled repeats in a campaign or point, by the row's key.
        waits: Why a campaign or point waits, if for one reason, and if nothing of it runs.
        rates: The numbers of each campaign, by its id.
    """

    view: View
    counts: Mapping[tuple[str | int, ...], Mapping[Kind, int]]
    times_left: Mapping[tuple[str | int, ...], float]
    details: Mapping[Key, RepeatProgress] = field(default_factory=dict)
    failures: Mapping[Key, str] = field(default_factory=dict)
    over: bool = False
    unit: Unit = "samples"
    cancelled: Mapping[tuple[str | int, ...], int] = field(default_factory=dict)
    waits: Mapping[tuple[str | int, ...], str] = field(default_factory=dict)
    rates: Mapping[str, Rates] = field(default_factory=dict)

    @property
    def time_left(self) -> float | None:
        """Seconds until all campaigns end: some wait for others; None if one has no estimate."""
        predecessors = {
            repeat.watched.campaign.id: repeat.watched.campaign.after
            for repeat in self.view.repeats
        }
        totals: list[float] = []
        for name in predecessors:
            total, chain = 0.0, {name: None}
            while (after := predecessors.get(next(reversed(chain)), "")) and after not in chain:
                chain[after] = None
            for member in chain:
                counts = self.counts.get((member,), {})
                if not any(kind.alive for kind in counts):
                    continue
                if (member,) not in self.times_left:
                    return None
                total += self.times_left[member,]
            totals.append(total)
        return max(totals, default=None)


class Tree:
    """The rows of some repeats, in their order.

    Args:
        repeats: Repeats of all campaigns; those of a campaign, and of a point, are adjacent.

    Attributes:
        groups: Campaigns and points, each campaign before its points.
        folded: Keys of rows with everything below them hidden.
        ended: Keys of points that were folded because they had ended.
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
        self.ended: set[tuple[str | int, ...]] = set()

    def fold_ended(self, scene: Scene, current_key: tuple[str | int, ...]) -> bool:
        """Fold each point once when it ends, and unfold it if it starts again.

        The only point, and the one with the cursor, stay open.

        Returns:
            Whether a row was folded or unfolded.
        """
        points = [row.key for row in self.groups if row.level is Level.POINT]
        over = {key for key in points if not any(kind.alive for kind in scene.counts[key])}
        new, again = over - self.ended, self.ended - over
        self.ended = over
        if len(points) == 1:
            return False
        folded = (self.folded - again) | {key for key in new if key != current_key[:2]}
        is_changed = folded != self.folded
        self.folded = folded
        return is_changed

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


def summarise(tree: Tree, view: View, progress: Mapping[Key, RepeatProgress]) -> Scene:
    """Return the states of the groups of a tree at one moment."""
    counts: dict[tuple[str | int, ...], Counter[Kind]] = {}
    typical_times: dict[tuple[str | int, ...], float] = {}
    for group in tree.groups:
        if group.level is Level.POINT:
            counts[group.key] = Counter(view.states[repeat.key].kind for repeat in group.repeats)
            if typical_time := _typical_seconds(view, group.repeats, progress):
                typical_times[group.key] = typical_time
    times_left: dict[tuple[str | int, ...], float] = {}
    cancelled: dict[tuple[str | int, ...], int] = {}
    waits: dict[tuple[str | int, ...], str] = {}
    for group in tree.groups:
        states = [view.states[repeat.key] for repeat in group.repeats]
        cancelled[group.key] = sum(state.cancelled for state in states)
        details = {state.detail for state in states if state.kind.queued}
        is_running = any(state.kind is Kind.RUNNING for state in states)
        waits[group.key] = details.pop() if len(details) == 1 and not is_running else ""
        if group.level is Level.CAMPAIGN:
            points = [key for key in counts if key[:1] == group.key and len(key) > 1]
            counts[group.key] = sum((counts[key] for key in points), Counter())
            seconds = [typical_times[key] for key in points if key in typical_times]
            if seconds:
                typical_times[group.key] = sum(seconds) / len(seconds)
    if typical_times:
        typical_times[()] = sum(typical_times.values()) / len(typical_times)
    for group in tree.groups:
        # A point takes about as long as others of its campaign, or else of other campaigns.
        keys = (group.key, group.key[:1], ())
        typical_time = next((typical_times[key] for key in keys if key in typical_times), None)
        if typical_time:
            remaining_work = sum(
                _seconds_left(view, repeat.key, view.states[repeat.key], progress, typical_time)
                for repeat in group.repeats
                if view.states[repeat.key].kind.alive
            )
            times_left[group.key] = remaining_work / max(1, counts[group.key][Kind.RUNNING])
    is_over = not any(state.kind.alive for state in view.states.values())
    return Scene(view, counts, times_left, progress, over=is_over, cancelled=cancelled, waits=waits)


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
                *(f"repeat {repeat.number}", state.word, find_mark(state).name, state.reason),
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
    ("bar", "", 6, 120),
    ("done", "done", 9, 60),
    ("rate", "{unit}/s", 11, 60),
    # A point has one of them: the other once it has finished.
    ("left", "left/eff.", 9, 76),
    ("nodes", "nodes", 14, 140),
)
_NAME_WIDTHS = (22, 44)
_ENDED = {Kind.SUCCEEDED, Kind.FAILED, Kind.UNKNOWN, Kind.UNNEEDED}


class Piece(NamedTuple):
    """A text and its style, one of rich's."""

    text: str
    style: str = ""


class Sheet:
    """Formats rows.

    Args:
        unicode: Whether characters may be outside ASCII.
    """

    def __init__(self, width: int, *, unicode: bool, unit: Unit = "samples") -> None:
        self.width, self.unicode, self._unit = width, unicode, unit
        self._columns = [column for column in _COLUMNS if width >= column[3]]
        min_width, max_width = _NAME_WIDTHS
        self._name = max(min_width, min(max_width, width * 5 // 14))

    def heads(self) -> str:
        """Return the titles of the columns."""
        titles = [
            title.format(unit=self._unit).rjust(width) for _, title, width, _ in self._columns
        ]
        return f"{self._line('  campaign, point, repeat', '', titles)} state"

    def line(self, row: TreeRow, scene: Scene, *, folded: bool) -> tuple[Piece, Piece]:
        """Return a row: all columns but its state, and the state."""
        texts = _cells(row, scene)
        sign = f"{'  ' * row.level}{self._sign(row, scene, folded=folded)} "
        cells = []
        for column, _, width, _ in self._columns:
            text = self._bar(_share(row, scene), width) if column == "bar" else texts[column]
            cells.append(self.shorten(text, width).rjust(width))
        head = self._line(sign, _format_name(row), cells)
        room = max(0, self.width - len(head) - 1)
        # A part of an id is of no use; the lines below the rows have it too.
        whole_state = _join_id(texts)
        state = whole_state if len(whole_state) <= room else texts["state"]
        state = self.shorten(state, room)
        return Piece(head, "bold" if row.level is Level.CAMPAIGN else ""), Piece(
            f" {state}", _choose_style(row, scene)
        )

    def _line(self, sign: str, name: str, cells: list[str]) -> str:
        name = self.shorten(name, self._name - len(sign), has_end=True)
        return " ".join([f"{self.shorten(sign, len(sign))}{name}".ljust(self._name), *cells])

    def _sign(self, row: TreeRow, scene: Scene, *, folded: bool) -> str:
        if row.level is Level.REPEAT:
            return find_mark(scene.view.states[row.repeats[0].key]).sign
        return "▸" if folded else "▾"

    def _bar(self, share: float | None, width: int) -> str:
        if share is None:
            return ""
        full = round(share * width)
        return "█" * full + "░" * (width - full)

    def shorten(self, text: str, width: int, *, has_end: bool = False) -> str:
        """Return a text cut to a number of characters; with `has_end`, in its first half."""
        text = replace_controls(text).replace("\n", " ")
        text = text if self.unicode else to_ascii(text)
        if len(text) <= width:
            return text
        ellipsis = "…" if self.unicode else "~"
        start = max(0, width - 1) // (3 if has_end else 1)
        end = max(0, width - 1) - start
        return text[:start] + ellipsis[: max(0, width)] + (text[-end:] if end else "")


def _format_name(row: TreeRow) -> str:
    if row.level is Level.CAMPAIGN:
        return _format_campaign(row)
    if row.level is Level.REPEAT:
        return f"repeat {row.key[2]}"
    point = row.repeats[0].array.point
    cpu = " cpu" if point.device == "cpu" else ""
    # The row of the campaign has the variant that all its points share.
    variant = "" if row.watched.campaign.variant else point.variant
    return f"{point.model} {point.shape} {point.precision} b{point.batch}{cpu} {variant}".rstrip()


def _format_campaign(row: TreeRow) -> str:
    """Return a campaign's name and what distinguishes it from others of that name; or its id."""
    campaign = row.watched.campaign
    text = f"{campaign.name} {campaign.framework}" if campaign.name else campaign.id
    return f"{text} {campaign.variant}".rstrip()


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
    run = _find_run(repeat, scene)
    throughput = running.throughput if running else run.throughput if run and run.valid else None
    cells["rate"] = _format_rate(convert_rate(repeat, throughput, scene.unit), scene)
    if running and running.ends is not None:
        cells["left"] = format_duration(max(0.0, running.ends - scene.view.time))
    return cells


def _find_run(repeat: Repeat, scene: Scene) -> Run | None:
    """Return the run of a completed repeat, as collect judges it; None if there is none yet."""
    state, rates = scene.view.states[repeat.key], scene.rates.get(repeat.watched.campaign.id)
    return rates.find_run(repeat, state) if rates and state.kind is Kind.SUCCEEDED else None


def _find_row(row: TreeRow, scene: Scene) -> Row | None:
    """Return the numbers of a finished point; None before that, and of any other row."""
    rates = scene.rates.get(str(row.key[0]))
    if row.level is not Level.POINT or rates is None:
        return None
    attempts = {(repeat.key, scene.view.states[repeat.key].attempt) for repeat in row.repeats}
    return rates.rows.get(str(row.key[1])) if attempts <= rates.ended else None


def _format_rate(rate: float | None, scene: Scene) -> str:
    if rate is None:
        return ""
    return f"{rate:,.0f}" if scene.unit == "tokens" else f"{rate:,.2f}"


def _format_reason(repeat: Repeat, state: RepeatState, scene: Scene) -> str:
    attempt = f"attempt {state.attempt}" if state.attempt else ""
    failure = scene.failures.get(repeat.key, "")
    progress = _running_progress(repeat, scene)
    flags = "; ".join(f"{note.flag}: {note.detail}" for note in progress.notes) if progress else ""
    run = _find_run(repeat, scene)
    invalid = f"invalid: {run.reasons[0].detail}" if run and run.reasons else ""
    # The row of the point has the reason for which all its repeats wait.
    is_shown = state.kind.queued and scene.waits.get(
        (repeat.watched.campaign.id, repeat.array.point.key)
    )
    detail = "" if is_shown else state.detail
    texts = (failure, invalid, flags, detail, attempt, format_earlier_attempts(state))
    return "; ".join(filter(None, texts))


def _group_cells(row: TreeRow, scene: Scene) -> dict[str, str]:
    counts = scene.counts[row.key]
    time_left = scene.times_left.get(row.key)
    is_alive = any(kind.alive for kind in counts)
    campaign = row.watched.campaign
    has_name = row.level is Level.CAMPAIGN and campaign.name not in ("", campaign.id)
    reduced = _find_row(row, scene)
    flags = (flag for flag in reduced.flags if flag != "no-baseline") if reduced else ()
    left = format_duration(time_left) if is_alive and time_left is not None else ""
    texts = (
        _format_reasons(row, scene),
        format_counts(counts, scene.cancelled.get(row.key, 0)),
        ", ".join(flags),
    )
    return {
        "done": f"{_count_ended(row, scene)}/{len(row.repeats)}",
        "rate": _format_rate(row_rate(reduced, scene.unit) if reduced else None, scene),
        "left": f"{reduced.efficiency:.1%}" if reduced and reduced.efficiency else left,
        "nodes": "",
        "state": "; ".join(filter(None, texts)),
        "id": campaign.id if has_name else "",
    }


def _join_id(texts: Mapping[str, str]) -> str:
    """Return a row's state, and its campaign's id if the row does not begin with that."""
    return "; ".join(filter(None, (texts["state"], texts.get("id"))))


def _format_reasons(row: TreeRow, scene: Scene) -> str:
    """Return the causes of failures with their numbers, or else the reason for waiting."""
    if row.level is Level.CAMPAIGN:
        return _format_wait(scene.waits.get(row.key, ""))
    texts = (scene.failures.get(repeat.key) for repeat in row.repeats)
    failures = Counter(text for text in texts if text)
    reasons = [f"{format_count(count, 'repeat')}: {failure}" for failure, count in failures.items()]
    # The row of the campaign has the reason for which all its points wait.
    if wait := scene.waits.get(row.key, "") if not scene.waits.get(row.key[:1]) else "":
        reasons.append(_format_wait(wait))
    return "; ".join(reasons)


def _format_wait(reason: str) -> str:
    return reason if not reason or reason.startswith(("waits ", "is ")) else f"waits: {reason}"


def _choose_style(row: TreeRow, scene: Scene) -> str:
    if row.level is Level.REPEAT:
        return find_mark(scene.view.states[row.repeats[0].key]).style
    counts = dict(scene.counts[row.key])
    cancelled = scene.cancelled.get(row.key, 0)
    counts[Kind.FAILED] = counts.get(Kind.FAILED, 0) - cancelled
    kinds = (Kind.FAILED, Kind.UNKNOWN, Kind.REQUEUED, Kind.RUNNING, Kind.WAITING)
    ended_style = "yellow" if cancelled else "green"
    return next((MARKS[kind].style for kind in kinds if counts.get(kind)), ended_style)


def describe_row(row: TreeRow, scene: Scene) -> str:
    """Return everything known about a row, as a sentence that may be folded."""
    texts = _cells(row, scene)
    if row.level is not Level.REPEAT:
        reduced = _find_row(row, scene)
        words = [
            _format_name(row),
            f"median {texts['rate']} {scene.unit}/s" if texts["rate"] else "",
            f"efficiency {texts['left']}" if reduced and texts["left"] else "",
            f"{reduced.repeats.ok}/{reduced.repeats.asked} repeats valid" if reduced else "",
            _join_id(texts),
            f"about {texts['left']} left" if not reduced and texts["left"] else "",
        ]
        return "  ".join(filter(None, words))
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
