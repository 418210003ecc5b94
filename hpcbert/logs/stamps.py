"""The moments in a log, compared with the time of its run.

A log that was copied over another's is complete and plausible; only its times are those of another
run. The sources are a record's own `time` field, with any rule, and the stamps at the beginning of
lines, in the forms of the frameworks' loggers: Python's logging, glog and absl
(`I0826 22:01:04.003313`), MLPerf's `time_ms`, dllogger, Megatron's `datetime:`, MindSpore's and
`ctime`. Only the beginning and the end of a log are read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import MAXYEAR, MINYEAR, date
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from hpcbert.logs.fields import record_matches, show_text, whole_matches
from hpcbert.logs.grammar import Grammar, Record
from hpcbert.logs.lines import Line, NotALogError, has_text, read_ends, remove_labels

DAY = 86400.0
_TIME = rb"(?P<hour>\d{1,2}):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
_DATES = {
    "time-of-day": re.compile(_TIME),
    "month-day": re.compile(rb"(?P<month>\d\d)(?P<day>\d\d) +" + _TIME),
    "date-time": re.compile(rb"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)[T -]+" + _TIME),
    "ctime": re.compile(
        rb"(?:\w{3} )?(?P<month>[A-Z]\w\w) +(?P<day>\d{1,2}) " + _TIME + rb" (?P<year>\d{4})"
    ),
}
_MOMENT = re.compile(rb"\d{1,17}(?:\.\d{1,12})?")
_ELAPSED = re.compile(rb"(\d{1,17}(?:\.\d{0,17})?)(?:[eE][+-]?\d{1,2})?")
_NUMBERS = {"epoch": _MOMENT, "epoch-ms": _MOMENT, "elapsed": _ELAPSED, "elapsed-hours": _ELAPSED}
# Share of a window that the last digit of an elapsed time may count.
COARSEST = 0.01
_MONTHS = b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
_LEAP_YEAR, _LONGEST_MONTH = 366, 31
_DAYS_TO_2000 = 730120  # Keeps the seconds small: a double then holds a tenth of a microsecond.
_FEBRUARY_28, _MARCH_1 = 59, 61


class Clock:
    """Reads the stamps of one log in their order.

    A stamp without its date (`time-of-day`) counts as the next day's if it is more than half a day
    before the one read last; one without its year (`month-day`) as the next year's. So two records
    must be less than half a day apart.

    Args:
        form: As `Record.time` of the grammar.
    """

    def __init__(self, form: str) -> None:
        self._form = form
        self._last: tuple[int, float] | None = None
        self._days = 0

    def read(self, text: bytes) -> float:
        """Return seconds since some fixed moment.

        Raises:
            ValueError: The text has another form.
        """
        if self._form in _NUMBERS:
            return _parse_number(self._form, text)
        # The days of 2000, a leap year.
        day, seconds = _parse_date(self._form, text, year=2000)
        if self._form not in _PARTIAL_FORMS:
            return day * DAY + seconds
        last_day, last_seconds = self._last or (day, seconds)
        if self._form == "month-day":
            self._days += _days_between(last_day, day)
        elif seconds < last_seconds - DAY / 2:
            self._days += 1
        self._last = day, seconds
        return self._days * DAY + seconds

    def resolution(self, texts: Iterable[bytes]) -> float:
        """Return the seconds that the last digit of the last stamp counts; 0 unless it is rounded.

        Only an elapsed time is: some programs print it with a fixed number of digits, without
        zeros at its end, so that the stamp with most digits says how many these are.
        """
        if _NUMBERS.get(self._form) is not _ELAPSED:
            return 0.0
        matches = [match for match in map(_ELAPSED.fullmatch, texts) if match]
        value = float(matches[-1][0]) if matches else 0.0
        digits = [len(match[1].replace(b".", b"").lstrip(b"0")) for match in matches]
        unit = 3600.0 if self._form == "elapsed-hours" else 1.0
        return unit * 10.0 ** (math.floor(math.log10(value)) + 1 - max(digits)) if value else 0.0


def _days_between(last_day: int, day: int) -> int:
    """Return the days from one day of the year to another, if necessary over New Year's Eve."""
    if (last_day, day) == (_FEBRUARY_28, _MARCH_1):
        return 1  # Far likelier than a record that took more than a day in a leap year.
    days = day - last_day
    return days + _LEAP_YEAR if days < -_LEAP_YEAR // 2 else days


