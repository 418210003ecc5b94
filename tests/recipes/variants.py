"""What happens to logs: launchers, terminals, full disks, repeated and foreign lines, midnight.

Each variant is the sample with something done to it. It may still give the sample's number, or a
reason; any other number is a lie.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from hpcbert.logs.grammar import Grammar, Record, Rule

_BAR = b"Iteration:  61%|######    | 703/1148 [02:05<01:20,  5.53it/s]"
# What upstreams print of an evaluation, in the words of their training lines.
EVALUATIONS = (
    b"INFO:tensorflow:Throughput Average (sentences/sec) = 367.31",
    b"DLL 2021-12-17 12:22:10.418990 -  throughput_val : 367.305 seq/s",
    b"[validation_set] epoch: 1, step: 60, loss: 8.1, next_sent_acc: 0.5, speed: 7.413 steps/s",
    b"INFO:root:[step 7]\tmlm_loss=7.12345\tmlm_acc=12.3\tnsp_loss= 0.69\tnsp_acc=50.1\tthroughput=99.9K tks/s\tlr=0.0000000 time=0.11, latency=111.1 ms/batch",
    b" validation loss at iteration 60 | lm loss value: 7.1E+00 | lm loss PPL: 1.2E+03 |",
    b"I0826 22:00:18.221398 140051304408832 model_training_utils.py:556] Step: [60] Validation metric masked_lm_accuracy = 0.5",
    b"eval: global step 60, loss: 7.1, speed: 9.99 step/s",
    b"step: 60, eval_loss: 7.1, throughput: 999.9",
)


class LogEntry(NamedTuple):
    """A line of the sample that is a record."""

    record: Record
    match: re.Match[bytes]


def list_entries(data: bytes, grammar: Grammar) -> list[LogEntry]:
    """Return the sample's records in the order of the log."""
    entries = [
        LogEntry(record, match)
        for record in grammar.records
        for match in record.match.finditer(data)
        if not any(text in match[0] for text in record.ignore)
    ]
    return sorted(entries, key=lambda entry: entry.match.start())


def count_iterations(entry: LogEntry) -> int | None:
    """Return the iterations that a record has completed."""
    text = entry.match.groupdict().get("iteration")
    return None if text is None else int(text) + 1 - entry.record.first


def repeat_step(data: bytes, entry: LogEntry) -> bytes:
    """Return the sample with a step printed once more, the last digit of a field another one."""
    start, end = find_line(data, entry)
    line = bytearray(data[start:end])
    fields = entry.match.groupdict()
    name = next(name for name in ("time", "rate", "seconds", "loss") if fields.get(name))
    last = entry.match.end(name) - 1 - start
    line[last : last + 1] = b"%d" % ((int(line[last : last + 1]) + 1) % 10)
    return data[:end] + bytes(line) + data[end:]


def select_window(entries: list[LogEntry], skip: int, iters: int) -> list[LogEntry]:
    """Return the records inside the window, its middle first."""
    inside = [entry for entry in entries if skip < (count_iterations(entry) or 0) < iters]
    half = len(inside) // 2
    return inside[half:] + inside[:half]


def find_line(data: bytes, entry: LogEntry) -> tuple[int, int]:
    """Return where a record's line begins, and where the line after it does."""
    start = data.rfind(b"\n", 0, entry.match.start()) + 1
    end = data.find(b"\n", entry.match.end())
    return start, len(data) if end < 0 else end + 1


