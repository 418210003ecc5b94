"""The rows of the view: campaigns, their points and the repeats of those, and how they look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
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
from hpcbert.slurm.states import Kind

# The id of a campaign, the key of a point, the number of a repeat, as far as a row has them.
RowKey = tuple[str | int, ...]
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
        repeats: The repeats below it; for a repeat, itself.
    """

    level: Level
    key: RowKey
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
    counts: Mapping[RowKey, Mapping[Kind, int]]
    times_left: Mapping[RowKey, float]
    details: Mapping[Key, RepeatProgress] = field(default_factory=dict)
    failures: Mapping[Key, str] = field(default_factory=dict)
    over: bool = False
    unit: Unit = "samples"
    cancelled: Mapping[RowKey, int] = field(default_factory=dict)
    waits: Mapping[RowKey, str] = field(default_factory=dict)
    rates: Mapping[str, Rates] = field(default_factory=dict)

    @property
    def time_left(self) -> float | None:
        """Seconds until all campaigns end: some wait for others; None if one has no estimate."""
        campaigns = {
            repeat.watched.campaign.id: repeat.watched.campaign for repeat in self.view.repeats
        }
        totals: list[float] = []
        for name in campaigns:
            total, member = 0.0, name
            for _ in campaigns:
                if any(kind.alive for kind in self.counts.get((member,), {})):
                    if (member,) not in self.times_left:
                        return None
                    total += self.times_left[member,]
                member = campaigns[member].after
                if member not in campaigns:
                    break
            totals.append(total)
        return max(totals, default=None)

    def progress(self, repeat: Repeat) -> RepeatProgress | None:
        """Return the progress of a repeat if it runs and is on the screen."""
        is_running = self.view.states[repeat.key].kind is Kind.RUNNING
        return self.details.get(repeat.key) if is_running else None

    def find_run(self, repeat: Repeat) -> Run | None:
        """Return the run of a completed repeat, as collect judges it; None if there is none yet."""
        state, rates = self.view.states[repeat.key], self.rates.get(repeat.watched.campaign.id)
        return rates.find_run(repeat, state) if rates and state.kind is Kind.SUCCEEDED else None

    def find_row(self, row: TreeRow) -> Row | None:
        """Return the numbers of a finished point; None before that, and of any other row."""
        rates = self.rates.get(str(row.key[0]))
        if row.level is not Level.POINT or rates is None:
            return None
        attempts = {(repeat.key, self.view.states[repeat.key].attempt) for repeat in row.repeats}
        return rates.rows.get(str(row.key[1])) if attempts <= rates.ended else None

    def format_rate(self, rate: float | None) -> str:
        """Return a rate in the unit of the scene."""
        return "" if rate is None else f"{rate:,.{0 if self.unit == 'tokens' else 2}f}"


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
        self._rows: dict[RowKey, tuple[TreeRow, ...]] = {}
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
        self.ended: set[RowKey] = set()

    def fold_ended(self, scene: Scene, current_key: RowKey) -> bool:
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
        is_changed, self.folded = folded != self.folded, folded
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
    counts: dict[RowKey, Counter[Kind]] = {}
    cancelled: dict[RowKey, int] = {}
    waits: dict[RowKey, str] = {}
    durations: dict[RowKey, list[float]] = {}
    for group in tree.groups:
        states = [view.states[repeat.key] for repeat in group.repeats]
        counts[group.key] = Counter(state.kind for state in states)
        cancelled[group.key] = sum(state.cancelled for state in states)
        details = {state.detail for state in states if state.kind.queued}
        has_one_reason = len(details) == 1 and not counts[group.key][Kind.RUNNING]
        waits[group.key] = details.pop() if has_one_reason else ""
        if group.level is Level.POINT:
            # A point takes about as long as others of its campaign, or else of other campaigns.
            for key in (group.key, group.key[:1], ()):
                durations.setdefault(key, []).extend(_list_durations(group, view, progress))
    times_left: dict[RowKey, float] = {}
    for group in tree.groups:
        keys = (group.key, group.key[:1], ())
        if seconds := next((durations[key] for key in keys if durations.get(key)), None):
            typical_time, remaining_work = sum(seconds) / len(seconds), 0.0
            for repeat in group.repeats:
                state = view.states[repeat.key]
                ends = progress[repeat.key].ends if repeat.key in progress else None
                if not state.kind.alive:
                    continue
                if ends is None and state.kind is Kind.RUNNING and state.start is not None:
                    ends = state.start + typical_time
                remaining_work += typical_time if ends is None else max(0.0, ends - view.time)
            times_left[group.key] = remaining_work / max(1, counts[group.key][Kind.RUNNING])
    is_over = not any(state.kind.alive for state in view.states.values())
    return Scene(view, counts, times_left, progress, over=is_over, cancelled=cancelled, waits=waits)