def _parse_number(form: str, text: bytes) -> float:
    if not _NUMBERS[form].fullmatch(text):
        raise ValueError(text)
    number = float(text)
    if form == "elapsed-hours":
        return 3600 * number
    return number / 1000 if form == "epoch-ms" else number


def _parse_date(form: str, text: bytes, *, year: int) -> tuple[int, float]:
    """Return the days since the end of 1999, and the seconds of the day.

    A day that its month lacks is one of the next; a time of day alone is of day 0.

    Args:
        year: The year of a stamp without one.
    """
    match = _DATES[form].fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    fields = match.groupdict()
    fraction = fields["fraction"]
    minutes = int(fields["hour"]) * 60 + int(fields["minute"])
    seconds = minutes * 60 + int(fields["second"])
    seconds_of_day = seconds + (int(fraction) / 10 ** len(fraction) if fraction else 0.0)
    if form == "time-of-day":
        return 0, seconds_of_day
    month, day = fields["month"], int(fields["day"])
    if not 1 <= day <= _LONGEST_MONTH:
        raise ValueError(text)
    number = int(month) if month.isdigit() else _MONTHS.index(month) + 1
    first_day = date(int(fields.get("year", year)), number, 1).toordinal()
    return first_day + day - _DAYS_TO_2000, seconds_of_day


_EPOCH = date(1970, 1, 1).toordinal() + 1 - _DAYS_TO_2000


