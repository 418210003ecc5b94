"""What happens to logs: launchers, terminals, full disks, repeated and foreign lines, midnight.

Each variant is the sample with something done to it. It may still give the sample's number, or a
reason; any other number is a lie.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from functools import cache
from typing import NamedTuple

from hpcbert.logs.grammar import Grammar, Record, Rule
from tests.kit import recipes
from tests.kit.cases import read_constant

_BAR = b"Iteration:  61%|######    | 703/1148 [02:05<01:20,  5.53it/s]"
# What upstreams print of an evaluation, in the words of their training lines.
EVALUATIONS: list[str] = read_constant(__file__, "EVALUATIONS")
# What a program might print after a number, or a later version of it: a space or none before it.
UNITS: list[str] = read_constant(__file__, "UNITS")
_BROKEN = (b"%sK", b"%s K", b"%sM", b"1,%s", b"%s.4", b"%sabc", b"-%s", b"%s%%")
# Forms of times that are numbers, with their units in a second; and of the others.
_SCALES = {"epoch": 1.0, "epoch-ms": 1000.0, "elapsed": 1.0, "elapsed-hours": 1 / 3600}
_FORMS = {
    "date-time": "%Y-%m-%d %H:%M:%S",
    "month-day": "%m%d %H:%M:%S",
    "time-of-day": "%H:%M:%S",
    "ctime": "%b %d %H:%M:%S",
}


class LogEntry(NamedTuple):
    """A line of the sample that is a record."""

    record: Record
    match: re.Match[bytes]

    def get(self, name: str) -> bytes | None:
        return self.match.groupdict().get(name)

    @property
    def iterations(self) -> int | None:
        text = self.get("iteration")
        return None if text is None else int(text) + 1 - self.record.first


class Sample(NamedTuple):
    """A recipe's sample: its records in the order of the log, and those inside the window."""

    data: bytes
    grammar: Grammar
    skip: int
    iters: int
    entries: list[LogEntry]

    def of_rule(self, rule: Rule) -> list[LogEntry]:
        """Return the rule's own records inside the window, its middle first.

        A rule that counts lines rather than iterations has its window after the lines it skips.
        """
        entries = [entry for entry in self.entries if entry.record is rule.record]
        if rule.kind != "footer" and rule.after.by == "record":
            entries = entries[rule.after.resolve(skip=self.skip, iters=self.iters) :]
        return self.select(entries)

    @property
    def inside(self) -> list[LogEntry]:
        return self.select(self.entries)

    def select(self, entries: list[LogEntry]) -> list[LogEntry]:
        inside = [entry for entry in entries if self.skip < (entry.iterations or 0) < self.iters]
        half = len(inside) // 2
        return inside[half:] + inside[:half]

    def find_line(self, entry: LogEntry) -> tuple[int, int]:
        """Return where a record's line begins, and where the line after it does."""
        start = self.data.rfind(b"\n", 0, entry.match.start()) + 1
        end = self.data.find(b"\n", entry.match.end())
        return start, len(self.data) if end < 0 else end + 1

    def replace(self, entry: LogEntry, name: str, text: bytes) -> bytes:
        start, end = entry.match.span(name)
        return self.data[:start] + text + self.data[end:]


@cache
def take(name: str) -> Sample:
    data, grammar, settings = recipes.sample(name), recipes.grammar(name), recipes.setting(name)
    entries = [
        LogEntry(record, match)
        for record in grammar.records
        for match in record.match.finditer(data)
        if not any(text in match[0] for text in record.ignore)
    ]
    entries.sort(key=lambda entry: entry.match.start())
    return Sample(data, grammar, settings.skip, settings.iters, entries)


# --- The number or a reason -----------------------------------------------------------------------


