"""What a run's GPUs drew and held, as sample.sh wrote it down on their nodes; pure but for reading.

Nobody tells the sampler when the window begins: a program prints its iterations, not the moments
that its first and last one had. The window is the stretch of its length in which the GPUs of a node
drew most: outside of it they load, compile, warm up, and end.
"""

from __future__ import annotations

import calendar
import contextlib
import csv
import math
import time
from typing import TYPE_CHECKING, NamedTuple

from hpcbert.model import Sampled
from hpcbert.system import files
from hpcbert.system.lazy import regex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

ENDING = ".csv"
_LARGEST = 1 << 26
# Looks at a node's GPUs inside a window below which nothing is said.
_LEAST = 5
# Watts and MiB above which a reading is none.
_WATTS, _MEMORY = 1e5, 1e8
_STAMP = regex(r"(\d{4}/\d\d/\d\d \d\d:\d\d:\d\d)(\.\d{1,6})?")
_EPOCH = regex(r"\d{9,11}\.\d{1,9}")
_MIB = 1 << 20


class Look(NamedTuple):
    """One look at the GPUs of a node: when, and of each watts and MiB by its name."""

    time: float
    gpus: dict[str, tuple[float, float]]


def read(paths: Iterable[Path], *, gpus_per_node: int, seconds: float) -> Sampled | None:
    """Return what GPUs drew in a window; None where they were not looked at often enough.

    Args:
        paths: What the sampler wrote, a file a node.
        gpus_per_node: How many of a node's GPUs the run used: those that drew most.
        seconds: Length of the window.
    """
    nodes = []
    for path in paths:
        with contextlib.suppress(OSError):
            text = files.read(path, most=_LARGEST).decode("utf-8", "replace")
            nodes.append(window(looks(text), gpus_per_node, seconds))
    known = [one for one in nodes if one is not None]
    if not known or len(known) < len(nodes):
        return None
    return Sampled(
        watts=math.fsum(one.watts for one in known),
        memory_mib=max(one.memory_mib for one in known),
        gpus=sum(one.gpus for one in known),
        seconds=seconds,
        samples=min(one.samples for one in known),
    )


def looks(text: str) -> list[Look]:
    """Return the looks that a file tells of, whichever tool made them; what is damaged is left out.

    Lines of nvidia-smi have a stamp of their own, and a GPU that is there already begins the next
    look. Of rocm-smi's a line with the seconds since the epoch stands before each table.
    """
    rows = csv.reader(text.replace("\0", "").splitlines(), skipinitialspace=True)
    found: list[Look] = []
    header: list[str] = []
    for row in rows:
        if len(row) == 1 and _EPOCH.fullmatch(row[0]):
            found.append(Look(float(row[0]), {}))
        elif row[:1] == ["device"]:
            header = row
        elif len(row) == 4 and (stamp := _stamp(row[0])) is not None:  # noqa: PLR2004
            if not found or row[1] in found[-1].gpus:
                found.append(Look(stamp, {}))
            _note(found[-1], row[1], row[2], row[3], 1)
        elif found and header and len(row) == len(header):
            values = dict(zip(header, row, strict=True))
            watts = next((value for name, value in values.items() if "Power (W)" in name), "")
            held = next((value for name, value in values.items() if "Used Memory (B)" in name), "")
            _note(found[-1], row[0], watts, held, _MIB)
    return [one for one in found if one.gpus]


def _note(look: Look, gpu: str, watts: str, held: str, unit: int) -> None:
    with contextlib.suppress(ValueError):
        drawn, memory = float(watts), float(held) / unit
        if 0 <= drawn <= _WATTS and 0 <= memory <= _MEMORY:
            look.gpus[gpu] = drawn, memory


def _stamp(text: str) -> float | None:
    """Return seconds of nvidia-smi's time, which is only compared with others of its kind."""
    match = _STAMP.fullmatch(text)
    if match is None:
        return None
    try:
        whole = calendar.timegm(time.strptime(match[1], "%Y/%m/%d %H:%M:%S"))
    except ValueError:
        return None
    return whole + float(match[2] or 0)


def window(found: Sequence[Look], gpus: int, seconds: float) -> Sampled | None:
    """Return what a node's GPUs drew in the stretch in which they drew most; None: it is too short.

    Args:
        found: The looks, in their order.
        gpus: How many GPUs count: those that drew most on the whole.
        seconds: Length of the stretch.
    """
    names = {name for look in found for name in look.gpus}
    ranked = sorted(names, key=lambda name: _drawn(found, name), reverse=True)[:gpus]
    whole = [look for look in found if all(name in look.gpus for name in ranked)]
    totals = [math.fsum(look.gpus[name][0] for name in ranked) for look in whole]
    best: tuple[float, int, int] | None = None
    for first, last in _stretches([look.time for look in whole], seconds):
        mean = math.fsum(totals[first:last]) / (last - first)
        best = max(best or (mean, first, last), (mean, first, last))
    if best is None or not ranked:
        return None
    mean, first, last = best
    held = max(whole[place].gpus[name][1] for place in range(first, last) for name in ranked)
    return Sampled(mean, held, len(ranked), seconds, last - first)


def _drawn(found: Sequence[Look], name: str) -> float:
    return math.fsum(look.gpus[name][0] for look in found if name in look.gpus)


def _stretches(times: Sequence[float], seconds: float) -> Iterator[tuple[int, int]]:
    """Yield the stretches of a length, as first place and the place after the last."""
    if len(times) < _LEAST:
        return
    # Two looks are so far apart; at the ends of a stretch one may be missing.
    gap = (times[-1] - times[0]) / (len(times) - 1)
    last = 0
    for first, begin in enumerate(times):
        while last < len(times) and times[last] <= begin + seconds:
            last += 1
        if last - first >= _LEAST and times[last - 1] - begin > seconds - 2 * gap:
            yield first, last
