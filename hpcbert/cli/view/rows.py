"""The rows of the view: campaigns, their points and the repeats of those, and how they look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from math import fsum
from typing import NamedTuple

from hpcbert.campaign.repeats import Key, Repeat, TrackedCampaign
from hpcbert.cli.output import replace_controls
from hpcbert.cli.progress import (
    Mark,
    advise,
    convert_rate,
    count_marks,
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
from hpcbert.system.grouping import group

# The id of a campaign, the key of a point, the number of a repeat, as far as a row has them.
RowKey = tuple[str | int, ...]


class Level(IntEnum):
    """The depth of a row: the number of parts in its key."""

    CAMPAIGN = 1
    POINT = 2
    REPEAT = 3


@dataclass(frozen=True)
class TreeRow:
    """A campaign, a point or a repeat.

    Attributes:
        repeats: The repeats below it; for a repeat, itself.
    """

    key: RowKey
    repeats: tuple[Repeat, ...]

    @property
    def level(self) -> Level:
        """Its depth."""
        return Level(len(self.key))

    @property
    def watched(self) -> TrackedCampaign:
        """The campaign of the row."""
        return self.repeats[0].watched


def repeat_key(repeat: Repeat) -> RowKey:
    """Return the key of a repeat's row."""
    return repeat.watched.campaign.id, repeat.array.point.key, repeat.number


def list_rows(repeats: Sequence[Repeat]) -> dict[RowKey, TreeRow]:
    """Return all rows by their keys, each before those below it."""
    groups = group((repeat_key(repeat)[:level], repeat) for repeat in repeats for level in Level)
    return {key: TreeRow(key, tuple(members)) for key, members in groups.items()}


class Tally(NamedTuple):
    """What the states of repeats sum up to.

    Attributes:
        marks: Number of repeats by how they are shown.
        alive: Number of those that wait or run.
        wait: Why they wait, if for one reason, and if none runs.
        timed, seconds: Number of completed ones with a known duration, and the sum of these.
    """

    marks: Counter[Mark]
    alive: int
    running: tuple[Repeat, ...]
    failed: tuple[Repeat, ...]
    wait: str
    timed: int
    seconds: float


def tally_repeats(repeats: Sequence[Repeat], states: Mapping[Key, RepeatState]) -> Tally:
    """Sum up the states of repeats."""
    pairs = [(repeat, states[repeat.key]) for repeat in repeats]
    running = tuple(repeat for repeat, state in pairs if state.kind is Kind.RUNNING)
    details = {state.detail for _, state in pairs if state.kind.queued}
    # In whole seconds: one that took less than a second took no time.
    times = [
        max(1.0, state.elapsed)
        for _, state in pairs
        if state.kind is Kind.SUCCEEDED and state.elapsed is not None
    ]
    return Tally(
        marks=count_marks(state for _, state in pairs),
        alive=sum(state.kind.alive for _, state in pairs),
        running=running,
        failed=tuple(repeat for repeat, state in pairs if state.kind is Kind.FAILED),
        wait=details.pop() if len(details) == 1 and not running else "",
        timed=len(times),
        seconds=fsum(times),
    )


@dataclass(frozen=True)
class Scene:
    """What is shown at one moment.

    Attributes:
        tallies: Those of the view's states that were needed so far, by the row's key.
        details: Progress of the running repeats on the screen.
        failures: Why the failed repeats on the screen failed, from their logs.
        rates: The numbers of each campaign, by its id.
    """

    view: View
    rows: Mapping[RowKey, TreeRow]
    details: Mapping[Key, RepeatProgress] = field(default_factory=dict)
    failures: Mapping[Key, str] = field(default_factory=dict)
    rates: Mapping[str, Rates] = field(default_factory=dict)
    unit: Unit = "samples"
    tallies: dict[RowKey, Tally] = field(default_factory=dict)

    @cached_property
    def groups(self) -> tuple[TreeRow, ...]:
        """The rows of campaigns and points."""
        return tuple(row for key, row in self.rows.items() if len(key) < Level.REPEAT)

    def tally(self, key: RowKey) -> Tally:
        """Return what the repeats of a row sum up to; without a key, all of them."""
        if key not in self.tallies:
            repeats = self.rows[key].repeats if key else self.view.repeats
            self.tallies[key] = tally_repeats(repeats, self.view.states)
        return self.tallies[key]

    @property
    def over(self) -> bool:
        """Whether nothing waits or runs any more."""
        return not self.tally(()).alive

    @cached_property
    def _typical_times(self) -> Mapping[RowKey, float]:
        """The mean seconds of a repeat, by its point, its campaign, and of all.

        Those that run count too, if their log gives an estimate.
        """
        times: dict[RowKey, float] = {}
        for key in ((), *(row.key for row in self.groups)):
            tally = self.tally(key)
            seconds, count = tally.seconds, tally.timed
            for repeat in tally.running:
                running, start = self.progress(repeat), self.view.states[repeat.key].start
                if running and running.ends is not None and start is not None:
                    seconds, count = seconds + running.ends - start, count + 1
            if count:
                times[key] = seconds / count
        return times

    def time_left(self, row: TreeRow) -> float | None:
        """Return the seconds until a campaign or point ends; None without an estimate.

        Each repeat takes about as long as others of its point, its campaign, or of all.
        """
        keys = [key for key in (row.key, row.key[:1], ()) if key in self._typical_times]
        if not keys:
            return None
        tally, typical_time = self.tally(row.key), self._typical_times[keys[0]]
        remaining_work = typical_time * (tally.alive - len(tally.running))
        for repeat in tally.running:
            start, running = self.view.states[repeat.key].start, self.progress(repeat)
            ends = running.ends if running else None
            if ends is None and start is not None:
                ends = start + typical_time
            remaining_work += typical_time if ends is None else max(0.0, ends - self.view.time)
        return remaining_work / max(1, len(tally.running))

    @property
    def total_time_left(self) -> float | None:
        """Seconds until all campaigns end: some wait for others; None if one has no estimate."""
        totals: dict[str, float] = {}
        for row in self.groups:
            if row.level is Level.CAMPAIGN:
                campaign = row.watched.campaign
                seconds = self.time_left(row) if self.tally(row.key).alive else 0.0
                if seconds is None:
                    return None
                totals[campaign.id] = seconds + totals.get(campaign.after, 0.0)
        return max(totals.values(), default=None)

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
        reduced = rates.rows.get(str(row.key[1]))
        if reduced is None:
            return None
        attempts = {(repeat.key, self.view.states[repeat.key].attempt) for repeat in row.repeats}
        return reduced if attempts <= rates.ended else None

    def format_rate(self, rate: float | None) -> str:
        """Return a rate in the unit of the scene."""
        return "" if rate is None else f"{rate:,.{0 if self.unit == 'tokens' else 2}f}"


