"""The records of a log's window: the one number that a rule makes from them, and their times.

A collector takes records in the log's order, reports when it has seen enough, and then has either a
throughput or a reason why there is none. It never fills a gap.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import eq

from hpcbert.logs.arithmetic import (
    CannotReduceError,
    average,
    duration,
    median,
    parse_number,
    require_positive,
    throughput,
    throughputs,
)
from hpcbert.logs.coverage import Span
from hpcbert.logs.fields import show_text
from hpcbert.logs.grammar import Rule
from hpcbert.logs.setting import END, Setting, UnknownError
from hpcbert.logs.stamps import COARSEST, Clock
from hpcbert.model import Counted, Steps

_MAX_RANKS = 1 << 16
# The completed iterations at a record, not always whole, and its number.
Entry = tuple[float, float]


class Collector(ABC):
    """Takes the records of one rule.

    Attributes:
        rule: The rule.
        done: Whether everything that it reads has been seen.
        found: Records taken from the window.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.done = False
        self.found = 0

    @property
    def begun(self) -> bool:
        """Whether the next record is in the window, or an earlier one was."""
        return True

    @property
    def repeats(self) -> int:
        """Steps of the window that were executed but did not advance."""
        return 0

    @property
    def last(self) -> int:
        """The last record so far, in the unit of the window's end; 0 if nothing is counted."""
        return 0

    @property
    def covered(self) -> int:
        """Iterations that the number covers, 0 if only the program knows."""
        return 0

    @property
    def span(self) -> Span:
        """The window in iterations, as far as known."""
        return Span()

    @property
    def seen(self) -> Sequence[Entry]:
        """Every record up to the window's end, including the warm-up; none for closing lines."""
        return ()

    @abstractmethod
    def add(self, iteration: float | None, text: bytes, rank: int | None) -> None:
        """Take one record: its iteration (completed ones), its number and its rank.

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
    """Return the collector for a rule under a protocol.

    Raises:
        CannotReduceError: The rule's window is empty.
    """
    if rule.kind == "footer":
        return _Footers(rule)
    _refuse_empty(rule, setting)
    if rule.record.ranks != "one":
        return _RankedSeries(rule, setting)
    return _Series(rule, setting)


def _refuse_empty(rule: Rule, setting: Setting) -> None:
    after = rule.after.resolve(skip=setting.skip, iters=setting.iters)
    until = rule.until.resolve(skip=setting.skip, iters=setting.iters)
    if rule.after.by == rule.until.by and after >= until:
        detail = f"a window after {rule.after.by} {after} until {until} is empty"
        raise CannotReduceError("rule", detail)


class _Footers(Collector):
    """Closing lines, each with a number of its own."""

    def __init__(self, rule: Rule) -> None:
        super().__init__(rule)
        self._value = b""

    def add(self, iteration: float | None, text: bytes, rank: int | None) -> None:  # noqa: ARG002
        if self.found and self.rule.which == "only" and parse_number(text) != self.value():
            numbers = f"{self._value.decode()} and {text.decode(errors='replace')}"
            raise CannotReduceError("rule", f"the log has several closing lines: {numbers}")
        self.found = 1
        self._value = text
        self.done = self.rule.which == "first"

    def value(self) -> float:
        return parse_number(self._value)

    def reduce(self, setting: Setting) -> float:
        if not self.found:
            raise CannotReduceError(
                "incomplete", f"the closing line of {self.rule.name} is missing"
            )
        return throughput(self.rule, require_positive(self.value() * self.rule.factor), setting)


class _WindowCollector(Collector):
    """Takes records in a window: iterations or records after `after`, up to `until`."""

    def __init__(self, rule: Rule, setting: Setting) -> None:
        super().__init__(rule)
        self.after = rule.after.resolve(skip=setting.skip, iters=setting.iters)
        self.until = rule.until.resolve(skip=setting.skip, iters=setting.iters)
        self._clock = Clock(rule.record.time) if rule.kind == "clock" else None

    def _read(self, text: bytes) -> float:
        """Return a rate, a duration or a moment; NaN for other text, which may not matter."""
        try:
            if self._clock:
                return self._clock.read(text)
            return parse_number(text) * self.rule.factor
        except (ValueError, CannotReduceError):
            return math.nan


class _Series(_WindowCollector):
    """Records that one rank prints, in their order.

    Places are completed iterations. `_entries` are the window's records: those after `after`, up to
    `until`. `_start` is the record that the window begins after, a clock's first moment. Until a
    record ends exactly at `until`, the series is not done; one that ends beyond it is refused.
    """

    def __init__(self, rule: Rule, setting: Setting) -> None:
        super().__init__(rule, setting)
        self._every = rule.record.every
        self._counts = rule.record.repeated == "count"
        # -1: no record has come yet; 0 is a place if programs report before the first step.
        self._records = 0
        self._last: float = -1
        # Iterations from one record to the next: from the recipe, else the smallest seen.
        self._stride = rule.record.every
        self._first: float = -1
        self._start: Entry | None = None
        self._entries: list[Entry] = []
        self._seen: list[Entry] = []
        self._repeats = 0
        # The first record in the window with an unreadable number: refused only if it matters.
        self._unread: tuple[float, bytes] | None = None
        self._texts: list[bytes] = []

    @property
    def seen(self) -> Sequence[Entry]:
        return self._seen

    @property
    def begun(self) -> bool:
        return self._position(self.rule.after.by, max(0, self._last)) >= self.after

    @property
    def repeats(self) -> int:
        return self._repeats

    @property
    def last(self) -> int:
        return max(0, self._position(self.rule.until.by, self._last))

    @property
    def covered(self) -> int:
        if not self._entries:
            return 0
        begin = self._start[0] if self._start else self._entries[0][0] - self._stride
        if self.rule.after.by == "iteration":
            begin = self.after
        return int(self._entries[-1][0] - begin)

    @property
    def span(self) -> Span:
        after = int(self._start[0]) if self._start else None
        if self.rule.after.by == "iteration":
            after = self.after
        until = int(self._entries[-1][0]) if self._entries else None
        return Span(after, self.until if self.rule.until.by == "iteration" else until)

    def add(self, iteration: float | None, text: bytes, rank: int | None) -> None:  # noqa: ARG002
        value = self._read(text)
        self._records += 1
        place = self._records * (self._every or 1) if iteration is None else iteration
        is_repeated = self._follow(place)
        self._seen.append((place, value))
        if self._position(self.rule.after.by, place) <= self.after:
            # A step count that falls back behind its beginning opens the window a second time.
            self._start, self._entries, self._repeats = (place, value), [], 0
            self._texts = [text]
            self.found = 0
            return
        self._texts.append(text)
        if math.isnan(value) and self._unread is None:
            self._unread = (place, text)
        # A step that is printed twice is a copy, or was executed twice: the recipe says which.
        if not is_repeated or self._counts_again(place):
            self._entries.append((place, value))
            self.found += 1
        position = self._position(self.rule.until.by, place)
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
            self._first = place
            return False
        # A first step whose gradients overflowed is taken back. NVIDIA's PyTorch BERT counts
        # 0, 1, 0, 0, 1, 2 under AMP (PaddlePaddle/Perf@e7a07c4, PyTorch, fp16_bs96_gpu1): each line
        # is a step that was executed.
        if self._counts and place == self._first == last_place - 1:
            self._repeats += 1
            return True
        if place < last_place:
            detail = (
                f"iterations go back from {last_place} to {place}: the log has more than one run"
            )
            raise CannotReduceError("window", detail)
        if place > last_place and not self._every:
            step = int(place - last_place)
            self._stride = min(self._stride or step, step)
        return place == last_place

    def _counts_again(self, place: float) -> bool:
        policy = self.rule.record.repeated
        if policy == "refuse":
            detail = f"iteration {place} is printed twice inside the window"
            raise CannotReduceError("window", detail)
        # Without a bound a log that prints one step forever would fill memory.
        self._repeats += policy == "count"
        if self._repeats > 10 * max(1, self.until):
            raise CannotReduceError("window", f"iteration {place} is repeated without end")
        return policy == "count"

    def reduce(self, setting: Setting) -> float:
        if not self.done:
            raise CannotReduceError("incomplete", self._shortfall())
        if not self._entries:
            raise CannotReduceError("window", "no record is inside the window")
        self._check_alone()
        if self.rule.kind == "clock":
            return self._by_clock(setting)
        self._check_gapless()
        if self._unread:
            place, text = self._unread
            raise CannotReduceError(
                "rule", f"{show_text(text)!r} of iteration {place} is not a number"
            )
        return average(self.rule, [value for _, value in self._entries], self._stride, setting)

    def _shortfall(self) -> str:
        if self.rule.until.by == "record":
            return f"the log has {self._records} of {self.until} records"
        return f"the log ends at iteration {max(int(self._last), 0)} of {self.until}"

    def _check_alone(self) -> None:
        """Refuse a window in which most iterations are printed again: no overflow does that."""
        places = [place for place, _ in self._entries]
        repeated_places = {a for a, b in pairwise(places) if a == b}
        if 2 * len(repeated_places) > len(set(places)):
            detail = "most iterations are printed twice: more than one rank prints"
            raise CannotReduceError("window", detail)

    def _check_gapless(self) -> None:
        """Refuse a window that records of equal length don't cover from end to end."""
        # Each record covers `stride` iterations, so the window's must follow one another by exactly
        # that, from its beginning to its end. A gap is a lost record.
        _require_stride(self._stride)
        places = sorted({int(place) for place, _ in self._entries})
        start = self.after
        if self.rule.after.by == "record":
            start = int(self._start[0]) if self._start else places[0] - self._stride
            places = [place for place in places if place > start]
        # A first record that is off its own stride covers fewer iterations than the others.
        is_regular = self._stride == 1 or self.rule.record.every or self._first % self._stride == 0
        end = places[-1] if places else start
        expected = range(start + self._stride, end + 1, self._stride)
        if not is_regular or not _is_range(places, expected):
            raise CannotReduceError("window", _describe_gap(start, places, expected))

    def _by_clock(self, setting: Setting) -> float:
        if self._start is None or (
            self.rule.after.by == "iteration" and self._start[0] != self.after
        ):
            detail = f"no record ends at iteration {self.after}, where the window begins"
            if self.after == 0:
                detail = "a clock needs one warm-up iteration, because time begins at its end"
            raise CannotReduceError("window", detail)
        if not self.rule.record.irregular:
            self._check_gapless()
        if self._repeats and self._stride != 1:
            detail = "iterations are printed again, but not every one is printed"
            raise CannotReduceError("window", detail)
        # Steps that did not advance took time as well.
        steps = self._entries[-1][0] - self._start[0] + self._repeats
        moments = [self._start[1], *(moment for _, moment in self._entries)]
        seconds = duration(moments)
        resolution = Clock(self.rule.record.time).resolution(self._texts)
        if resolution > COARSEST * seconds:
            detail = (
                f"times are printed to {resolution:g} s, too coarse for a window of {seconds:g} s"
            )
            raise CannotReduceError("window", detail)
        micro = self.rule.record.counts == "micro-batches"
        return setting.batch("global", micro=micro) * steps / seconds


