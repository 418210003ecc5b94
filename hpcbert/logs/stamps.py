"""The moments in a log, compared with the time of its run.

A log that was copied over another's is complete and plausible; only its times are those of another
run. The sources are a record's own `time` field, with any rule, and the stamps at the beginning of
lines, in the forms of the frameworks' loggers: Python's logging, glog and absl
(`I0826 22:01:04.003313`), MLPerf's `time_ms`, dllogger, Megatron's `datetime:`, MindSpore's and
`ctime`. Only the beginning and the end of a log are read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from hpcbert.logs.fields import show, whole_matches
from hpcbert.logs.lines import Line, NotALogError, cut_line, ends, find_lines, unlabelled
from hpcbert.logs.times import DAY, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from hpcbert.logs.grammar import Grammar, Record

# Seconds by which a stamp may lie outside of its step: stamps in whole seconds, clocks of several
# nodes.
TOLERANCE = 10.0
# If the log's time zone is unknown: every zone that exists.
QUARTERS = tuple(quarter * 900 for quarter in range(-48, 57))
# Number of stamps to read at each end of a log.
_LOOKED_AT = 64
# Seconds since the epoch that are not a time: some programs print seconds since their own start.
_NO_DATE = 1e8
_PARTS = ("time-of-day", "month-day")
_CLOCK = rb"\d\d:\d\d:\d\d"
_ISO = rb"\d{4}[-/]\d\d[-/]\d\d[T -]" + _CLOCK + rb"(?:[.,]\d{1,9})?"
_STAMP = (
    rb"(?m)^(?:\[?|DLL |[A-Z]{4,8}[: ] ?|\[[^\]\r\n]{1,60}\] datetime: "
    rb"|\[[A-Z]+\] \w+\([^)\r\n]*\):)"
    rb"(?:(?P<iso>" + _ISO + rb")(?P<zone>Z|[+-]\d\d:?\d\d)?(?!\d)"
    rb"|[IWEF](?P<month>\d{4} " + _CLOCK + rb"\.\d{1,9}) "
    rb"|[IWEF](?P<dated>\d{8} " + _CLOCK + rb"\.\d{1,9}) "
    rb"|(?P<ctime>\w{3} \w{3} [ \d]\d " + _CLOCK + rb" \d{4})"
    rb'|:::MLL[^\r\n]{1,200}?"time_ms": (?P<epoch>\d{12,14})\b)'
)
# Ranks of one run are at the same step within seconds.
_SKEW = 1.0
# NCCL's lines (node, process and its thread, device); MLPerf's, and words before a name.
_HOST_OF_NCCL = rb"\b([A-Za-z][\w.-]*):\d+:\d+ \[\d+\] NCCL "
_HOST = rb"\b(?:Clearing cache on |[Hh]ost(?:name)?[:=] ?['\"]?)([A-Za-z][\w.-]*)"
_FORMS = {"iso": "date-time", "dated": "date-time", "month": "month-day", "ctime": "ctime"}


class TimeSpan(NamedTuple):
    """When a run was measured.

    Attributes:
        begin, end: Seconds since the epoch.
        zones: Offsets from UTC, in seconds, that stamps without a zone may have; UTC is always
        possible.
        tolerance: Seconds by which a stamp may be outside.
    """

    begin: float
    end: float
    zones: Sequence[int] = ()
    tolerance: float = TOLERANCE

    def distance(self, moment: float) -> float:
        """Return how far a moment is before (negative) or after the run."""
        early, late = self.begin - self.tolerance, self.end + self.tolerance
        return min(0.0, moment - early) + max(0.0, moment - late)


class Stamp(NamedTuple):
    """One moment in a log.

    Attributes:
        text: Its text.
        form: One of `hpcbert.logs.grammar.CLOCKS`.
        own: Whether it belongs to a record, and is not only the beginning of some line.
        zone: Its offset from UTC in seconds, if it is part of the stamp.
    """

    text: bytes
    form: str
    own: bool = False
    zone: int | None = None

    def moment(self, span: TimeSpan, zone: int) -> float:
        """Return its seconds since the epoch, if it was written in a zone."""
        middle = (span.begin + span.end) / 2
        if self.form in {"epoch", "epoch-ms"}:
            zone = 0
        elif self.zone is not None:
            zone = self.zone
        return nearest(self.form, self.text, middle + zone) - zone


class MeasuredSpan(NamedTuple):
    """The time of a log's window, as far as the log has it.

    Attributes:
        begin, end: Stamps of its first and its last line.
        hosts: Names of nodes at the log's beginning.
    """

    begin: Stamp | None = None
    end: Stamp | None = None
    hosts: frozenset[bytes] = frozenset()

    def overlaps(self, other: MeasuredSpan) -> bool:
        """Return whether two windows are one, or share time on a node."""
        if self.end is None or other.end is None or self.end.form != other.end.form:
            return False
        (begin, end), (first, last) = self._moments, other._moments
        skew = min(_SKEW, (end - begin) / 4)
        if abs(begin - first) <= skew and abs(end - last) <= skew:
            return True
        # A time without its day says no more.
        apart = self.hosts and other.hosts and not self.hosts & other.hosts
        dated = self.end.form != "time-of-day"
        return dated and not apart and begin < last and first < end

    @property
    def _moments(self) -> tuple[float, float]:
        """Its ends in seconds, on the same axis for all logs of one form."""
        begin, end = ((self.begin or self.end), self.end)
        both = [
            nearest(stamp.form, stamp.text, 0.0) - (stamp.zone or 0)
            for stamp in (begin, end)
            if stamp
        ]
        return both[0], both[-1]


def measured(first: bytes, last: bytes, record: Record, beginning: bytes) -> MeasuredSpan:
    """Return when a window was measured; if its lines have no stamps, when the log began.

    Args:
        first: The line of the window's beginning; empty for the log's own.
        last: That of its end.
        record: Their kind.
        beginning: The log's.
    """
    earliest = next(filter(_legible, _lines(beginning)), None)
    begin = next(_within(first, record), None) if first else earliest
    end = next(_within(last, record), None)
    begin, end = (begin or end, end) if end else (earliest, earliest)
    if begin and end and begin.form != end.form:
        begin = end
    return MeasuredSpan(begin, end, _hosts(beginning))


def _hosts(beginning: bytes) -> frozenset[bytes]:
    hosts = re.findall(_HOST, beginning)
    if b" NCCL " in beginning:
        hosts += re.findall(_HOST_OF_NCCL, beginning)
    return frozenset(hosts)


def _within(line: bytes, record: Record) -> Iterator[Stamp]:
    """Yield the stamps of a record: its own before those of its line."""
    matches = whole_matches(record.match, Line(line)) if record.has("time") else ()
    own = (Stamp(match["time"], record.time, own=True) for match in matches if match["time"])
    yield from filter(_legible, (*own, *_lines(line)))


def stamps(path: Path, grammar: Grammar) -> tuple[Stamp, ...]:
    """Return moments from the beginning and the end of a log; none if it can't be read."""
    try:
        head, tail = ends(path)
    except NotALogError:
        return ()
    parts = [head] if head == tail else [head, tail]
    found = [*_kept(record for part in parts for record in _records(part, grammar))]
    found += _kept(line for part in parts for line in _lines(part))
    return tuple(found)


