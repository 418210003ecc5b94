"""The records of a log's window: the one number that a rule makes from them, and their times.

Also which iterations a number covers, and whether the log has them.

A collector takes records in the log's order, reports when it has seen enough, and then has either a
throughput or a reason why there is none. It never fills a gap.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from hpcbert.logs.arithmetic import (
    CannotReduceError,
    average,
    duration,
    parse_number,
    require_positive,
    throughput,
)
from hpcbert.logs.fields import show_text, whole_matches, whole_number
from hpcbert.logs.grammar import STARTED_FACT, Fact, Grammar, Record, Rule, Skip
from hpcbert.logs.lines import Line
from hpcbert.logs.setting import END, Setting
from hpcbert.logs.stamps import COARSEST, Clock
from hpcbert.model import Counted

_MAX_RANKS = 1 << 16


class Entry(NamedTuple):
    """One record, as a rule reads it.

    Attributes:
        place: The completed iterations, not always whole.
        value: Its rate, its duration or its moment; NaN for other text, which may not matter.
        steps: Iterations that were executed since the record before it.
        paused: Whether the log explains why it may be slow.
    """

    place: float
    value: float
    text: bytes = b""
    steps: int = 0
    paused: bool = False


class Track:
    """The records of one rule, in the log's order.

    Attributes:
        entries: All of them, including the warm-up.
        stride: Iterations from one record to the next: from the recipe, else the smallest seen.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.entries: list[Entry] = []
        self.stride = rule.record.every
        self._clock = Clock(rule.record.time) if rule.kind == "clock" else None

    def add(self, iteration: float | None, text: bytes, *, paused: bool) -> Entry:
        """Take a record; without an iteration, its place follows from its count."""
        place = iteration
        if place is None:
            place = (len(self.entries) + 1) * (self.rule.record.every or 1)
        steps = 0
        if self.entries:
            steps = int(place) - int(self.entries[-1].place)
            if steps > 0 and not self.rule.record.every:
                self.stride = min(self.stride or steps, steps)
            # An iteration that is printed again, or counted back, was executed once more.
            if steps <= 0:
                steps = 1 if self.rule.record.repeated == "count" else 0
        # The first iteration compiles, allocates and tunes.
        is_first = not self.entries or place == self.entries[0].place
        self.entries.append(Entry(place, self._read(text), text, steps, paused or is_first))
        return self.entries[-1]

    def _read(self, text: bytes) -> float:
        try:
            if self._clock:
                return self._clock.read(text)
            return parse_number(text) * self.rule.factor
        except (ValueError, CannotReduceError):
            return math.nan


class Span(NamedTuple):
    """The window: after one iteration, up to another; None is as far as the log goes."""

    after: int | None = None
    until: int | None = None


class Collector(ABC):
    """Takes the records of one rule.

    Attributes:
        ranks: How many print a record, if several do; None if the log's header does not say.
        after, until: The window, in iterations or records.
        done: Whether everything that it reads has been seen.
        begun: Whether the next record is in the window, or an earlier one was.
        found: Records taken from the window.
        repeats: Steps of the window that were executed but did not advance.
        last: The last record so far, in the unit of the window's end; 0 if nothing is counted.
        averaged: The same, from `reduce` on averaged over ranks.
        span: The window in iterations, as far as known; from `reduce` on, as the next one.
        covered: Iterations that the number covers, 0 if only the program knows.
    """

    def __init__(self, rule: Rule, setting: Setting) -> None:
        self.rule = rule
        self.ranks: int | None = None
        self.after = rule.after.resolve(skip=setting.skip, iters=setting.iters)
        self.until = rule.until.resolve(skip=setting.skip, iters=setting.iters)
        self.done = False
        self.begun = self.after == 0
        self.found = self.repeats = self.last = self.covered = 0
        self.track = Track(rule)
        self.averaged = self.track.entries
        self.span = Span()

    def begin(self, setting: Setting) -> None:
        """Take what the log's header states, before the first record.

        Raises:
            CannotReduceError: The rule's window is empty.
        """
        rule = self.rule
        if rule.kind != "footer" and rule.after.by == rule.until.by and self.after >= self.until:
            detail = f"a window after {rule.after.by} {self.after} until {self.until} is empty"
            raise CannotReduceError("rule", detail)
        self.ranks = setting.nodes if rule.record.ranks == "node" else setting.gpus

    @abstractmethod
    def add(self, entry: Entry, rank: int | None) -> None:
        """Take one record of the track, and its rank.

        Raises:
            CannotReduceError: The log can't give a number any more.
        """

    @abstractmethod
    def reduce(self, setting: Setting) -> float:
        """Return samples per second over all GPUs.

        Raises:
            CannotReduceError: The records don't give a number.
            UnknownError: A setting is missing.
        """