@lru_cache(maxsize=1 << 12)
def nearest_moment(form: str, text: bytes, moment: float) -> float:
    """Return the seconds since the epoch of a stamp, read as if its zone were UTC.

    Args:
        form: As `Record.time` of the grammar.
        moment: What it lacks, its year or its day, is chosen so that it is nearest to this moment.

    Raises:
        ValueError: The text has another form.
    """
    if form in _NUMBERS:
        return _parse_number(form, text)
    moment_year = 1970 + int(moment // (365.2425 * DAY))
    moment_year = max(MINYEAR + 1, min(moment_year, MAXYEAR - 1))
    years = range(moment_year - 1, moment_year + 2) if form == "month-day" else (moment_year,)
    dates = [_parse_date(form, text, year=year) for year in years]
    if form == "time-of-day":
        seconds = dates[0][1]
        return seconds + DAY * round((moment - seconds) / DAY)
    moments = [(day - _EPOCH) * DAY + seconds for day, seconds in dates]
    return min(moments, key=lambda candidate: abs(candidate - moment))


# Seconds by which a stamp may lie outside of its step: stamps in whole seconds, clocks of several
# nodes.
TOLERANCE = 10.0
# If the log's time zone is unknown: every zone that exists.
QUARTERS = tuple(quarter * 900 for quarter in range(-48, 57))
# Number of stamps to read at each end of a log.
_MAX_STAMPS = 64
# Seconds since the epoch that are not a time: some programs print seconds since their own start.
_NO_DATE = 1e8
_PARTIAL_FORMS = ("time-of-day", "month-day")
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
# Patterns that begin with \b are tried at each byte, so texts that they need are searched first.
_HOSTS = {_HOST: (b"Clearing cache on ", b"host", b"Host"), _HOST_OF_NCCL: (b"] NCCL ",)}
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
        """Return the seconds from the run to a moment: negative before it, 0 inside."""
        early, late = self.begin - self.tolerance, self.end + self.tolerance
        return min(0.0, moment - early) + max(0.0, moment - late)


class Stamp(NamedTuple):
    """One moment in a log.

    Attributes:
        form: As `Record.time` of the grammar.
        of_record: Whether it belongs to a record, and is not only the beginning of some line.
        zone: Its offset from UTC in seconds, if it is part of the stamp.
    """

    text: bytes
    form: str
    of_record: bool = False
    zone: int | None = None

    def moment(self, span: TimeSpan, zone: int) -> float:
        """Return its seconds since the epoch, if it was written in a zone."""
        middle = (span.begin + span.end) / 2
        if self.form in {"epoch", "epoch-ms"}:
            zone = 0
        elif self.zone is not None:
            zone = self.zone
        return nearest_moment(self.form, self.text, middle + zone) - zone


class MeasuredSpan(NamedTuple):
    """The time of a log's window, as far as the log has it.

    Attributes:
        begin, end: Stamps of its first and its last line.
    """

    begin: Stamp | None = None
    end: Stamp | None = None
    hosts: frozenset[bytes] = frozenset()

    def overlaps(self, other: MeasuredSpan, *, are_whole: bool = False) -> bool:
        """Return whether two windows are the same, or share time on a node.

        Args:
            are_whole: Whether both logs are known to be of all ranks: without a common node, such
                runs had nodes of their own, and only equal times are those of one run.
        """
        if self.end is None or other.end is None or self.end.form != other.end.form:
            return False
        (begin, end), (other_begin, other_end) = self._moments, other._moments
        skew = 0.0 if are_whole else min(_SKEW, (end - begin) / 4)
        if abs(begin - other_begin) <= skew and abs(end - other_end) <= skew:
            return True
        have_hosts = are_whole or (self.hosts and other.hosts)
        if (have_hosts and not self.hosts & other.hosts) or self.end.form == "time-of-day":
            return False  # On other nodes; and a time without its day says no more.
        return begin < other_end and other_begin < end

    @property
    def _moments(self) -> tuple[float, float]:
        """Its ends in seconds, on the same axis for all logs of one form."""
        moments = [
            nearest_moment(stamp.form, stamp.text, 0.0) - (stamp.zone or 0)
            for stamp in (self.begin or self.end, self.end)
            if stamp
        ]
        return moments[0], moments[-1]


def measure_span(
    first_line: bytes, last_line: bytes, record: Record, beginning: bytes
) -> MeasuredSpan:
    """Return the time of a window; if its lines have no stamps, the log's beginning.

    Args:
        first_line: The line of the window's beginning; empty for the log's own.
    """
    begin = next(_stamps_of_record(first_line, record), None) if first_line else None
    end = next(_stamps_of_record(last_line, record), None)
    if end is None or not first_line:
        begin = next(filter(_is_legible, _line_stamps(beginning)), None)
        end = end or begin
    begin = begin or end
    if begin and end and begin.form != end.form:
        begin = end
    return MeasuredSpan(begin, end, frozenset(_find_hosts(beginning)))


def _find_hosts(data: bytes) -> list[bytes]:
    hosts: list[bytes] = []
    for pattern, texts in _HOSTS.items():
        if any(has_text(data, text) for text in texts):
            hosts += re.findall(pattern, data)
    return hosts


def _stamps_of_record(line: bytes, record: Record) -> Iterator[Stamp]:
    """Yield the stamps of a record: its own before those of its line."""
    record_stamps = _stamps_of_matches(whole_matches(record.match, Line(line)), record)
    yield from filter(_is_legible, chain(record_stamps, _line_stamps(line)))


def read_stamps(path: Path, grammar: Grammar) -> tuple[Stamp, ...]:
    """Return moments from the beginning and the end of a log; empty if it can't be read."""
    try:
        head, tail = read_ends(path)
    except NotALogError:
        return ()
    log_ends = [head] if head == tail else [head, tail]
    of_records = [
        stamp
        for log_end in log_ends
        for record in grammar.records
        for stamp in _stamps_of_matches(record_matches(log_end, record), record)
    ]
    of_lines = [stamp for log_end in log_ends for stamp in _line_stamps(log_end)]
    return tuple(stamp for stamps in (of_records, of_lines) for stamp in _select_ends(stamps))


def _select_ends(candidates: Iterable[Stamp]) -> list[Stamp]:
    stamps = [stamp for stamp in candidates if _is_legible(stamp)]
    if len(stamps) <= 2 * _MAX_STAMPS:
        return stamps
    return [*stamps[:_MAX_STAMPS], *stamps[-_MAX_STAMPS:]]


def _is_legible(stamp: Stamp) -> bool:
    try:
        moment = nearest_moment(stamp.form, stamp.text, 0.0)
    except (ValueError, KeyError):
        return False
    return abs(moment) > _NO_DATE or stamp.form in _PARTIAL_FORMS


def _stamps_of_matches(matches: Iterable[re.Match[bytes]], record: Record) -> Iterator[Stamp]:
    if record.has("time") and not record.is_elapsed:
        for match in matches:
            if match["time"] is not None:
                yield Stamp(match["time"], record.time, of_record=True)


def _line_stamps(data: bytes) -> Iterator[Stamp]:
    for match in re.finditer(_STAMP, remove_labels(data)):
        kind = match.lastgroup if match.lastgroup != "zone" else "iso"
        text = match[kind or 0]
        if kind == "epoch":
            yield Stamp(text, "epoch-ms")
            continue
        if kind == "dated":
            text = b"%b-%b-%b" % (text[:4], text[4:6], text[6:])
        zone = _parse_offset(match["zone"]) if match["zone"] else None
        yield Stamp(text.replace(b"/", b"-"), _FORMS[kind or ""], zone=zone)


def _parse_offset(text: bytes) -> int:
    if text == b"Z":
        return 0
    digits = text[1:].replace(b":", b"")
    seconds = int(digits[:2]) * 3600 + int(digits[2:]) * 60
    return -seconds if text.startswith(b"-") else seconds


def explain_mismatch(log_stamps: Sequence[Stamp], span: TimeSpan) -> str:
    """Return a clause about moments of a log outside its run; empty if they may be its own.

    Those of records must all match in one zone. Of other lines most must match, each in some zone:
    the libraries in a program print in several, and one may print the date of something else.
    """
    zones = tuple(dict.fromkeys((*span.zones, 0)))

    def find_furthest(stamps: Sequence[Stamp]) -> tuple[float, bytes]:
        """Return the largest distance in the best zone, 0 if all match, and its stamp's text."""
        furthest = []
        for zone in zones:
            distances = [(span.distance(stamp.moment(span, zone)), stamp.text) for stamp in stamps]
            furthest.append(max(distances, key=_absolute_distance, default=(0.0, b"")))
        return min(furthest, key=_absolute_distance)

    seconds, text = find_furthest([stamp for stamp in log_stamps if stamp.of_record])
    if not seconds:
        distances = [find_furthest([stamp]) for stamp in log_stamps if not stamp.of_record]
        if 2 * sum(bool(distance) for distance, _ in distances) > len(distances):
            seconds, text = max(distances, key=_absolute_distance)
    if not seconds:
        return ""
    side = "before the measured step began" if seconds < 0 else "after the measured step ended"
    distance = _format_duration(abs(seconds) + span.tolerance)
    return f"the log's time {show_text(text)} is {distance} {side}"


def _absolute_distance(distance: tuple[float, bytes]) -> float:
    return abs(distance[0])


def _format_duration(seconds: float) -> str:
    if seconds >= 2 * DAY:
        return f"{seconds / DAY:.0f} days"
    return f"{seconds / 3600:.1f} hours" if seconds >= 2 * 3600 else f"{seconds:.0f} s"
