"""Time stamps as frameworks print them, on one axis of seconds that never goes back.

Importing the standard library's strptime takes longer than reading thirty logs.
"""

from __future__ import annotations

import re
from collections.abc import Callable

DAY = 86400.0
_TIME = rb"(\d{1,2}):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
_TIME_OF_DAY = re.compile(_TIME)
_DATE_TIME = re.compile(rb"(\d{4})-(\d\d)-(\d\d)[T -]+" + _TIME)
_MONTH_DAY = re.compile(rb"(\d\d)(\d\d) +" + _TIME)
_CTIME = re.compile(rb"(?:\w{3} )?(\w{3}) +(\d{1,2}) " + _TIME + rb" (\d{4})")
_NUMBER = re.compile(rb"\d{1,17}(?:\.\d{1,12})?")
_MONTHS = b"JanFebMarAprMayJunJulAugSepOctNovDec"
_BEFORE_MONTH = (0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335)  # of a leap year
_LEAP_YEAR = 366
_DAYS_TO_2000 = 730425  # Keeps the seconds small: a double then holds a tenth of a microsecond.
_FEBRUARY_28, _MARCH_1 = 59, 61


class Clock:
    """Reads the stamps of one log in their order.

    A stamp without its date (`time-of-day`) counts as the next day's if it is more than half a day
    before the one read last; one without its year (`month-day`) as the next year's. So two records
    must be less than half a day apart.

    Args:
        form: One of `hpcbert.logs.grammar.CLOCKS`.
    """

    def __init__(self, form: str) -> None:
        self._read: Callable[[bytes], float] = {
            "epoch": _parse_epoch,
            "epoch-ms": lambda text: _parse_epoch(text) / 1000,
            "date-time": _parse_date_time,
            "ctime": _parse_ctime,
            "time-of-day": self._time_of_day,
            "month-day": self._month_day,
        }[form]
        self._last = -1.0
        self._last_day = 0
        self._days = 0

    def read(self, text: bytes) -> float:
        """Return seconds since some fixed moment.

        Raises:
            ValueError: The text has another form.
        """
        return self._read(text)

    def _time_of_day(self, text: bytes) -> float:
        seconds = _seconds_of_day(_match_parts(_TIME_OF_DAY, text))
        if seconds < self._last - DAY / 2:
            self._days += 1
        self._last = seconds
        return self._days * DAY + seconds

    def _month_day(self, text: bytes) -> float:
        parts = _match_parts(_MONTH_DAY, text)
        day = _BEFORE_MONTH[_check_between(int(parts[0]), 12) - 1] + int(parts[1])
        if self._last_day:
            self._days += _days_between(self._last_day, day)
        self._last_day = day
        return self._days * DAY + _seconds_of_day(parts[2:])


def _days_between(last_day: int, day: int) -> int:
    """Return the days from one day of the year to another, if necessary over New Year's Eve."""
    if (last_day, day) == (_FEBRUARY_28, _MARCH_1):
        return 1  # Far likelier than a record that took more than a day in a leap year.
    days = day - last_day
    return days + _LEAP_YEAR if days < -_LEAP_YEAR // 2 else days


def _match_parts(pattern: re.Pattern[bytes], text: bytes) -> tuple[bytes, ...]:
    match = pattern.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    return match.groups(b"")


def _check_between(value: int, highest: int) -> int:
    if not 1 <= value <= highest:
        raise ValueError(value)
    return value


def _seconds_of_day(parts: tuple[bytes, ...]) -> float:
    """Return the seconds since midnight of (hours, minutes, seconds, fraction)."""
    hours, minutes, seconds, fraction = parts
    whole_seconds = int(hours) * 3600 + int(minutes) * 60 + int(seconds)
    return whole_seconds + (int(fraction) / 10 ** len(fraction) if fraction else 0.0)


def _day_number(year: int, month: int, day: int) -> int:
    """Return the days since about the year 2000 in the Gregorian calendar."""
    _check_between(month, 12)
    _check_between(day, 31)
    # Years counted from March have the odd day at their end.
    year, month = (year - 1, month + 9) if month < 3 else (year, month - 3)  # noqa: PLR2004
    days = year * 365 + year // 4 - year // 100 + year // 400 + (month * 153 + 2) // 5 + day
    return days - _DAYS_TO_2000


def _parse_date_time(text: bytes) -> float:
    year, month, day, *time = _match_parts(_DATE_TIME, text)
    return _day_number(int(year), int(month), int(day)) * DAY + _seconds_of_day(tuple(time))


def _parse_ctime(text: bytes) -> float:
    month, day, *time, year = _match_parts(_CTIME, text)
    month_offset = _MONTHS.find(month)
    if month_offset < 0 or month_offset % 3:
        raise ValueError(text)
    return _day_number(int(year), month_offset // 3 + 1, int(day)) * DAY + _seconds_of_day(
        tuple(time)
    )


_EPOCH = _parse_date_time(b"1970-01-01 00:00:00")


def nearest_moment(form: str, text: bytes, moment: float) -> float:
    """Return the seconds since the epoch of a stamp, read as if its zone were UTC.

    Args:
        form: One of `hpcbert.logs.grammar.CLOCKS`.
        text: The stamp.
        moment: What it lacks, its year or its day, is chosen so that it is nearest to this moment.

    Raises:
        ValueError: The text has another form.
    """
    if form == "time-of-day":
        seconds = _seconds_of_day(_match_parts(_TIME_OF_DAY, text))
        return seconds + DAY * round((moment - seconds) / DAY)
    if form == "month-day":
        month, day, *time = _match_parts(_MONTH_DAY, text)
        moment_year = 1970 + int(moment // (365.2425 * DAY))
        midnights = (
            _day_number(year, int(month), int(day)) * DAY - _EPOCH
            for year in (moment_year - 1, moment_year, moment_year + 1)
        )
        seconds = _seconds_of_day(tuple(time))
        return min(
            (midnight + seconds for midnight in midnights),
            key=lambda candidate: abs(candidate - moment),
        )
    return Clock(form).read(text) - (0.0 if form in {"epoch", "epoch-ms"} else _EPOCH)


def _parse_epoch(text: bytes) -> float:
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    return float(text)