def _kept(found: Iterable[Stamp]) -> list[Stamp]:
    every = [stamp for stamp in found if _legible(stamp)]
    half = _LOOKED_AT
    return every if len(every) <= 2 * half else [*every[:half], *every[-half:]]


def _legible(stamp: Stamp) -> bool:
    try:
        return abs(nearest(stamp.form, stamp.text, 0.0)) > _NO_DATE or stamp.form in _PARTS
    except (ValueError, KeyError):
        return False


def _records(data: bytes, grammar: Grammar) -> Iterator[Stamp]:
    for record in grammar.records:
        if not record.has("time"):
            continue
        for start, _, _, end in find_lines(data, (record.contains,)):
            line, _ = cut_line(data, start, end, record.lines)
            for match in whole_matches(record.match, line):
                if match["time"] is not None:
                    yield Stamp(match["time"], record.time, own=True)


def _lines(data: bytes) -> Iterator[Stamp]:
    for match in re.finditer(_STAMP, unlabelled(data)):
        kind = match.lastgroup if match.lastgroup != "zone" else "iso"
        text = match[kind or 0]
        if kind == "epoch":
            yield Stamp(text, "epoch-ms")
            continue
        if kind == "dated":
            text = b"%b-%b-%b" % (text[:4], text[4:6], text[6:])
        zone = _offset(match["zone"]) if match["zone"] else None
        yield Stamp(text.replace(b"/", b"-"), _FORMS[kind or ""], zone=zone)


def _offset(text: bytes) -> int:
    if text == b"Z":
        return 0
    digits = text[1:].replace(b":", b"")
    seconds = int(digits[:2]) * 3600 + int(digits[2:]) * 60
    return -seconds if text.startswith(b"-") else seconds


def outside(found: Sequence[Stamp], span: TimeSpan) -> str:
    """Return why a log's moments are not those of its run, as a clause; empty if they may be.

    Those of records must all match in one zone. Of other lines most must match, each in some zone:
    the libraries in a program print in several, and one may print the date of something else.
    """
    zones = tuple(dict.fromkeys((*span.zones, 0)))
    own = [one for one in found if one.own]
    others = [one for one in found if not one.own]
    worst = min((_worst(own, span, zone) for zone in zones), key=_size)
    if not worst[0]:
        fits = [min((_worst([other], span, zone) for zone in zones), key=_size) for other in others]
        far = [fit for fit in fits if fit[0]]
        worst = max(far, key=_size) if 2 * len(far) > len(others) else worst
    seconds, stamp = worst
    if stamp is None:
        return ""
    side = "before the measured step began" if seconds < 0 else "after the measured step ended"
    distance = _duration(abs(seconds) + span.tolerance)
    return f"the log's time {show(stamp.text)} is {distance} {side}"


def _size(distance: tuple[float, Stamp | None]) -> float:
    return abs(distance[0])


def _worst(found: Sequence[Stamp], span: TimeSpan, zone: int) -> tuple[float, Stamp | None]:
    """Return the stamp that is furthest from a run, and its distance; 0 and none if all match."""
    apart = [(span.distance(stamp.moment(span, zone)), stamp) for stamp in found]
    far = [one for one in apart if one[0]]
    return max(far, key=_size) if far else (0.0, None)


def _duration(seconds: float) -> str:
    if seconds >= 2 * DAY:
        return f"{seconds / DAY:.0f} days"
    return f"{seconds / 3600:.1f} hours" if seconds >= 2 * 3600 else f"{seconds:.0f} s"
