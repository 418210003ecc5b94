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
import re
from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from itertools import dropwhile, pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from hpcbert.config.toml import read
from hpcbert.errors import join_names
from hpcbert.logs.arithmetic import CannotReduceError, average_each, parse_number, throughput
from hpcbert.logs.grammar import Grammar, Record, Rule
from hpcbert.logs.setting import Setting, UnknownError
from hpcbert.logs.stamps import COARSEST, Clock
from hpcbert.logs.window import Collector, Entry, Span, Track
from hpcbert.model import Note, Reason, Steps

_RATE = r"(?P<rate>\d[\d.]*(?:[eE][+-]?\d+)?)"
_UNIT = r"(?:samples?|seqs?|sequences?|sentences?|examples?)(?: ?/ ?|[ _]per[ _])s(?:ec|econd)?\b"
_CLOSING_FORMS = Path(__file__).with_name("closing.toml")
# A closing rate includes what the steps don't: compilation, evaluation, checkpoints.
_CLOSING_TOLERANCE = 0.3


@cache
def _all_closing_rules() -> tuple[Rule, ...]:
    rules = []
    for form in read(_CLOSING_FORMS)["forms"]:
        for text in form["contains"]:
            pattern = form["match"].replace("TEXT", text)
            pattern = pattern.replace("UNIT", _UNIT).replace("RATE", _RATE)
            line = re.compile(pattern.encode(), re.MULTILINE)
            name = text.strip(" -:\"'(")
            record = Record(text.encode(), line, name, lines=form.get("lines", 1))
            rules.append(
                Rule(name, "footer", record, "rate", tolerance=_CLOSING_TOLERANCE, side="below")
            )
    return tuple(rules)


def closing_rules(grammar: Grammar, chosen: Rule) -> tuple[Rule, ...]:
    """Return rules for the closing lines that a grammar itself does not read."""
    if not chosen.is_comparable:
        return ()
    return _closing_rules_without(tuple(record.contains for record in grammar.records))


@cache
def _closing_rules_without(texts: tuple[bytes, ...]) -> tuple[Rule, ...]:
    return tuple(
        rule
        for rule in _all_closing_rules()
        if not any(text in rule.record.contains or rule.record.contains in text for text in texts)
    )


# Share by which a number may differ from the median of its window's records.
MEAN_TOLERANCE = 0.05
# Share by which the medians of the window's blocks may differ. If half of a window is slow, the
# median of the whole lies between the halves, as the mean does.
BLOCK_TOLERANCE = 0.2
# Blocks of a window, at most, and the records that each should have.
_MAX_BLOCKS, _RECORDS_PER_BLOCK = 4, 3
_SHOWN_SPANS = 3


class WindowRecord(NamedTuple):
    """One record of a window.

    Attributes:
        place: The iteration that it completes.
        rate: Its samples per second.
        seconds: Its length, 0 if unknown.
        paused: Whether the log explains why it may be slow.
        steps: The iterations that it covers.
    """

    place: int
    rate: float
    seconds: float
    paused: bool
    steps: int