class _RankedSeries(_WindowCollector):
    """Records that several ranks print, interleaved as it happened."""

    def __init__(self, rule: Rule, setting: Setting) -> None:
        super().__init__(rule, setting)
        self.ranks = setting.nodes if rule.record.ranks == "node" else setting.gpus
        self._places: set[int] = set()
        self._values: dict[int, dict[int, float]] = {}

    @property
    def span(self) -> Span:
        return Span(self.after, self.until)

    @property
    def covered(self) -> int:
        return self.until - self.after

    @property
    def begun(self) -> bool:
        return max(self._places, default=0) >= self.after

    @property
    def last(self) -> int:
        rank_count = max(map(len, self._values.values()), default=0)
        return max(
            (place for place, values in self._values.items() if len(values) == rank_count),
            default=0,
        )

    def add(self, iteration: float | None, text: bytes, rank: int | None) -> None:
        value = self._read(text)
        place = int(iteration or 0)
        if place > self.until:
            return
        self._places.add(place)
        if place < self.after or (place == self.after and self.rule.kind != "clock"):
            return
        values = self._values.setdefault(place, {})
        self.found = len(self._values)
        # Lines without a rank are counted under numbers that can't be a rank's.
        rank_key = -1 - len(values) if rank is None else rank
        if rank_key in values or len(values) >= (self.ranks or _MAX_RANKS):
            problem = (
                f"by rank {rank} twice"
                if rank_key in values
                else f"by more than {self.ranks} ranks"
            )
            raise CannotReduceError("window", f"iteration {place} is printed {problem}")
        values[rank_key] = value
        # Ranks print at different times: the last iteration is whole when all of them have printed.
        self.done = place == self.until and len(values) == self.ranks

    def reduce(self, setting: Setting) -> float:
        ranks = setting.need("nodes" if self.rule.record.ranks == "node" else "gpus")
        ranks_at_end = len(self._values.get(self.until, ()))
        if ranks_at_end != ranks:
            detail = f"{ranks_at_end} of {ranks} ranks came to iteration {self.until}"
            raise CannotReduceError("incomplete", detail)
        stride = _require_stride(self.rule.record.every or _smallest_gap(self._places))
        begin = self.after if self.rule.kind == "clock" else self.after + stride
        expected = range(begin, self.until + 1, stride)
        full_places = sorted(
            place for place, values in self._values.items() if len(values) == ranks
        )
        if not _is_range(full_places, expected):
            raise CannotReduceError("window", _describe_gap(self.after, full_places, expected))
        series = [self._over_ranks(place) for place in expected]
        if self.rule.kind != "clock":
            return average(self.rule, series, stride, setting)
        micro = self.rule.record.counts == "micro-batches"
        steps = self.until - self.after
        return setting.batch("global", micro=micro) * steps / duration(series)

    @property
    def seen(self) -> Sequence[Entry]:
        return [(place, self._over_ranks(place)) for place in sorted(self._values)]

    def _over_ranks(self, place: int) -> float:
        values = list(self._values[place].values())
        if self.rule.over_ranks == "median":
            return median(values)
        total = math.fsum(values)
        return total if self.rule.over_ranks == "sum" else total / len(values)