def _list_durations(
    point: TreeRow, view: View, progress: Mapping[Key, RepeatProgress]
) -> list[float]:
    """Return the seconds of a point's completed repeats; before one, estimates from logs."""
    completed, estimates = [], []
    for repeat in point.repeats:
        state = view.states[repeat.key]
        ends = progress[repeat.key].ends if repeat.key in progress else None
        if state.kind is Kind.SUCCEEDED and state.elapsed is not None:
            # In whole seconds: one that took less than a second took no time.
            completed.append(max(1.0, state.elapsed))
        elif state.kind is Kind.RUNNING and ends is not None and state.start is not None:
            estimates.append(ends - state.start)
    return completed or estimates


def make_filter(words: Collection[str], view: View) -> Callable[[Repeat], bool] | None:
    """Return a function that checks a repeat for all words of a filter; None without a filter.

    It looks in the campaign's id or name, the point's key, the state, the reason and the nodes.
    """

    def matches_all(repeat: Repeat) -> bool:
        state, campaign, point = (
            view.states[repeat.key],
            repeat.watched.campaign,
            repeat.array.point,
        )
        texts = [campaign.id, campaign.name, point.key, point.framework, f"repeat {repeat.number}"]
        texts += [state.word, find_mark(state).name, state.reason, state.detail, *state.nodes]
        text = " ".join(texts).lower()
        return all(word.lower() in text for word in words)

    return matches_all if words else None


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
        sign = "▸" if folded else "▾"
        if row.level is Level.REPEAT:
            sign = find_mark(scene.view.states[row.repeats[0].key]).sign
        cells = []
        for column, _, width, _ in self._columns:
            if column == "bar" and (share := _share(row, scene)) is not None:
                texts["bar"] = "█" * round(share * width) + "░" * (width - round(share * width))
            cells.append(self.shorten(texts.get(column, ""), width).rjust(width))
        head = self._line(f"{'  ' * row.level}{sign} ", _format_name(row), cells)
        room = max(0, self.width - len(head) - 1)
        # A part of an id is of no use; the lines below the rows have it too.
        whole_state = _join_id(texts)
        state = self.shorten(whole_state if len(whole_state) <= room else texts["state"], room)
        style = "bold" if row.level is Level.CAMPAIGN else ""
        return Piece(head, style), Piece(f" {state}", _choose_style(row, scene))

    def _line(self, sign: str, name: str, cells: list[str]) -> str:
        name = self.shorten(name, self._name - len(sign), has_end=True)
        return " ".join([f"{self.shorten(sign, len(sign))}{name}".ljust(self._name), *cells])

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
    campaign, point = row.watched.campaign, row.repeats[0].array.point
    if row.level is Level.CAMPAIGN:
        # What distinguishes it from others of its name.
        text = f"{campaign.name} {campaign.framework}" if campaign.name else campaign.id
        return f"{text} {campaign.variant}".rstrip()
    if row.level is Level.REPEAT:
        return f"repeat {row.key[2]}"
    cpu = " cpu" if point.device == "cpu" else ""
    # The row of the campaign has the variant that all its points share.
    variant = "" if campaign.variant else point.variant
    return f"{point.model} {point.shape} {point.precision} b{point.batch}{cpu} {variant}".rstrip()


def _share(row: TreeRow, scene: Scene) -> float | None:
    """Return the part of a row's repeats, or of a repeat's iterations, that is done."""
    if row.level is not Level.REPEAT:
        return _count_ended(row, scene) / len(row.repeats)
    running = scene.progress(row.repeats[0])
    if running is None or running.iteration is None or not running.iterations:
        return None
    return min(1.0, running.iteration / running.iterations)


def _count_ended(row: TreeRow, scene: Scene) -> int:
    return sum(scene.counts[row.key].get(kind, 0) for kind in _ENDED)


def _cells(row: TreeRow, scene: Scene) -> dict[str, str]:
    """Return the texts of a row's columns; of a campaign with a name, its id too."""
    if row.level is not Level.REPEAT:
        return _group_cells(row, scene)
    (repeat,) = row.repeats
    state, running, run = (
        scene.view.states[repeat.key],
        scene.progress(repeat),
        scene.find_run(repeat),
    )
    throughput = running.throughput if running else run.throughput if run and run.valid else None
    cells = {
        "done": "",
        "rate": scene.format_rate(convert_rate(repeat, throughput, scene.unit)),
        "left": "",
        "nodes": fold(state.nodes),
    }
    if running and running.iteration is not None:
        cells["done"] = f"{running.iteration}/{running.iterations}"
    if running and running.ends is not None:
        cells["left"] = format_duration(max(0.0, running.ends - scene.view.time))
    # The row of the point has the reason for which all its repeats wait.
    group_wait = scene.waits.get((repeat.watched.campaign.id, repeat.array.point.key))
    reasons = (
        scene.failures.get(repeat.key, ""),
        f"invalid: {run.reasons[0].detail}" if run and run.reasons else "",
        "; ".join(f"{note.flag}: {note.detail}" for note in running.notes) if running else "",
        "" if state.kind.queued and group_wait else state.detail,
        f"attempt {state.attempt}" if state.attempt else "",
        format_earlier_attempts(state),
    )
    cells["state"] = f"{state.word}  {'; '.join(filter(None, reasons))}".rstrip()
    return cells