def find_unevenness(value: float, parts: Sequence[WindowRecord]) -> Note | None:
    """Return a note if a window's number differs from its usual step; None if steps are alike."""
    if len(parts) < 2:  # noqa: PLR2004 - one step is the usual one
        return None
    count = max(2, min(_MAX_BLOCKS, len(parts) // _RECORDS_PER_BLOCK))
    bounds = [len(parts) * block // count for block in range(count + 1)]
    block_medians = [
        median([part.rate for part in parts[low:high]]) for low, high in pairwise(bounds)
    ]
    slowest, fastest = min(block_medians), max(block_medians)
    median_rate = median([part.rate for part in parts])
    usual_rate, block_range = median_rate, ""
    if fastest > slowest * (1 + BLOCK_TOLERANCE):
        usual_rate = fastest
        block_range = f", {slowest:,.2f} to {fastest:,.2f} in its {count} parts"
    elif max(value, median_rate) <= min(value, median_rate) * (1 + MEAN_TOLERANCE):
        return None
    unusual_records = [part for part in parts if abs(part.rate / usual_rate - 1) > MEAN_TOLERANCE]
    rates = f"{value:,.2f} samples/s in all, {median_rate:,.2f} at the median step{block_range}"
    return Note("uneven", f"{rates}; see {_format_places(unusual_records)}")


def _format_places(parts: Sequence[WindowRecord]) -> str:
    """Return the iterations of some records: `iterations 41 to 60, 81`."""
    spans: list[tuple[int, int]] = []
    for part in parts:
        first_place = part.place - max(part.steps, 1) + 1
        if spans and spans[-1][1] >= first_place - 1:
            first_place = spans.pop()[0]
        spans.append((first_place, part.place))
    texts = [f"{low}" if low == high else f"{low} to {high}" for low, high in spans]
    names = join_names(texts, most=_SHOWN_SPANS)
    return f"iteration{'' if names.isdigit() else 's'} {names}"


# Records of one kind to keep; longer logs are compared over these.
_MAX_ENTRIES = 1 << 16
# A record that is less than this late is not a pause, whatever its factor: seconds.
_MIN_PAUSE = 1.0
_MIN_RECORDS = 3


class Throughput(NamedTuple):
    """The throughput of the window by one rule."""

    samples: float
    parts: tuple[WindowRecord, ...]


def _select_entries(
    entries: Sequence[Entry], span: Span, *, with_first: bool
) -> tuple[Entry | None, list[Entry]]:
    """Return the record at which a span begins, and those inside it.

    Args:
        with_first: Whether the first iteration of the run, which compiles and tunes, takes part
            where there are others. In a clock it never does: that begins at its end.
    """
    start: Entry | None = None
    inside: list[Entry] = []
    for entry in entries:
        if span.until is not None and int(entry.place) > span.until:
            break
        if span.after is not None and entry.place <= span.after:
            start, inside = entry, []
        else:
            inside.append(entry)
    first_place = entries[0].place
    later_entries = list(dropwhile(lambda entry: entry.place == first_place, inside))
    return start, inside if with_first else later_entries or inside


class CrossCheck:
    """Follows all ways to a throughput through one log."""

    def __init__(self, grammar: Grammar, collector: Collector) -> None:
        self.grammar = grammar
        self.collector = collector
        self.chosen = chosen = collector.rule
        self.other_rules = (*grammar.independent(chosen), *closing_rules(grammar, chosen))
        # The other rules that read a closing line.
        self.closing = tuple(rule for rule in self.other_rules if rule.kind == "footer")
        self._tracks = [Track(rule) for rule in self.other_rules if rule.kind != "footer"]
        self._closing: dict[str, list[bytes]] = {}

    def add(
        self, record: Record, iteration: float | None, fields: dict[str, bytes], *, paused: bool
    ) -> None:
        """Take a record for the other rules that read it."""
        for track in self._tracks:
            if track.rule.record is record and len(track.entries) < _MAX_ENTRIES:
                track.add(iteration, fields.get(track.rule.field, b""), paused=paused)

    def close(self, rule: Rule, text: bytes) -> None:
        """Take the number of a closing line, as text."""
        self._closing.setdefault(rule.name, []).append(text)

    def reasons(self, value: float, setting: Setting) -> tuple[Reason, ...]:
        """Return the evidence against the chosen rule's number; empty if there is none."""
        own_pace = self._pace(self.chosen, self.collector.span, setting)
        reasons_against = [*self._implausible(own_pace)]
        samples = own_pace.samples if own_pace and self.chosen.record.ranks == "one" else value
        is_unsure = self._needs_accumulation(self.chosen, setting)
        compared = set()
        for rule in self.other_rules:
            is_absent = rule.kind == "footer" and rule.name not in self._closing
            # Of several rules that read one field, the first that the log allows is compared.
            if is_absent or rule.evidence in compared or rule.record.ranks != "one":
                continue
            pace = self._pace(rule, self.collector.span, setting)
            if pace is None:
                continue
            compared.add(rule.evidence)
            is_unsure = is_unsure and not rule.is_printed
            # Several micro-batches per step would explain why a clock sees fewer samples.
            is_explained = self.chosen.is_printed and self._needs_accumulation(rule, setting)
            if is_explained and samples > pace.samples:
                continue
            if not self._agree(rule, samples, pace.samples, setting):
                reasons_against.append(self._contradiction(samples, rule, pace.samples, setting))
        if is_unsure and self.grammar.accumulates and not reasons_against:
            detail = f"{_describe_missing_accumulation(self.chosen)}, and no other rule says it"
            reasons_against.append(Reason("rule", detail))
        return tuple(reasons_against)

    def _needs_accumulation(self, rule: Rule, setting: Setting) -> bool:
        """Return whether a rule's number depends on an accumulation that nothing states."""
        is_counted = rule.is_printed or rule.record.counts == "micro-batches"
        is_known = setting.accumulation is not None or setting.global_batch_size is not None
        return not is_counted and not is_known

    def unevenness(self, value: float, setting: Setting) -> Note | None:
        """Return a note if a number differs from the steps that it averages; None otherwise."""
        pace = self._pace(self.chosen, self.collector.span, setting, with_first=True)
        if pace is None or self.chosen.average == "median":
            return None
        is_single = self.chosen.record.ranks == "one"
        return find_unevenness(value if is_single else pace.samples, pace.parts)

    def _agree(
        self, rule: Rule, own_samples: float, other_samples: float, setting: Setting
    ) -> bool:
        highest = other_samples * self._room(self.chosen, rule)
        lowest = other_samples / self._room(rule, self.chosen)
        if lowest <= own_samples <= highest:
            return True
        if "footer" not in (rule.kind, self.chosen.kind):
            return False
        # A closing line covers the whole run: it may be anywhere from that to the steady rate.
        step_rule, closing_rule = self.chosen, rule
        steady_rate, closing_rate = own_samples, other_samples
        is_closing = self.chosen.kind == "footer"
        if is_closing:
            step_rule, closing_rule = rule, self.chosen
            steady_rate, closing_rate = other_samples, own_samples
        whole_run = self._pace(step_rule, Span(), setting, with_first=True)
        if whole_run is None:
            return False
        if whole_run.samples > closing_rate * self._room(step_rule, closing_rule):
            return False
        if is_closing and whole_run.parts:
            # Slow first steps, of which a rule may have a large part, are not its steady rate.
            steady_rate = max(steady_rate, median([part.rate for part in whole_run.parts]))
        # Where the window is slower than the start, the steps of the whole run confirm the line.
        fastest = max(steady_rate, whole_run.samples)
        return closing_rate <= fastest * self._room(closing_rule, step_rule)

    def _room(self, high_rule: Rule, low_rule: Rule) -> float:
        default = self.grammar.tolerance
        above = high_rule.tolerance if high_rule.side != "below" else 0
        below = low_rule.tolerance if low_rule.side != "above" else 0
        return 1 + max(above or default, below or default)

    def _contradiction(
        self, samples: float, rule: Rule, other_samples: float, setting: Setting
    ) -> Reason:
        pair = (self.chosen, rule) if samples > other_samples else (rule, self.chosen)
        hint = "check GPUs, batch size, accumulation, and the log's times and rates"
        if self._needs_accumulation(self.chosen, setting):
            hint = _describe_missing_accumulation(self.chosen)
        return Reason(
            "contradiction",
            f"{self.chosen.name} gives {samples:.6g} samples/s and {rule.name}"
            f" {other_samples:.6g} for the same log, which is more than"
            f" {self._room(*pair) - 1:.0%} apart: {hint}",
        )

    def _pace(
        self, rule: Rule, span: Span, setting: Setting, *, with_first: bool = False
    ) -> Throughput | None:
        """Return the throughput of the window by a rule; None if the log does not have it."""
        try:
            if rule.kind == "footer":
                return self._by_closing(rule, span, setting)
            is_chosen = rule is self.chosen
            tracks = [self.collector.track] if is_chosen else self._tracks
            track = next(track for track in tracks if track.rule is rule)
            is_ranked_clock = rule.kind == "clock" and rule.record.ranks != "one"
            if not track.entries or is_ranked_clock:
                return None
            start, inside = _select_entries(track.entries, span, with_first=with_first)
            if not inside or (span.until is not None and int(inside[-1].place) != span.until):
                return None
            if any(math.isnan(entry.value) for entry in inside):
                return None
            if rule.kind == "clock" and start is None and rule.record.is_elapsed:
                # Its time is 0 at the run's start.
                start = Entry(0, 0.0, b"0")
                inside[0] = inside[0]._replace(steps=int(inside[0].place))
            if rule.kind == "clock" and start:
                inside = [start, *inside]
            return _measure(rule, inside, track.stride, setting)
        except (CannotReduceError, UnknownError, ZeroDivisionError):
            return None

    def steps(self, setting: Setting) -> Steps | None:
        """Return the iterations in the chosen rule's records; None if they have none."""
        span, track = self.collector.span, self.collector.track
        entries = [entry for entry in self.collector.averaged if entry.place <= (span.until or 0)]
        if self.chosen.kind == "clock":
            # A step that was taken back is not one of the run's.
            pairs = [*zip(entries, entries[:1] + entries, strict=False)]
            entries = [a._replace(steps=a.steps * (a.place > b.place)) for a, b in pairs]
        if self.chosen.kind == "footer" or not entries:
            return None
        try:
            pace = _measure(self.chosen, entries, track.stride, setting)
            batch = setting.batch("global", micro=self.chosen.record.counts == "micro-batches")
        except (CannotReduceError, UnknownError, ZeroDivisionError):
            return None  # A bandwidth, or a rate of unknown batches.
        parts = pace.parts if pace else ()
        seconds = [
            part.seconds / part.steps if self.chosen.kind == "clock" else batch / part.rate
            for part in parts
        ]
        places = array("q", [part.place for part in parts])
        return Steps(places, array("d", seconds), span.after or 0, span.until or 0)

    def _by_closing(self, rule: Rule, span: Span, setting: Setting) -> Throughput | None:
        texts = self._closing.get(rule.name, [])
        values = {parse_number(text) for text in texts}
        if not values or (len(values) > 1 and rule.which != "last"):
            return None
        if None not in span and (span.until or 0) - (span.after or 0) < self.grammar.shortest:
            return None  # A program's own number is of its whole run: a few steps may well differ.
        samples = throughput(rule, parse_number(texts[-1]) * rule.factor, setting)
        return Throughput(samples, ()) if math.isfinite(samples) and samples > 0 else None

    def _implausible(self, pace: Throughput | None) -> Iterable[Reason]:
        """Yield records of the window that are out of proportion to the rest.

        A median, and a mean that leaves out the extremes, handle that themselves.
        """
        is_robust = self.chosen.average == "median" or self.chosen.trim > 0
        if pace is None or len(pace.parts) < _MIN_RECORDS or is_robust:
            return
        median_rate = median([part.rate for part in pace.parts])
        median_seconds = median([part.seconds for part in pace.parts])
        factor = self.grammar.factor
        for place, rate, seconds, paused, _ in pace.parts:
            is_slow = median_rate > rate * factor and not paused
            is_fast = rate > median_rate * factor
            if seconds and abs(seconds - median_seconds) < _MIN_PAUSE:
                is_slow = is_slow and self.chosen.kind not in ("clock", "rate")
                is_fast = is_fast and self.chosen.kind != "clock"
            if is_slow or is_fast:
                side = "below" if is_slow else "above"
                yield Reason(
                    "window",
                    f"iteration {place} is at {rate:.6g} samples/s, more than {factor:g} times"
                    f" {side} the window's median of {median_rate:.6g}",
                )
                return


def _describe_missing_accumulation(chosen: Rule) -> str:
    return (
        "the log does not state the micro-batches per step, which"
        f" {chosen.name} needs: use --set accumulation=N, or a rule that reads rates"
    )


def _measure(
    rule: Rule, entries: Sequence[Entry], stride: int, setting: Setting
) -> Throughput | None:
    """Return the throughput of some records; a clock's begins at the first of them."""
    if rule.kind == "clock":
        return _throughput_by_clock(rule, entries, setting)
    return _throughput_by_values(rule, entries, stride, setting)


def measure_last(track: Track, setting: Setting) -> float | None:
    """Return samples per second of the last record, or between the last two; None if unknown."""
    try:
        pace = _measure(track.rule, track.entries[-2:], track.stride, setting)
    except (CannotReduceError, UnknownError, ZeroDivisionError, IndexError):
        return None
    return pace.parts[-1].rate if pace and pace.parts else None


def _throughput_by_clock(
    rule: Rule, entries: Sequence[Entry], setting: Setting
) -> Throughput | None:
    if len(entries) < 2:  # noqa: PLR2004 - time goes from one to another
        return None
    length = entries[-1].value - entries[0].value
    texts = [entry.text for entry in entries]
    if length <= 0 or Clock(rule.record.time).resolution(texts) > COARSEST * length:
        return None
    batch = setting.batch("global", micro=rule.record.counts == "micro-batches")
    parts = []
    for earlier, entry in pairwise(entries):
        seconds = entry.value - earlier.value
        if seconds > 0 and entry.steps:
            rate = entry.steps * batch / seconds
            parts.append(WindowRecord(int(entry.place), rate, seconds, entry.paused, entry.steps))
    steps = sum(entry.steps for entry in entries[1:])
    return Throughput(batch * steps / length, tuple(parts))


def _throughput_by_values(
    rule: Rule, inside: Sequence[Entry], stride: int, setting: Setting
) -> Throughput | None:
    step_counts = [entry.steps for entry in inside]
    step_counts[0] = min(step_counts[0], stride) or stride or 1
    if rule.record.ranks != "one":
        step_counts = [stride or 1] * len(inside)
    pairs = zip(inside, step_counts, strict=True)
    measured = [(entry, steps) for entry, steps in pairs if entry.value > 0 and steps]
    if not measured:
        return None
    rates = average_each(rule, [entry.value for entry, _ in measured], stride or 1, setting)
    batch = 0  # Unknown: so are the lengths.
    with suppress(UnknownError):
        batch = setting.batch("global", micro=rule.record.counts == "micro-batches")
    parts = tuple(
        WindowRecord(int(entry.place), rate, steps * batch / rate, entry.paused, steps)
        for (entry, steps), rate in zip(measured, rates, strict=True)
    )
    seconds = math.fsum([part.steps / part.rate for part in parts])
    return Throughput(sum([part.steps for part in parts]) / seconds, parts)