def make_collector(rule: Rule, setting: Setting) -> Collector:
    """Return the collector for a rule under a protocol."""
    if rule.kind == "footer":
        return _Footers(rule, setting)
    return (_Series if rule.record.ranks == "one" else _RankedSeries)(rule, setting)


class _Footers(Collector):
    """Closing lines, each with a number of its own."""

    _value = b""

    def add(self, entry: Entry, rank: int | None) -> None:  # noqa: ARG002
        is_only = self.rule.which == "only"
        if self.found and is_only and parse_number(entry.text) != parse_number(self._value):
            numbers = f"{self._value.decode()} and {entry.text.decode(errors='replace')}"
            raise CannotReduceError("rule", f"the log has several closing lines: {numbers}")
        self.found = 1
        self._value = entry.text
        self.done = self.rule.which == "first"

    def reduce(self, setting: Setting) -> float:
        if not self.found:
            detail = f"the closing line of {self.rule.name} is missing"
            raise CannotReduceError("incomplete", detail)
        value = parse_number(self._value) * self.rule.factor
        return throughput(self.rule, require_positive(value), setting)


class _Series(Collector):
    """Records that one rank prints, in their order.

    Places are completed iterations. `_entries` are the window's records: those after `after`, up to
    `until`. `_start` is the record that the window begins after, a clock's first moment. Until a
    record ends exactly at `until`, the series is not done; one that ends beyond it is refused.
    """

    def __init__(self, rule: Rule, setting: Setting) -> None:
        super().__init__(rule, setting)
        # -1: no record has come yet; 0 is a place if programs report before the first step.
        self._last: float = -1
        self._records = 0
        self._stride = 0
        self._start: Entry | None = None
        self._entries: list[Entry] = []

    def add(self, entry: Entry, rank: int | None) -> None:  # noqa: ARG002
        self._records += 1
        self._stride = self.track.stride
        is_repeated = self._follow(entry.place)
        position = self._position(self.rule.until.by, entry.place)
        self.last = max(0, position)
        self.begun = self._position(self.rule.after.by, entry.place) >= self.after
        if self._position(self.rule.after.by, entry.place) <= self.after:
            # A step count that falls back behind its beginning opens the window a second time.
            self._start, self._entries, self.repeats = entry, [], 0
            self.found = 0
            return
        # A step that is printed twice is a copy, or was executed twice: the recipe says which.
        if not is_repeated or self._counts_again(entry.place):
            self._entries.append(entry)
            self.found += 1
        if position > self.until:
            detail = f"no record ends at iteration {self.until}, the next one ends at {position}"
            raise CannotReduceError("window", detail)
        self.done = position == self.until

    def _position(self, unit: str, place: float) -> int:
        return self._records if unit == "record" else int(place)

    def _follow(self, place: float) -> bool:
        """Take the next iteration; return whether it was printed before."""
        last_place, self._last = self._last, place
        if last_place < 0:
            return False
        # A first step whose gradients overflowed is taken back. NVIDIA's PyTorch BERT counts
        # 0, 1, 0, 0, 1, 2 under AMP (PaddlePaddle/Perf@e7a07c4, PyTorch, fp16_bs96_gpu1): each line
        # is a step that was executed.
        is_counted = self.rule.record.repeated == "count"
        if is_counted and place == self.track.entries[0].place == last_place - 1:
            self.repeats += 1
            return True
        if place < last_place:
            detail = (
                f"iterations go back from {last_place} to {place}: the log has more than one run"
            )
            raise CannotReduceError("window", detail)
        return place == last_place

    def _counts_again(self, place: float) -> bool:
        policy = self.rule.record.repeated
        if policy == "refuse":
            detail = f"iteration {place} is printed twice inside the window"
            raise CannotReduceError("window", detail)
        # Without a bound a log that prints one step forever would fill memory.
        self.repeats += policy == "count"
        if self.repeats > 10 * max(1, self.until):
            raise CannotReduceError("window", f"iteration {place} is repeated without end")
        return policy == "count"

    def reduce(self, setting: Setting) -> float:
        if not self._records:
            names = f"{self.rule.record.name}, which rule {self.rule.name} reads"
            raise CannotReduceError("incomplete", f"the log has no record {names}")
        if not self.done:
            detail = f"the log ends at iteration {max(int(self._last), 0)} of {self.until}"
            if self.rule.until.by == "record":
                detail = f"the log has {self._records} of {self.until} records"
            raise CannotReduceError("incomplete", detail)
        if not self._entries:
            raise CannotReduceError("window", "no record is inside the window")
        self._note_span()
        places = [entry.place for entry in self._entries]
        repeated_places = {a for a, b in pairwise(places) if a == b}
        # No overflow prints most iterations again.
        if 2 * len(repeated_places) > len(set(places)):
            detail = "most iterations are printed twice: more than one rank prints"
            raise CannotReduceError("window", detail)
        if self.rule.kind == "clock":
            return self._by_clock(setting)
        self._check_gapless()
        for entry in self._entries:
            if math.isnan(entry.value):
                detail = f"{show_text(entry.text)!r} of iteration {entry.place} is not a number"
                raise CannotReduceError("rule", detail)
        values = [entry.value for entry in self._entries]
        return average(self.rule, values, self._stride, setting)

    def _note_span(self) -> None:
        last_place = self._entries[-1].place
        after = int(self._start.place) if self._start else None
        begin = self._start.place if self._start else self._entries[0].place - self._stride
        if self.rule.after.by == "iteration":
            after = begin = self.after
        self.covered = int(last_place - begin)
        until = self.until if self.rule.until.by == "iteration" else int(last_place)
        self.span = Span(after, until)

    def _check_gapless(self) -> None:
        """Refuse a window that records of equal length don't cover from end to end."""
        # Each record covers `stride` iterations, so the window's must follow one another by exactly
        # that, from its beginning to its end. A gap is a lost record.
        _require_stride(self._stride)
        places = sorted({int(entry.place) for entry in self._entries})
        start = self.after
        if self.rule.after.by == "record":
            start = int(self._start.place) if self._start else places[0] - self._stride
            places = [place for place in places if place > start]
        # A first record that is off its own stride covers fewer iterations than the others.
        first, stride = self.track.entries[0].place, self._stride
        is_regular = stride == 1 or self.rule.record.every or first % stride == 0
        end = places[-1] if places else start
        if not is_regular:
            detail = f"the first record is of iteration {first}, each covers {stride}"
            raise CannotReduceError("window", detail)
        _require_places(start, places, range(start + stride, end + 1, stride))

    def _by_clock(self, setting: Setting) -> float:
        if self._start is None or (
            self.rule.after.by == "iteration" and self._start.place != self.after
        ):
            detail = f"no record ends at iteration {self.after}, where the window begins"
            if self.after == 0:
                detail = "a clock needs one warm-up iteration, because time begins at its end"
            raise CannotReduceError("window", detail)
        if not self.rule.record.irregular:
            self._check_gapless()
        if self.repeats and self._stride != 1:
            detail = "iterations are printed again, but not every one is printed"
            raise CannotReduceError("window", detail)
        # Steps that did not advance took time as well.
        steps = self._entries[-1].place - self._start.place + self.repeats
        entries = [self._start, *self._entries]
        seconds = duration([entry.value for entry in entries])
        resolution = Clock(self.rule.record.time).resolution([entry.text for entry in entries])
        if resolution > COARSEST * seconds:
            detail = (
                f"times are printed to {resolution:g} s, too coarse for a window of {seconds:g} s"
            )
            raise CannotReduceError("window", detail)
        micro = self.rule.record.counts == "micro-batches"
        return setting.batch("global", micro=micro) * steps / seconds