def cut_log(data: bytes, entries: list[LogEntry]) -> Iterator[bytes]:
    """Yield the sample cut short: at lines' ends, and within the fields of records."""
    ends = [match.end() for match in re.finditer(rb"\n", data)]
    many = max(2, min(25, 500_000 // len(data)))  # Long samples take longer to read.
    for end in ends[:: max(1, len(ends) // many)] + ends[-many // 3 :]:
        yield data[:end]
    some = entries[:: max(1, len(entries) * 6 // many)] + entries[-2:]
    for entry in some:
        for name in entry.match.groupdict():
            start, end = entry.match.span(name)
            for at in (start + 1, (start + end) // 2, end - 1, end, end + 1):
                yield data[:at]


def dress_log(data: bytes, entries: list[LogEntry]) -> Iterator[tuple[str, bytes]]:
    """Yield the sample as launchers and terminals show it."""
    lines = data.split(b"\n")[:-1]
    starts = sorted({find_line(data, entry)[0] for entry in entries}, reverse=True)
    glued = broken = data
    for start in starts:
        glued = glued[:start] + _BAR + glued[start:]
        broken = broken[:start] + _BAR + b"\r" + broken[start:]
    yield "no last newline", data.rstrip(b"\n")
    yield "carriage returns for newlines", data.replace(b"\n", b"\r")
    yield "DOS line ends", data.replace(b"\n", b"\r\n")
    yield "a progress bar before each record", broken
    yield "a progress bar glued to each record", glued
    yield "colours", b"".join(b"\x1b[32m" + line + b"\x1b[0m\n" for line in lines)
    yield "labels of srun", _add_labels(data, entries)
    yield "labels of mpirun", b"".join(b"[1,0]<stdout>:" + line + b"\n" for line in lines)
    stamp = b"Thu Dec 17 17:24:46 2020"
    yield "dated labels", b"".join(stamp + b"[1,0]<stdout>:" + line + b"\n" for line in lines)
    yield "labels of pdsh", b"".join(b"vs003: " + line + b"\n" for line in lines)
    yield (
        "long lines that srun split",
        b"".join(_split_line(line + b" " + b"x" * 1100) for line in lines),
    )
    yield (
        "records that srun split",
        b"".join(_split_line(b"x" * 1000 + b" " + line) for line in lines),
    )
    yield "zero bytes at the end", data + b"\0" * 4096


def _add_labels(data: bytes, entries: list[LogEntry]) -> bytes:
    """Return the sample as `srun -l` prints it, each rank's records under its number."""
    ranks, counts = {}, dict[tuple[str, int | None], int]()
    for entry in entries:
        key = entry.record.name, count_iterations(entry)
        rank = counts.get(key, 0) if entry.record.ranks != "one" else 0
        counts[key] = rank + 1
        ranks[find_line(data, entry)[0]] = rank
    labelled, at = [], 0
    for line in data.splitlines(keepends=True):
        labelled.append(b" %2d: " % ranks.get(at, 0) + line)
        at += len(line)
    return b"".join(labelled)


def _split_line(line: bytes) -> bytes:
    """Return a line as `srun -l` prints it: 1,024 bytes, then others, then the rest."""
    parts = [line[at : at + 1024] for at in range(0, len(line), 1024)] or [b""]
    return b"\n 1: of another rank\n".join(b" 0: " + part for part in parts) + b"\n"


def double_log(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the sample with all of it there twice."""
    lines = data.splitlines(keepends=True)
    yield "two runs, one after the other", data + data
    yield "two ranks that print the same", b"".join(line * 2 for line in lines)
    yield "two ranks with labels", b"".join(b"0: " + line + b"1: " + line for line in lines)
    lag = 3
    late = zip(lines + [b""] * lag, [b""] * lag + lines, strict=True)
    yield "two ranks, one behind", b"".join(line + late_line for line, late_line in late)


def add_evaluations(data: bytes, inside: list[LogEntry]) -> Iterator[bytes]:
    """Yield the sample with a line of an evaluation in the middle of the window, or at its end."""
    middle = find_line(data, inside[0])[0] if inside else len(data) // 2
    middle = data.rfind(b"\n", 0, middle) + 1
    for line in EVALUATIONS:
        yield data[:middle] + line + b"\n" + data[middle:]
        yield data + line + b"\n"


def spoil_loss(data: bytes, entries: list[LogEntry]) -> Iterator[bytes]:
    """Yield the sample with the loss of the first record that has one gone bad."""
    bad = {"loss": (b"nan", b"NaN", b"inf", b"-inf"), "nan": (b"1",)}
    for name, words in bad.items():
        matches = [entry for entry in entries if entry.match.groupdict().get(name)]
        for entry in matches[:1]:
            for word in words:
                yield data[: entry.match.start(name)] + word + data[entry.match.end(name) :]


def select_counted(entries: list[LogEntry], rule: Rule, skip: int, iters: int) -> list[LogEntry]:
    """Return the rule's own records inside the window, its middle first.

    A rule that counts lines rather than iterations has its window after the lines it skips.
    """
    rule_entries = [entry for entry in entries if entry.record is rule.record]
    if rule.kind != "footer" and rule.after.by == "record":
        rule_entries = rule_entries[rule.after.resolve(skip=skip, iters=iters) :]
    return select_window(rule_entries, skip, iters)


def drop_entry(data: bytes, entries: list[LogEntry]) -> Iterator[bytes]:
    """Yield the sample with one of the rule's records missing from the window."""
    for entry in entries[:3]:
        start, end = find_line(data, entry)
        yield data[:start] + data[end:]


def move_to_midnight(data: bytes, entries: list[LogEntry], middle: LogEntry) -> bytes | None:
    """Return the sample run so late that midnight falls into the window; None without a clock."""
    stamps = [entry for entry in entries if entry.match.groupdict().get("time")]
    if middle.record.time in ("", *_SCALES):
        return None
    at = _parse_stamp(middle)
    shift = at.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1) - at
    for stamp in reversed(stamps):
        text = _format_stamp(stamp, _parse_stamp(stamp) + shift)
        data = data[: stamp.match.start("time")] + text + data[stamp.match.end("time") :]
    return data


def delay_stamps(data: bytes, entries: list[LogEntry], first: LogEntry, seconds: int) -> bytes:
    """Return the sample with the stamps of one record and all that follow it set off."""
    stamps = [entry for entry in entries if entry.match.groupdict().get("time")]
    for stamp in reversed(stamps):
        if stamp.match.start() >= first.match.start():
            text = _shift_stamp(stamp, seconds)
            data = data[: stamp.match.start("time")] + text + data[stamp.match.end("time") :]
    return data


def _shift_stamp(entry: LogEntry, seconds: int) -> bytes:
    if scale := _SCALES.get(entry.record.time):
        seconds_text, point, fraction = entry.match["time"].partition(b".")
        return b"%d" % int(int(seconds_text) + seconds * scale) + point + fraction
    return _format_stamp(entry, _parse_stamp(entry) + timedelta(seconds=seconds))


# Forms that are numbers, with their units in a second.
_SCALES = {"epoch": 1.0, "epoch-ms": 1000.0, "elapsed": 1.0, "elapsed-hours": 1 / 3600}
_FORMS = {
    "date-time": "%Y-%m-%d %H:%M:%S",
    "month-day": "%m%d %H:%M:%S",
    "time-of-day": "%H:%M:%S",
    "ctime": "%b %d %H:%M:%S",
}


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
    if "T" in text:
        written = written.replace(" ", "T")
    mark = "," if "," in text else "."
    _, _, fraction = text.replace(",", ".").partition(".")
    return (
        written + (mark + f"{moment.microsecond:06d}"[: len(fraction)] if fraction else "")
    ).encode()
