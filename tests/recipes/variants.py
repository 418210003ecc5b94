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


class Found(NamedTuple):
    """A line of the sample that is a record."""

    record: Record
    match: re.Match[bytes]


def records(data: bytes, grammar: Grammar) -> list[Found]:
    """Return the sample's records in the order of the log."""
    founds = [
        Found(record, match)
        for record in grammar.records
        for match in record.match.finditer(data)
        if not any(text in match[0] for text in record.ignore)
    ]
    return sorted(founds, key=lambda one: one.match.start())


def place(found: Found) -> int | None:
    """Return the iterations that a record has completed."""
    text = found.match.groupdict().get("iteration")
    return None if text is None else int(text) + 1 - found.record.first


def executed_again(data: bytes, one: Found) -> bytes:
    """Return the sample with a step printed once more, the last digit of a field another one."""
    start, end = line_of(data, one)
    line = bytearray(data[start:end])
    fields = one.match.groupdict()
    name = next(name for name in ("time", "rate", "seconds", "loss") if fields.get(name))
    last = one.match.end(name) - 1 - start
    line[last : last + 1] = b"%d" % ((int(line[last : last + 1]) + 1) % 10)
    return data[:end] + bytes(line) + data[end:]


def within(found: list[Found], skip: int, iters: int) -> list[Found]:
    """Return the records inside the window, its middle first."""
    inside = [one for one in found if skip < (place(one) or 0) < iters]
    half = len(inside) // 2
    return inside[half:] + inside[:half]


def line_of(data: bytes, found: Found) -> tuple[int, int]:
    """Return where a record's line begins, and where the line after it does."""
    start = data.rfind(b"\n", 0, found.match.start()) + 1
    end = data.find(b"\n", found.match.end())
    return start, len(data) if end < 0 else end + 1