def cut_short(sample: Sample, _: Rule) -> Iterator[bytes]:
    """Cut at lines' ends, and within the fields of records."""
    data, entries = sample.data, sample.entries
    ends = [match.end() for match in re.finditer(rb"\n", data)]
    many = max(2, min(12, 250_000 // len(data)))  # Long samples take longer to read.
    yield from (data[:end] for end in ends[:: max(1, len(ends) // many)] + ends[-many // 3 :])
    for entry in entries[:: max(1, len(entries) * 6 // many)] + entries[-2:]:
        for start, end in map(entry.match.span, entry.match.groupdict()):
            yield from (data[:at] for at in (start + 1, end - 1, end, end + 1))


def dress(sample: Sample) -> dict[str, bytes]:
    """Return the sample as launchers and terminals show it."""
    data, lines = sample.data, sample.data.split(b"\n")[:-1]
    glued = broken = data
    for start in sorted({sample.find_line(entry)[0] for entry in sample.entries}, reverse=True):
        glued = glued[:start] + _BAR + glued[start:]
        broken = broken[:start] + _BAR + b"\r" + broken[start:]
    forms = {
        "colours": b"\x1b[32m%s\x1b[0m\n",
        "labels of mpirun": b"[1,0]<stdout>:%s\n",
        "dated labels": b"Thu Dec 17 17:24:46 2020[1,0]<stdout>:%s\n",
        "labels of pdsh": b"vs003: %s\n",
        "one terminal": b"%s\r\n",
        "two terminals": b"%s\r\r\n",
        "colours in a terminal": b"\x1b[32m%s\r\x1b[0m\n",
    }
    shown = {
        "no last newline": data.rstrip(b"\n"),
        "carriage returns for newlines": data.replace(b"\n", b"\r"),
        "a progress bar before each record": broken,
        "a progress bar glued to each record": glued,
        "labels of srun": _add_labels(sample),
        "zero bytes at the end": data + b"\0" * 4096,
    }
    for name, form in forms.items():
        shown[name] = b"".join(form % line for line in lines)
    parts = [line + b" " + b"x" * 1100 for line in lines]
    shown["long lines that srun split"] = b"".join(map(_split_line, parts))
    parts = [b"x" * 1000 + b" " + line for line in lines]
    shown["records that srun split"] = b"".join(map(_split_line, parts))
    ends = (b"\n", b"\r\n", b"\r\r\n")
    mixed = (line + ends[n % 3] for n, line in enumerate(lines))
    return {**shown, "some lines of terminals": b"".join(mixed)}


def _add_labels(sample: Sample) -> bytes:
    """Return the sample as `srun -l` prints it, each rank's records under its number."""
    ranks, counts = {}, Counter[tuple[str, int | None]]()
    for entry in sample.entries:
        key = entry.record.name, entry.iterations
        ranks[sample.find_line(entry)[0]] = counts[key] if entry.record.ranks != "one" else 0
        counts[key] += 1
    labelled, at = [], 0
    for line in sample.data.splitlines(keepends=True):
        labelled.append(b" %2d: " % ranks.get(at, 0) + line)
        at += len(line)
    return b"".join(labelled)


def _split_line(line: bytes) -> bytes:
    """Return a line as `srun -l` prints it: 1,024 bytes, then others, then the rest."""
    parts = [line[at : at + 1024] for at in range(0, len(line), 1024)] or [b""]
    return b"\n 1: of another rank\n".join(b" 0: " + part for part in parts) + b"\n"


def double(sample: Sample, _: Rule) -> Iterator[bytes]:
    """Print all of it twice: by two runs, or by two ranks."""
    lines, lag = sample.data.splitlines(keepends=True), 3
    late = zip(lines + [b""] * lag, [b""] * lag + lines, strict=True)
    yield sample.data * 2
    yield b"".join(line * 2 for line in lines)
    yield b"".join(b"0: " + line + b"1: " + line for line in lines)
    yield b"".join(line + late_line for line, late_line in late)


def add_evaluations(sample: Sample, _: Rule) -> Iterator[bytes]:
    """Add a line of an evaluation in the middle of the window, or at the end."""
    data, inside = sample.data, sample.inside
    middle = sample.find_line(inside[0])[0] if inside else len(data) // 2
    middle = data.rfind(b"\n", 0, middle) + 1
    for line in EVALUATIONS:
        yield data[:middle] + line.encode() + b"\n" + data[middle:]
        yield data + line.encode() + b"\n"


def lose_or_copy_record(sample: Sample, rule: Rule) -> Iterator[bytes]:
    """Leave a record out, or write a buffer twice, whole or torn: with the time of the line before."""
    data = sample.data
    for entry in sample.of_rule(rule)[:3]:
        start, end = sample.find_line(entry)
        yield data[:start] + data[end:]
        for torn in (end, entry.match.end() - 3, (start + end) // 2):
            copy = data[start:torn].rstrip(b"\n") + b"\n"
            yield data[:start] + copy + data[start:]
            yield data[:end] + copy + data[end:]


def jump(sample: Sample, _: Rule) -> Iterator[bytes]:
    """Set the clock inside the window."""
    stamped = [entry for entry in sample.inside if entry.get("time")]
    for hours in (1, -1, 40) if stamped else ():
        yield delay_stamps(sample, stamped[0], timedelta(hours=hours))


def exaggerate(sample: Sample, rule: Rule) -> Iterator[bytes]:
    """Print one number out of proportion."""
    entries = [entry for entry in sample.inside if entry.record is rule.record]
    is_rate = rule.field != "time" and rule.kind != "footer"
    for entry in [entry for entry in entries if is_rate and entry.get(rule.field)][:2]:
        for factor in (0.01, 100):
            number = float(entry.match[rule.field]) * factor
            yield sample.replace(entry, rule.field, b"%.6f" % number)


def add_unit(sample: Sample, rule: Rule) -> Iterator[bytes]:
    """Print another unit after all numbers of a rule."""
    entries = [entry for entry in sample.entries if entry.record is rule.record]
    for unit in UNITS if rule.field != "time" else ():
        changed = sample.data
        for entry in reversed(entries):
            if entry.get(rule.field):
                end = entry.match.end(rule.field)
                changed = changed[:end] + unit.encode() + changed[end:]
        yield changed


def break_number(sample: Sample, _: Rule, forms: tuple[bytes, ...] = _BROKEN) -> Iterator[bytes]:
    """Let something touch a number that is not its own."""
    for form in forms:
        for entry in sample.inside[:1] or sample.entries[:1]:
            for field in ("rate", "seconds", "iteration"):
                if text := entry.get(field):
                    wrong = form.replace(b"%s", text).replace(b"%%", b"%")
                    yield sample.replace(entry, field, wrong)


VARIANTS: dict[str, Callable[[Sample, Rule], Iterator[bytes]]] = {
    "cut short": cut_short,
    "dressed": lambda sample, _: iter(dress(sample).values()),
    "twice": double,
    "evaluations": add_evaluations,
    "a lost or copied record": lose_or_copy_record,
    "a clock that jumps": jump,
    "out of proportion": exaggerate,
    "another unit": add_unit,
    "a broken number": break_number,
    "an exponent": lambda sample, rule: break_number(sample, rule, (b"%se3",)),
}


# --- No number ------------------------------------------------------------------------------------


def end_inside(sample: Sample) -> Iterator[bytes]:
    """End the log inside the window."""
    for entry in sample.inside[:3]:
        yield sample.data[: sample.find_line(entry)[1]]


def empty_window(sample: Sample) -> Iterator[bytes]:
    """Take the records out of the window, and leave its end."""
    lost = [entry for entry in sample.inside if entry.record.name != "evaluation"]
    data = sample.data
    for start in sorted({sample.find_line(entry)[0] for entry in lost}, reverse=True):
        data = data[:start] + data[data.find(b"\n", start) + 1 :]
    if lost:
        yield data


def spoil_loss(sample: Sample) -> Iterator[bytes]:
    """Let the loss of the first record that has one be no number."""
    for name, words in {"loss": (b"nan", b"NaN", b"inf", b"-inf"), "nan": (b"1",)}.items():
        entries = [entry for entry in sample.inside or sample.entries if entry.get(name)]
        for entry in entries[:1]:
            yield from (sample.replace(entry, name, word) for word in words)


# Variants that no rule gives a number for, and the codes of the reasons.
REFUSED: dict[str, tuple[Callable[[Sample], Iterator[bytes]], frozenset[str]]] = {
    "ends inside": (end_inside, frozenset()),
    "no window": (empty_window, frozenset({"window", "incomplete"})),
    "loss": (spoil_loss, frozenset({"loss"})),
}


# --- Another number, or the same ------------------------------------------------------------------


def repeat_step(sample: Sample, entry: LogEntry) -> bytes:
    """Return the sample with a step printed once more, the last digit of a field another one."""
    start, end = sample.find_line(entry)
    line = bytearray(sample.data[start:end])
    name = next(name for name in ("time", "rate", "seconds", "loss") if entry.get(name))
    last = entry.match.end(name) - 1 - start
    line[last : last + 1] = b"%d" % ((int(line[last : last + 1]) + 1) % 10)
    return sample.data[:end] + bytes(line) + sample.data[end:]


def move_to_midnight(sample: Sample, middle: LogEntry) -> bytes | None:
    """Return the sample run so late that midnight falls into the window; None without a clock."""
    if middle.record.time in ("", *_SCALES):
        return None
    at = _parse_stamp(middle)
    midnight = at.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    return delay_stamps(sample, sample.entries[0], midnight - at)


def delay_stamps(sample: Sample, first: LogEntry, delay: timedelta) -> bytes:
    """Return the sample with the stamps of one record and all that follow it set off."""
    data = sample.data
    for entry in reversed(sample.entries):
        text = entry.get("time")
        if not text or entry.match.start() < first.match.start():
            continue
        if scale := _SCALES.get(entry.record.time):
            seconds, point, fraction = text.partition(b".")
            shifted = b"%d" % int(int(seconds) + delay.total_seconds() * scale) + point + fraction
        else:
            shifted = _format_stamp(entry, _parse_stamp(entry) + delay)
        data = data[: entry.match.start("time")] + shifted + data[entry.match.end("time") :]
    return data


def _parse_stamp(entry: LogEntry) -> datetime:
    text = entry.match["time"].decode().replace("T", " ").replace(",", ".")
    stamp, _, fraction = text.partition(".")
    form = _FORMS[entry.record.time]
    if entry.record.time == "ctime":
        stamp, form, fraction = text[-20:], f"{form} %Y", ""
    elif "%Y" not in form:
        stamp, form = f"2023 {stamp}", f"%Y {form}"
    moment = datetime.strptime(stamp, form).replace(tzinfo=timezone.utc)
    return moment + timedelta(microseconds=int(fraction.ljust(6, "0")[:6] or 0))


def _format_stamp(entry: LogEntry, moment: datetime) -> bytes:
    text = entry.match["time"].decode()
    if entry.record.time == "ctime":
        return moment.strftime("%a %b %d %H:%M:%S %Y").encode()[-len(text) :]
    written = moment.strftime(_FORMS[entry.record.time])
    written = written.replace(" ", "T") if "T" in text else written
    mark = "," if "," in text else "."
    _, _, fraction = text.replace(",", ".").partition(".")
    digits = f"{moment.microsecond:06d}"[: len(fraction)]
    return (written + (mark + digits if fraction else "")).encode()