def make_filter(words: Collection[str], view: View) -> Callable[[Repeat], bool]:
    """Return a function that checks a repeat for all words of a filter.

    It looks in the campaign's id or name, the point's key, the state, the reason and the nodes.
    """

    def matches_all(repeat: Repeat) -> bool:
        state, campaign = view.states[repeat.key], repeat.watched.campaign
        point = repeat.array.point
        texts = [campaign.id, campaign.name, point.key, point.framework, f"repeat {repeat.number}"]
        texts += [state.word, find_mark(state).name, state.reason, state.detail, *state.nodes]
        text = " ".join(texts).lower()
        return all(word.lower() in text for word in words)

    return matches_all


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
_BAR_WIDTH = 6
INDENT = 2


def clean(text: str, *, unicode: bool) -> str:
    """Return a text that does not steer the terminal, in ASCII if that shows nothing else."""
    text = replace_controls(text)
    return text if unicode else to_ascii(text)


class Sheet:
    """Formats rows."""

    def __init__(self, width: int, *, unicode: bool) -> None:
        self.width, self._unicode = width, unicode
        self._columns = [column for column in _COLUMNS if width >= column[3]]
        min_width, max_width = _NAME_WIDTHS
        self._name = max(min_width, min(max_width, width * 5 // 14))

    def heads(self, unit: Unit) -> str:
        """Return the titles of the columns."""
        titles = [title.format(unit=unit).rjust(width) for _, title, width, _ in self._columns]
        return " ".join(["  campaign, point, repeat".ljust(self._name), *titles, "state"])

    def line(self, row: TreeRow, scene: Scene, *, folded: bool) -> tuple[str, str]:
        """Return a row, without its indentation: all columns but its state, and the state."""
        cells = make_cells(row, scene)
        sign = "▸" if folded else "▾"
        if row.level is Level.REPEAT:
            sign = find_mark(scene.view.states[row.repeats[0].key]).sign
        indent = INDENT * (row.level - 1)
        name = self.shorten(format_name(row), self._name - indent - len("▸ "), middle=True)
        texts = [f"{self.shorten(sign, 1)} {name}".ljust(self._name - indent)]
        for column, _, width, _ in self._columns:
            texts.append(self.shorten(cells.get(column, ""), width).rjust(width))
        head = " ".join(texts)
        room = max(0, self.width - indent - len(head) - 1)
        # A part of an id is of no use; the lines below the rows have it too.
        state = cells["state"]
        if "id" in cells and len(f"{state}; {cells['id']}") <= room:
            state += f"; {cells['id']}"
        return head, f" {self.shorten(state, room)}"

    def shorten(self, text: str, width: int, *, middle: bool = False) -> str:
        """Return a text cut to a number of characters, at its end or after a third of it."""
        text = clean(text, unicode=self._unicode).replace("\n", " ")
        if len(text) <= width:
            return text
        ellipsis = "…" if self._unicode else "~"
        start = max(0, width - 1) // (3 if middle else 1)
        end = max(0, width - 1) - start
        return text[:start] + ellipsis[:width] + (text[-end:] if end else "")


def format_name(row: TreeRow) -> str:
    """Return what a row is called below the row that it belongs to."""
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


def _draw_bar(share: float) -> str:
    filled = round(min(1.0, share) * _BAR_WIDTH)
    return "█" * filled + "░" * (_BAR_WIDTH - filled)


def make_cells(row: TreeRow, scene: Scene) -> dict[str, str]:
    """Return the texts of a row's columns; of a campaign with a name, its id too."""
    return _repeat_cells(row, scene) if row.level is Level.REPEAT else _group_cells(row, scene)


def _repeat_cells(row: TreeRow, scene: Scene) -> dict[str, str]:
    (repeat,) = row.repeats
    state, running = scene.view.states[repeat.key], scene.progress(repeat)
    run, cells = scene.find_run(repeat), {"nodes": fold(state.nodes)}
    throughput = run.throughput if run and run.valid else None
    if running:
        throughput = running.throughput
        if running.iteration is not None:
            cells["bar"] = _draw_bar(running.iteration / running.iterations)
            cells["done"] = f"{running.iteration}/{running.iterations}"
        if running.ends is not None:
            cells["left"] = format_duration(max(0.0, running.ends - scene.view.time))
    cells["rate"] = scene.format_rate(convert_rate(repeat, throughput, scene.unit))
    # The row of the point has the reason for which all its repeats wait.
    has_shared_reason = state.kind.queued and scene.tally(row.key[:2]).wait
    reasons = (
        scene.failures.get(repeat.key, ""),
        f"invalid: {run.reasons[0].detail}" if run and run.reasons else "",
        "; ".join(f"{note.flag}: {note.detail}" for note in running.notes) if running else "",
        "" if has_shared_reason else state.detail,
        f"attempt {state.attempt}" if state.attempt else "",
        format_earlier_attempts(state),
    )
    cells["state"] = f"{state.word}  {'; '.join(filter(None, reasons))}".rstrip()
    return cells


def _group_cells(row: TreeRow, scene: Scene) -> dict[str, str]:
    tally, campaign = scene.tally(row.key), row.watched.campaign
    texts, wait = [], tally.wait
    if row.level is Level.POINT:
        failures = Counter(scene.failures.get(repeat.key) for repeat in tally.failed)
        texts = [f"{format_count(failures[text], 'repeat')}: {text}" for text in failures if text]
        # The row of the campaign has the reason for which all its points wait.
        wait = "" if scene.tally(row.key[:1]).wait else wait
    if wait and not wait.startswith(("waits ", "is ")):
        wait = f"waits: {wait}"
    texts += [wait, format_counts(tally.marks)]
    ended_count = len(row.repeats) - tally.alive
    cells = {
        "bar": _draw_bar(ended_count / len(row.repeats)),
        "done": f"{ended_count}/{len(row.repeats)}",
    }
    if reduced := scene.find_row(row):
        cells["rate"] = scene.format_rate(row_rate(reduced, scene.unit))
        cells["left"] = f"{reduced.efficiency:.1%}" if reduced.efficiency else ""
        texts.append(", ".join(flag for flag in reduced.flags if flag != "no-baseline"))
    elif tally.alive:
        cells["left"] = format_duration(scene.time_left(row))
    cells["state"] = "; ".join(filter(None, texts))
    if row.level is Level.CAMPAIGN and campaign.name not in ("", campaign.id):
        cells["id"] = campaign.id
    return cells


# Of the states below a row, the first of these is the row's.
_FIRST = ("failed", "unknown", "requeued", "running", "waiting", "cancelled", "completed")


def choose_style(marks: Iterable[Mark]) -> str:
    """Return the style of a row whose repeats are shown by these marks, one of rich's."""
    styles = {mark.name: mark.style for mark in marks}
    return next((styles[name] for name in _FIRST if name in styles), "dim")


def describe_row(row: TreeRow, scene: Scene) -> str:
    """Return everything known about a row, as a sentence that may be folded."""
    cells, reduced = make_cells(row, scene), scene.find_row(row)
    rate = f"{cells['rate']} {scene.unit}/s" if cells.get("rate") else ""
    remaining = cells.get("left", "")
    state = "; ".join(filter(None, (cells["state"], cells.get("id"))))
    if row.level is Level.REPEAT:
        (repeat,) = row.repeats
        advice = advise(repeat, scene.view.states[repeat.key])
        words = _describe_repeat(repeat, scene)
        words += [rate, remaining and f"{remaining} left", state, advice and f"→ {advice}"]
    elif reduced:
        valid = f"{reduced.repeats.ok}/{reduced.repeats.asked} repeats valid"
        efficiency = remaining and f"efficiency {remaining}"
        words = [format_name(row), rate and f"median {rate}", efficiency, valid, state]
    else:
        words = [format_name(row), state, remaining and f"about {remaining} left"]
    return "  ".join(filter(None, words))


def _describe_repeat(repeat: Repeat, scene: Scene) -> list[str]:
    state = scene.view.states[repeat.key]
    used_time = state.elapsed
    if state.start is not None:
        used_time = max(0.0, (state.end or scene.view.time) - state.start)
    limit = f" of {format_duration(state.limit)}" if state.limit else ""
    return [
        f"{repeat.array.point.key} repeat {repeat.number}",
        f"job {repeat.job_id}" if repeat.job_id else "",
        f"on {fold(state.nodes)}" if state.nodes else "",
        f"ran {format_duration(used_time)}{limit}" if used_time is not None else "",
    ]
