"""Cross-check the rules: compare the throughputs that they find in one log and window.

A log often has several ways to its throughput: time stamps, printed rates, times of steps, a
closing line. Whichever rule is used, the others are computed in the same reading. They need not
agree to a percent: a printed rate may leave out the loading of data. A factor of 2 or 100
means that one of them is wrong, and it is unknown which.

All are converted to time before they are compared: samples over the seconds that a way reports.
Steps of different length then make no difference, as they would to a mean of rates.
"""

from __future__ import annotations

import math
from itertools import dropwhile, pairwise
from typing import TYPE_CHECKING, NamedTuple

from hpcbert.logs.arithmetic import CannotReduceError, each, median, number, throughput
from hpcbert.logs.closing import closing_rules
from hpcbert.logs.coverage import Span
from hpcbert.logs.evenness import WindowRecord, find_unevenness
from hpcbert.logs.setting import UnknownError
from hpcbert.logs.times import Clock
from hpcbert.model import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hpcbert.logs.grammar import Grammar, Record, Rule
    from hpcbert.logs.setting import Setting
    from hpcbert.model import Note

# Records of one kind to keep; longer logs are compared over these.
_KEPT = 1 << 16
# A record that is less than this late is not a pause, whatever its factor: seconds.
_HICCUP = 1.0
_FEW = 3


class Entry(NamedTuple):
    """One record.

    Attributes:
        place: The iteration it completes.
        steps: Iterations that were executed since the record before it.
        fields: Its fields, as text.
        paused: Whether the log explains why it may be slow.
    """

    place: int
    steps: int
    fields: dict[str, bytes]
    paused: bool


class Throughput(NamedTuple):
    """One rule's view of the window.

    Attributes:
        samples: Samples per second over the whole of it.
        parts: Of the chosen rule: its records.
    """

    samples: float
    parts: tuple[WindowRecord, ...]