def _group_cells(row: TreeRow, scene: Scene) -> dict[str, str]:
    counts, campaign = scene.counts[row.key], row.watched.campaign
    reduced, time_left = scene.find_row(row), scene.times_left.get(row.key)
    is_alive = any(kind.alive for kind in counts)
    remaining = format_duration(time_left) if is_alive and time_left is not None else ""
    flags = (flag for flag in reduced.flags if flag != "no-baseline") if reduced else ()
    failures: Counter[str] = Counter()
    wait = scene.waits.get(row.key, "")
    if row.level is Level.POINT:
        failures.update(filter(None, (scene.failures.get(repeat.key) for repeat in row.repeats)))
        # The row of the campaign has the reason for which all its points wait.
        wait = "" if scene.waits.get(row.key[:1]) else wait
    texts = [f"{format_count(count, 'repeat')}: {failure}" for failure, count in failures.items()]
    texts.append(wait if wait.startswith(("waits ", "is ")) else wait and f"waits: {wait}")
    texts += [format_counts(counts, scene.cancelled.get(row.key, 0)), ", ".join(flags)]
    has_name = row.level is Level.CAMPAIGN and campaign.name not in ("", campaign.id)
    return {
        "done": f"{_count_ended(row, scene)}/{len(row.repeats)}",
        "rate": scene.format_rate(row_rate(reduced, scene.unit) if reduced else None),
        "left": f"{reduced.efficiency:.1%}" if reduced and reduced.efficiency else remaining,
        "nodes": "",
        "state": "; ".join(filter(None, texts)),
        "id": campaign.id if has_name else "",
    }


def _join_id(texts: Mapping[str, str]) -> str:
    """Return a row's state, and its campaign's id if the row does not begin with that."""
    return "; ".join(filter(None, (texts["state"], texts.get("id"))))


def _choose_style(row: TreeRow, scene: Scene) -> str:
    if row.level is Level.REPEAT:
        return find_mark(scene.view.states[row.repeats[0].key]).style
    counts, cancelled = scene.counts[row.key], scene.cancelled.get(row.key, 0)
    if counts.get(Kind.FAILED, 0) > cancelled:
        return MARKS[Kind.FAILED].style
    kinds = (Kind.UNKNOWN, Kind.REQUEUED, Kind.RUNNING, Kind.WAITING)
    ended_style = "yellow" if cancelled else "green"
    return next((MARKS[kind].style for kind in kinds if counts.get(kind)), ended_style)


def describe_row(row: TreeRow, scene: Scene) -> str:
    """Return everything known about a row, as a sentence that may be folded."""
    texts, repeat = _cells(row, scene), row.repeats[0]
    rate = f"{texts['rate']} {scene.unit}/s" if texts["rate"] else ""
    if row.level is not Level.REPEAT:
        reduced = scene.find_row(row)
        remaining = f"about {texts['left']} left" if texts["left"] else ""
        efficiency = f"efficiency {texts['left']}" if reduced and texts["left"] else ""
        words = [
            _format_name(row),
            rate and f"median {rate}",
            efficiency,
            f"{reduced.repeats.ok}/{reduced.repeats.asked} repeats valid" if reduced else "",
            _join_id(texts),
            "" if reduced else remaining,
        ]
        return "  ".join(filter(None, words))
    state, used_time = scene.view.states[repeat.key], None
    if state.start is not None:
        used_time = max(0.0, (state.end or scene.view.time) - state.start)
    used_time = state.elapsed if used_time is None else used_time
    limit = f" of {format_duration(state.limit)}" if state.limit else ""
    advice = advise(repeat, state)
    words = [
        f"{repeat.array.point.key} repeat {repeat.number}",
        f"job {repeat.job_id}" if repeat.job_id else "",
        f"on {texts['nodes']}" if texts["nodes"] else "",
        f"ran {format_duration(used_time)}{limit}" if used_time is not None else "",
        rate,
        f"{texts['left']} left" if texts["left"] else "",
        texts["state"],
        f"→ {advice}" if advice else "",
    ]
    return "  ".join(filter(None, words))