def _smallest_gap(places: set[int]) -> int:
    sorted_places = sorted(places)
    return min((b - a for a, b in pairwise(sorted_places)), default=0)


def _require_stride(stride: int) -> int:
    if not stride:
        raise CannotReduceError("window", "one record does not say how many iterations it covers")
    return stride


def _is_range(places: Sequence[int], expected: range) -> bool:
    return len(places) == len(expected) and all(map(eq, places, expected))


def _describe_gap(start: int, places: Sequence[int], expected: range) -> str:
    present = set(places)
    missing = next((place for place in expected if place not in present), None)
    if missing is not None and len(expected) > 1:
        return f"the record of iteration {missing} is missing from the window"
    shown_places = ", ".join(map(str, places[:3])) or "none"
    return f"records end at iterations {shown_places}: they don't divide the window after {start}"


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


def step_durations(rule: Rule, setting: Setting, collector: Collector) -> Steps | None:
    """Return the iterations in a rule's records; None if they have none."""
    entries, span = collector.seen, collector.span
    if not entries:
        return None
    try:
        step_times = [
            (place, seconds)
            for place, seconds in _seconds_per_step(rule, setting, entries)
            if 0 < seconds < math.inf
        ]
    except (CannotReduceError, UnknownError):
        return None  # A closing line, a bandwidth, or a rate of unknown batches.
    iterations = array("q", [int(place) for place, _ in step_times])
    until = int(entries[-1][0]) if span.until is None else span.until
    return Steps(
        iterations,
        array("d", [step_seconds for _, step_seconds in step_times]),
        span.after or 0,
        until,
    )


def _seconds_per_step(rule: Rule, setting: Setting, entries: Sequence[Entry]) -> Iterator[Entry]:
    """Yield each record's end, and the seconds of one of its iterations."""
    if rule.kind == "clock":
        for (previous_place, begin), (place, end) in pairwise(entries):
            if place > previous_place:
                yield place, (end - begin) / (place - previous_place)
        return
    micro = rule.record.counts == "micro-batches"
    batch = setting.batch("global", micro=micro)
    if rule.kind == "rate":
        places = [place for place, value in entries if value > 0]
        rates = throughputs(rule, [value for _, value in entries if value > 0], setting)
        yield from ((place, batch / rate) for place, rate in zip(places, rates, strict=True))
        return
    # If a program counts only the steps of a node, one step is a share of the run's.
    share = batch / setting.batch(rule.batch, micro=micro)
    gaps = (b - a for (a, _), (b, _) in pairwise(entries) if b > a)
    stride = (rule.record.every or min(gaps, default=1)) if rule.kind == "elapsed" else 1
    for place, value in entries:
        if value > 0:
            yield place, share * (1 / value if rule.kind == "step-rate" else value / stride)