def cuts(data: bytes, found: list[Found]) -> Iterator[bytes]:
    """Yield the sample cut short: at lines' ends, and within the fields of records."""
    ends = [match.end() for match in re.finditer(rb"\n", data)]
    many = max(2, min(25, 500_000 // len(data)))  # Long samples take longer to read.
    for end in ends[:: max(1, len(ends) // many)] + ends[-many // 3 :]:
        yield data[:end]
    some = found[:: max(1, len(found) * 6 // many)] + found[-2:]
    for one in some:
        for name in one.match.groupdict():
            start, end = one.match.span(name)
            for at in (start + 1, (start + end) // 2, end - 1, end, end + 1):
                yield data[:at]


def dressed(data: bytes, found: list[Found]) -> Iterator[tuple[str, bytes]]:
    """Yield the sample as launchers and terminals show it."""
    lines = data.split(b"\n")[:-1]
    starts = sorted({line_of(data, one)[0] for one in found}, reverse=True)
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
    yield "labels of srun", _labelled(data, found)
    yield "labels of mpirun", b"".join(b"[1,0]<stdout>:" + line + b"\n" for line in lines)
    stamp = b"Thu Dec 17 17:24:46 2020"
    yield "dated labels", b"".join(stamp + b"[1,0]<stdout>:" + line + b"\n" for line in lines)
    yield "labels of pdsh", b"".join(b"vs003: " + line + b"\n" for line in lines)
    yield (
        "long lines that srun split",
        b"".join(_split(line + b" " + b"x" * 1100) for line in lines),
    )
    yield "records that srun split", b"".join(_split(b"x" * 1000 + b" " + line) for line in lines)
    yield "zero bytes at the end", data + b"\0" * 4096


def _labelled(data: bytes, found: list[Found]) -> bytes:
    """Return the sample as `srun -l` prints it, each rank's records under its number."""
    ranks, seen = {}, dict[tuple[str, int | None], int]()
    for one in found:
        key = one.record.name, place(one)
        rank = seen.get(key, 0) if one.record.ranks != "one" else 0
        seen[key] = rank + 1
        ranks[line_of(data, one)[0]] = rank
    labelled, at = [], 0
    for line in data.splitlines(keepends=True):
        labelled.append(b" %2d: " % ranks.get(at, 0) + line)
        at += len(line)
    return b"".join(labelled)


def _split(line: bytes) -> bytes:
    """Return a line as `srun -l` prints it: 1,024 bytes, then others, then the rest."""
    parts = [line[at : at + 1024] for at in range(0, len(line), 1024)] or [b""]
    return b"\n 1: of another rank\n".join(b" 0: " + part for part in parts) + b"\n"


def doubled(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the sample with all of it there twice."""
    lines = data.splitlines(keepends=True)
    yield "two runs, one after the other", data + data
    yield "two ranks that print the same", b"".join(line * 2 for line in lines)
    yield "two ranks with labels", b"".join(b"0: " + one + b"1: " + one for one in lines)
    lag = 3
    late = zip(lines + [b""] * lag, [b""] * lag + lines, strict=True)
    yield "two ranks, one behind", b"".join(one + two for one, two in late)


def foreign(data: bytes, inside: list[Found]) -> Iterator[bytes]:
    """Yield the sample with a line of an evaluation in the middle of the window, or at its end."""
    middle = line_of(data, inside[0])[0] if inside else len(data) // 2
    middle = data.rfind(b"\n", 0, middle) + 1
    for line in EVALUATIONS:
        yield data[:middle] + line + b"\n" + data[middle:]
        yield data + line + b"\n"


def not_finite(data: bytes, some: list[Found]) -> Iterator[bytes]:
    """Yield the sample with the loss of the first record that has one gone bad."""
    bad = {"loss": (b"nan", b"NaN", b"inf", b"-inf"), "nan": (b"1",)}
    for name, words in bad.items():
        of_it = [one for one in some if one.match.groupdict().get(name)]
        for one in of_it[:1]:
            for word in words:
                yield data[: one.match.start(name)] + word + data[one.match.end(name) :]


def counted(found: list[Found], rule: Rule, skip: int, iters: int) -> list[Found]:
    """Return the rule's own records inside the window, its middle first.

    A rule that counts lines rather than iterations has its window after the lines it skips.
    """
    own = [one for one in found if one.record is rule.record]
    if rule.kind != "footer" and rule.after.by == "record":
        own = own[rule.after.resolve(skip=skip, iters=iters) :]
    return within(own, skip, iters)


def without_one(data: bytes, own: list[Found]) -> Iterator[bytes]:
    """Yield the sample with one of the rule's records missing from the window."""
    for one in own[:3]:
        start, end = line_of(data, one)
        yield data[:start] + data[end:]


def over_midnight(data: bytes, found: list[Found], middle: Found) -> bytes | None:
    """Return the sample run so late that midnight falls into the window; None without a clock."""
    stamps = [one for one in found if one.match.groupdict().get("time")]
    if middle.record.time in ("", "epoch", "epoch-ms"):
        return None
    at = _moment(middle)
    shift = at.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1) - at
    for stamp in reversed(stamps):
        text = _written(stamp, _moment(stamp) + shift)
        data = data[: stamp.match.start("time")] + text + data[stamp.match.end("time") :]
    return data


def later(data: bytes, found: list[Found], first: Found, seconds: int) -> bytes:
    """Return the sample with the stamps of one record and all that follow it set off."""
    stamps = [one for one in found if one.match.groupdict().get("time")]
    for stamp in reversed(stamps):
        if stamp.match.start() >= first.match.start():
            text = _shifted(stamp, seconds)
            data = data[: stamp.match.start("time")] + text + data[stamp.match.end("time") :]
    return data


def _shifted(one: Found, seconds: int) -> bytes:
    if one.record.time in ("epoch", "epoch-ms"):
        scale = 1000 if one.record.time == "epoch-ms" else 1
        whole, point, rest = one.match["time"].partition(b".")
        return b"%d" % (int(whole) + seconds * scale) + point + rest
    return _written(one, _moment(one) + timedelta(seconds=seconds))


_FORMS = {
    "date-time": "%Y-%m-%d %H:%M:%S",
    "month-day": "%m%d %H:%M:%S",
    "time-of-day": "%H:%M:%S",
    "ctime": "%b %d %H:%M:%S",
}


def _moment(found: Found) -> datetime:
    text = found.match["time"].decode().replace("T", " ").replace(",", ".")
    whole, _, fraction = text.partition(".")
    form = _FORMS[found.record.time]
    if found.record.time == "ctime":
        whole, form, fraction = text[-20:], f"{form} %Y", ""
    elif "%Y" not in form:
        whole, form = f"2023 {whole}", f"%Y {form}"
    moment = datetime.strptime(whole, form).replace(tzinfo=timezone.utc)
    return moment + timedelta(microseconds=int(fraction.ljust(6, "0")[:6] or 0))


def _written(found: Found, moment: datetime) -> bytes:
    text = found.match["time"].decode()
    if found.record.time == "ctime":
        return moment.strftime("%a %b %d %H:%M:%S %Y").encode()[-len(text) :]
    written = moment.strftime(_FORMS[found.record.time])
    if "T" in text:
        written = written.replace(" ", "T")
    mark = "," if "," in text else "."
    _, _, fraction = text.replace(",", ".").partition(".")
    return (
        written + (mark + f"{moment.microsecond:06d}"[: len(fraction)] if fraction else "")
    ).encode()
