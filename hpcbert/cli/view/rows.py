"""The rows of the view: campaigns, their points, and the repeats of those."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from hpcbert.campaign.repeats import Key, Repeat, TrackedCampaign
from hpcbert.cli.watching import MARKS
from hpcbert.commands.monitor import RepeatProgress, View
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
        left: Seconds until a campaign or point ends, if they can be estimated.
        details: Progress of the running repeats on the screen.
        failures: Why the failed repeats on the screen failed, from their logs.
        over: Whether nothing waits or runs any more.
    """

    view: View
    counts: Mapping[tuple[str | int, ...], Mapping[Kind, int]]
    left: Mapping[tuple[str | int, ...], float]
    details: Mapping[Key, RepeatProgress] = field(default_factory=dict)
    failures: Mapping[Key, str] = field(default_factory=dict)
    over: bool = False


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
                *(f"repeat {repeat.number}", state.word, MARKS[state.kind][3], state.reason),
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