class _RankedSeries(Collector):
    """Records that several ranks print, interleaved as it happened."""

    def __init__(self, rule: Rule, setting: Setting) -> None:
        super().__init__(rule, setting)
        self.span = Span(self.after, self.until)
        self.covered = self.until - self.after
        self._places: set[int] = set()
        self._values: dict[int, dict[int, float]] = {}
        self._most_ranks = 0

    def add(self, entry: Entry, rank: int | None) -> None:
        place = int(entry.place)
        if place > self.until:
            return
        self._places.add(place)
        self.begun = self.begun or place >= self.after
        if place < self.after or (place == self.after and self.rule.kind != "clock"):
            return
        values = self._values.setdefault(place, {})
        self.found = len(self._values)
        # Lines without a rank are counted under numbers that can't be a rank's.
        rank_key = -1 - len(values) if rank is None else rank
        if rank_key in values or len(values) >= (self.ranks or _MAX_RANKS):
            is_twice = rank_key in values
            problem = f"by rank {rank} twice" if is_twice else f"by more than {self.ranks} ranks"
            raise CannotReduceError("window", f"iteration {place} is printed {problem}")
        values[rank_key] = entry.value
        if len(values) >= self._most_ranks:
            self.last = place if len(values) > self._most_ranks else max(self.last, place)
            self._most_ranks = len(values)
        # Ranks print at different times: the last iteration is whole when all of them have printed.
        self.done = place == self.until and len(values) == self.ranks

    def reduce(self, setting: Setting) -> float:
        ranks = setting.need("nodes" if self.rule.record.ranks == "node" else "gpus")
        ranks_at_end = len(self._values.get(self.until, ()))
        if ranks_at_end != ranks:
            detail = f"{ranks_at_end} of {ranks} ranks came to iteration {self.until}"
            raise CannotReduceError("incomplete", detail)
        gaps = [b - a for a, b in pairwise(sorted(self._places))]
        stride = _require_stride(self.rule.record.every or min(gaps, default=0))
        begin = self.after if self.rule.kind == "clock" else self.after + stride
        expected = range(begin, self.until + 1, stride)
        counts = {place: len(values) for place, values in sorted(self._values.items())}
        full_places = [place for place, count in counts.items() if count == ranks]
        _require_places(self.after, full_places, expected)
        self.averaged = [Entry(place, self._over_ranks(place), b"", stride) for place in counts]
        series = [self._over_ranks(place) for place in expected]
        if self.rule.kind != "clock":
            return average(self.rule, series, stride, setting)
        micro = self.rule.record.counts == "micro-batches"
        steps = self.until - self.after
        return setting.batch("global", micro=micro) * steps / duration(series)

    def _over_ranks(self, place: int) -> float:
        values = list(self._values[place].values())
        if self.rule.over_ranks == "median":
            return median(values)
        total = math.fsum(values)
        return total if self.rule.over_ranks == "sum" else total / len(values)