class _Track:
    """The records of one kind, as far as they are needed."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.entries: list[Entry] = []
        self.stride = record.every
        self.broken = False

    def add(self, place: int, fields: dict[str, bytes], *, paused: bool) -> None:
        if self.broken or len(self.entries) >= _KEPT:
            return
        steps = 0
        if self.entries:
            steps = place - self.entries[-1].place
            if steps > 0 and not self.record.every:
                self.stride = min(self.stride or steps, steps)
            # An iteration that is printed again, or counted back, was executed once more.
            if steps <= 0:
                steps = 1 if self.record.repeated == "count" else 0
        # The first iteration compiles, allocates and tunes.
        first = not self.entries or place == self.entries[0].place
        self.entries.append(Entry(place, steps, fields, paused or first))

    def within(self, span: Span, *, first: bool) -> tuple[Entry | None, list[Entry]]:
        """Return the record at which a span begins, and those inside it.

        Args:
            span: The window.
            first: Whether the first iteration of the run, which compiles and tunes, takes part
                where there are others. In a clock it never does: that begins at its end.
        """
        start: Entry | None = None
        inside: list[Entry] = []
        for entry in self.entries:
            if span.until is not None and entry.place > span.until:
                break
            if span.after is not None and entry.place <= span.after:
                start, inside = entry, []
            else:
                inside.append(entry)
        begin = self.entries[0].place
        later = list(dropwhile(lambda entry: entry.place == begin, inside))
        return start, inside if first else later or inside


class CrossCheck:
    """Follows all ways to a throughput through one log.

    Args:
        grammar: How the framework's logs are read.
        chosen: The rule that gives the result.
    """

    def __init__(self, grammar: Grammar, chosen: Rule) -> None:
        self.grammar = grammar
        self.chosen = chosen
        self.others = (*grammar.independent(chosen), *closing_rules(grammar, chosen))
        ways = (chosen, *self.others)
        self._tracks = {
            rule.record.name: _Track(rule.record)
            for rule in ways
            if rule.kind not in ("footer", "custom")
        }
        self._closing: dict[str, list[bytes]] = {}

    @property
    def closing(self) -> tuple[Rule, ...]:
        """The other rules that read a closing line."""
        return tuple(rule for rule in self.others if rule.kind == "footer")

    def add(
        self, record: Record, iteration: int | None, fields: dict[str, bytes], *, paused: bool
    ) -> None:
        """Take a record."""
        track = self._tracks.get(record.name)
        if track is None:
            return
        if iteration is None:
            iteration = (len(track.entries) + 1) * (record.every or 1)
        track.add(iteration, fields, paused=paused)

    def close(self, rule: Rule, text: bytes) -> None:
        """Take the number of a closing line."""
        self._closing.setdefault(rule.name, []).append(text)

    def reasons(self, value: float, span: Span, setting: Setting) -> tuple[Reason, ...]:
        """Return the evidence against the chosen rule's number; empty if there is none.

        Args:
            value: The number.
            span: The iterations that it covers.
            setting: What is known about the run, including the log's facts.
        """
        own = self._pace(self.chosen, span, setting)
        found = [*self._implausible(own)]
        samples = own.samples if own and self.chosen.record.ranks == "one" else value
        unsure = self._needs_accumulation(self.chosen, setting)
        heard = set()
        for rule in self.others:
            # Of several rules that read one field, the first that the log allows is compared.
            if rule.evidence in heard or rule.record.ranks != "one":
                continue
            pace = self._pace(rule, span, setting)
            if pace is None:
                continue
            heard.add(rule.evidence)
            unsure = unsure and not rule.is_printed
            # More micro-batches per step than one would explain why a clock sees fewer samples.
            explained = self.chosen.is_printed and self._needs_accumulation(rule, setting)
            if explained and samples > pace.samples:
                continue
            if not self._agree(rule, samples, pace.samples, setting):
                found.append(self._contradiction(samples, rule, pace.samples, setting))
        if unsure and self.grammar.accumulates and not found:
            found.append(Reason("rule", f"{_unstated(self.chosen)}, and no other rule says it"))
        return tuple(found)

    def _needs_accumulation(self, rule: Rule, setting: Setting) -> bool:
        """Return whether a rule takes steps for micro-batches without any statement of that."""
        counted = rule.is_printed or rule.record.counts == "micro-batches"
        known = setting.accumulation is not None or setting.global_batch_size is not None
        return not counted and not known

    def unevenness(self, value: float, span: Span, setting: Setting) -> Note | None:
        """Return how a number differs from the steps that it averages; None if it does not.

        Args:
            value: The number.
            span: The iterations that it covers.
            setting: What is known about the run, including the log's facts.
        """
        pace = self._pace(self.chosen, span, setting, first=True)
        if pace is None or self.chosen.average == "median":
            return None
        return find_unevenness(
            value if self.chosen.record.ranks == "one" else pace.samples, pace.parts
        )

    def _agree(self, rule: Rule, own: float, other: float, setting: Setting) -> bool:
        if own <= other * self._room(self.chosen, rule) and other <= own * self._room(
            rule, self.chosen
        ):
            return True
        if "footer" not in (rule.kind, self.chosen.kind):
            return False
        # A closing line covers the whole run: it may be anywhere from that to the steady rate.
        is_closing = self.chosen.kind == "footer"
        steps, last = (rule, self.chosen) if is_closing else (self.chosen, rule)
        closing, steady = (own, other) if is_closing else (other, own)
        whole = self._pace(steps, Span(), setting, first=True)
        if whole is None or whole.samples > closing * self._room(steps, last):
            return False
        if is_closing and whole.parts:
            # Slow first steps, of which a rule may have a large part, are not its steady rate.
            steady = max(steady, median([part.rate for part in whole.parts]))
        return closing <= steady * self._room(last, steps)

    def _room(self, high: Rule, low: Rule) -> float:
        """Return how many times the number of one rule may be that of another."""
        usual = self.grammar.tolerance
        above = high.tolerance if high.side != "below" else 0
        below = low.tolerance if low.side != "above" else 0
        return 1 + max(above or usual, below or usual)

    def _contradiction(self, samples: float, rule: Rule, other: float, setting: Setting) -> Reason:
        pair = (self.chosen, rule) if samples > other else (rule, self.chosen)
        detail = (
            f"{self.chosen.name} gives {samples:.6g} samples/s and {rule.name} {other:.6g} for the"
            f" same log, which is more than {self._room(*pair) - 1:.0%} apart"
        )
        if self._needs_accumulation(self.chosen, setting):
            return Reason("contradiction", f"{detail}: {_unstated(self.chosen)}")
        return Reason(
            "contradiction",
            f"{detail}: check GPUs, batch size, accumulation, and the log's times and rates",
        )

    def _pace(
        self, rule: Rule, span: Span, setting: Setting, *, first: bool = False
    ) -> Throughput | None:
        """Return a rule's view of the window; None if the log does not have it."""
        try:
            if rule.kind == "footer":
                return self._by_closing(rule, span, setting)
            track = self._tracks.get(rule.record.name)
            if track is None or not track.entries:
                return None
            start, inside = track.within(span, first=first)
            if not inside or (span.until is not None and inside[-1].place != span.until):
                return None
            parts = rule is self.chosen or self.chosen.kind == "footer"
            if rule.kind == "clock":
                ranks = rule.record.ranks != "one"
                return None if ranks else _by_clock(rule, start, inside, setting, parts=parts)
            return _by_values(rule, inside, track.stride, setting, parts=parts)
        except (CannotReduceError, UnknownError, KeyError, ValueError, ZeroDivisionError):
            return None

    def _by_closing(self, rule: Rule, span: Span, setting: Setting) -> Throughput | None:
        texts = self._closing.get(rule.name, [])
        values = {number(text) for text in texts}
        if not values or (len(values) > 1 and rule.which != "last"):
            return None
        if None not in span and (span.until or 0) - (span.after or 0) < self.grammar.shortest:
            return None  # A program's own number is of its whole run: a few steps may well differ.
        samples = throughput(rule, number(texts[-1]) * rule.factor, setting)
        return Throughput(samples, ()) if math.isfinite(samples) and samples > 0 else None

    def _implausible(self, pace: Throughput | None) -> Iterable[Reason]:
        """Yield records of the window that are out of proportion to the rest.

        A median, and a mean that leaves out the extremes, handle that themselves.
        """
        robust = self.chosen.average == "median" or self.chosen.trim > 0
        if pace is None or len(pace.parts) < _FEW or robust:
            return
        middle = median([part.rate for part in pace.parts])
        usual = median([part.seconds for part in pace.parts])
        for place, rate, seconds, paused, _ in pace.parts:
            slow = middle > rate * self.grammar.factor and not paused
            fast = rate > middle * self.grammar.factor
            if seconds and abs(seconds - usual) < _HICCUP:
                slow = slow and self.chosen.kind not in ("clock", "rate")
                fast = fast and self.chosen.kind != "clock"
            if slow or fast:
                detail = (
                    f"iteration {place} is at {rate:.6g} samples/s, more than"
                    f" {self.grammar.factor:g} times {'below' if slow else 'above'} the window's"
                    f" median of {middle:.6g}"
                )
                yield Reason("window", detail)
                return