def _require_stride(stride: int) -> int:
    if not stride:
        raise CannotReduceError("window", "one record does not say how many iterations it covers")
    return stride


def _require_places(start: int, places: list[int], expected: range) -> None:
    # A number in a log may be of any size, so lengths first.
    if len(places) == len(expected) and places == list(expected):
        return
    present = set(places)
    missing = next((place for place in expected if place not in present), None)
    if missing is not None and len(expected) > 1:
        detail = f"the record of iteration {missing} is missing from the window"
        raise CannotReduceError("window", detail)
    shown_places = ", ".join(map(str, places[:3])) or "none"
    detail = f"records end at iterations {shown_places}: they don't divide the window after {start}"
    raise CannotReduceError("window", detail)


def counted_part(rule: Rule, skip: int, iters: int) -> Counted:
    """Return the part that a rule measures under a protocol; `iters` may be END."""
    after = rule.after.resolve(skip=skip, iters=iters)
    until = rule.until.resolve(skip=skip, iters=iters)
    is_same_unit = rule.after.by == rule.until.by
    end = f"{'' if is_same_unit else f'{rule.until.by} '}{until}" if until != END else "the end"
    counted = {
        "footer": "the run's own closing line",
        "custom": "what the recipe's own reader counts",
    }.get(rule.kind, f"{rule.after.by}{'s' if is_same_unit else ''} {after + 1} to {end}")
    return Counted(skip, None if iters == END else iters, counted)


# --- Whether the log has the iterations that a number covers -------------------------------------


class CoverageCheck:
    """Checks that a log has its iterations if the rule itself does not check that.

    A closing line covers the program's own window, and a rule that counts lines begins wherever
    they do: a log with lost iterations is still not a log of a whole run.
    """

    def __init__(self, grammar: Grammar, rule: Rule) -> None:
        # Whether all from the first printed one on must be there, not only the window's.
        self._covers_all = rule.kind != "footer" and rule.after.by == "record"
        is_needed = (rule.kind == "footer" or self._covers_all) and not rule.record.irregular
        records = [
            other.record
            for other in grammar.rules
            if other.kind not in ("footer", "custom")
            and other.record.has("iteration")
            and not other.record.irregular
        ]
        self._record = records[0] if is_needed and records else None
        self._places: set[int] = set()

    def add(self, record: Record, iteration: float | None) -> None:
        """Take a record; only those that count iterations matter."""
        if record is self._record and iteration is not None:
            self._places.add(int(iteration))

    def check(self, setting: Setting) -> None:
        """Search for a gap in the protocol's window, and before it.

        A foreign log may be only the end of a log, with its closing line. If nobody requested a
        window, it is required of logs that have lines before the window and at its end.

        Raises:
            CannotReduceError: There is one.
        """
        if self._record is None:
            return
        places, every = sorted(self._places), self._record.every
        stride = every or min((b - a for a, b in pairwise(places)), default=0)
        last_place, end = setting.skip, setting.iters
        if self._covers_all:
            last_place, end = places[0] if places else 0, min([*places[-1:], end])
        elif not places or (
            not setting.reach
            and (
                sum(place <= setting.skip for place in places) < 2  # noqa: PLR2004 - one is no warm-up
                or places[-1] < setting.iters
            )
        ):
            return
        elif setting.skip <= places[0] - stride <= setting.skip + stride:
            # Some programs print the first step under the second's number.
            last_place = places[0] - stride
        if stride > 1 and not every and places[0] % stride:
            detail = f"records begin at iteration {places[0]} and then come every {stride}"
            raise CannotReduceError("window", detail)
        for place in (*(place for place in places if last_place < place <= end), end):
            if place - last_place > stride:
                detail = f"no record covers the iterations {last_place + 1} to {place - 1}"
                raise CannotReduceError("window", detail)
            last_place = place


class SkippedSteps:
    """Counts the optimizer steps in a window that were thrown away: their gradients overflowed."""

    def __init__(self) -> None:
        self.count = 0
        self._totals: dict[bytes, int] = {}

    def add(self, skip: Skip, line: Line, *, inside: bool) -> None:
        """Take a line that may report skipped steps."""
        for match in whole_matches(skip.match, line):
            fields = match.groupdict()
            steps = 1
            if fields.get("count") is not None:
                steps = whole_number(match["count"])
            elif fields.get("total") is not None:
                total = whole_number(match["total"])
                # It is unknown whether the steps of the first total were before the window.
                steps = max(0, total - self._totals.get(skip.contains, total))
                self._totals[skip.contains] = total
            self.count += steps if inside else 0


class RestartCheck:
    """Finds out whether a program was started again inside the window.

    It compares the facts before the first record, the header, with those inside the window.

    A rank that prints its header late repeats some facts, and a line may state one again; a program
    that starts again prints all of them, as often as before. Not the line of its job, if a launcher
    starts it again inside the job; that line alone means that the job has begun again.
    """

    def __init__(self, grammar: Grammar) -> None:
        self._records = [record.contains for record in grammar.records]
        self._header: Counter[Fact] = Counter()
        self._again: Counter[Fact] = Counter()
        self._after = 0

    def add(self, fact: Fact, line: Line, iteration: int, *, inside: bool) -> None:
        """Take a line with a fact; `iteration` is the number of completed iterations."""
        if any(text in line.text for text in self._records):
            return
        if not iteration:
            self._header[fact] += 1
        elif inside and fact in self._header:
            self._after = self._after or iteration
            self._again[fact] += 1

    def check(self) -> None:
        """Search for a second header.

        Raises:
            CannotReduceError: There is one.
        """
        program_facts = [fact for fact in self._header if fact is not STARTED_FACT]
        is_repeated = [self._again[fact] >= self._header[fact] for fact in program_facts]
        if self._again[STARTED_FACT] or (is_repeated and all(is_repeated)):
            detail = (
                f"the header is printed again after iteration {self._after}, inside the window:"
                " the program was started again"
            )
            raise CannotReduceError("window", detail)