def _unstated(chosen: Rule) -> str:
    return (
        "the log does not state the micro-batches per step, which"
        f" {chosen.name} needs: use --set accumulation=N, or a rule that reads rates"
    )


def _by_clock(
    rule: Rule, start: Entry | None, inside: Sequence[Entry], setting: Setting, *, parts: bool
) -> Throughput | None:
    entries = [start, *inside] if start else list(inside)
    if len(entries) < 2:  # noqa: PLR2004 - time goes from one to another
        return None
    clock = Clock(rule.record.time)
    moments = [clock.read(entry.fields["time"]) for entry in entries]
    batch = setting.batch("global", micro=rule.record.counts == "micro-batches")
    steps = sum(entry.steps for entry in entries[1:])
    seconds = moments[-1] - moments[0]
    if seconds <= 0:
        return None
    window_records = tuple(
        WindowRecord(
            entry.place,
            entry.steps * batch / (later - earlier),
            later - earlier,
            entry.paused,
            entry.steps,
        )
        for entry, (earlier, later) in zip(
            entries[1:] if parts else (), pairwise(moments), strict=False
        )
        if later - earlier > 0 and entry.steps
    )
    return Throughput(batch * steps / seconds, window_records)


def _by_values(
    rule: Rule, inside: Sequence[Entry], stride: int, setting: Setting, *, parts: bool
) -> Throughput | None:
    field, factor = rule.field, rule.factor
    covers = [min(inside[0].steps, stride) or stride or 1, *(entry.steps for entry in inside[1:])]
    if rule.record.ranks != "one":
        covers = [stride or 1] * len(inside)
    values = [number(entry.fields[field]) * factor for entry in inside]
    kept = [at for at, value in enumerate(values) if value > 0 and covers[at]]
    if not kept:
        return None
    rates = each(rule, [values[at] for at in kept], stride or 1, setting)
    pairs = [(covers[at], rate) for at, rate in zip(kept, rates, strict=True)]
    time = math.fsum([covered / rate for covered, rate in pairs])
    batch = _batch(rule, setting) if parts else 0
    window_records = tuple(
        WindowRecord(
            inside[at].place,
            rate,
            covered * batch / rate if batch else 0.0,
            inside[at].paused,
            covered,
        )
        for at, (covered, rate) in zip(kept if parts else (), pairs, strict=False)
    )
    return Throughput(sum(covered for covered, _ in pairs) / time, window_records)


def _batch(rule: Rule, setting: Setting) -> int:
    try:
        return setting.batch("global", micro=rule.record.counts == "micro-batches")
    except UnknownError:
        return 0
