"""Power and memory of a run's GPUs, as sample.sh recorded them on the nodes; pure except reading.

The sampler does not know when the window begins: a program prints its iterations, not the times of
its first and last one. The window is the stretch of its length in which the GPUs of a node used the
most power: outside of it they load, compile, warm up, and end.
"""

from __future__ import annotations

import calendar
import contextlib
import csv
import math
import re
import time
from typing import TYPE_CHECKING, NamedTuple

from hpcbert.model import Sampled
from hpcbert.system import files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

ENDING = ".csv"
_LARGEST = 1 << 26
# Samples of a node's GPUs inside a window below which no result is given.
_LEAST = 5
# Watts and MiB above which a reading is invalid.
_WATTS, _MEMORY = 1e5, 1e8
_STAMP = re.compile(r"(\d{4}/\d\d/\d\d \d\d:\d\d:\d\d)(\.\d{1,6})?")
_EPOCH = re.compile(r"\d{9,11}\.\d{1,9}")
_MIB = 1 << 20


class Look(NamedTuple):
    """One sample of a node's GPUs: the time, and watts and MiB of each by its name."""

    time: float
    gpus: dict[str, tuple[float, float]]


def read(paths: Iterable[Path], *, gpus_per_node: int, seconds: float) -> Sampled | None:
    """Return the GPUs' power in a window; None if there are too few samples.

    Args:
        paths: The sampler's files, one per node.
        gpus_per_node: Number of GPUs of a node that the run used: those with the most power.
        seconds: Length of the window.
    """
    nodes = []
    for path in paths:
        with contextlib.suppress(OSError):
            text = files.read(path, most=_LARGEST).decode("utf-8", "replace")
            nodes.append(window(looks(text), gpus_per_node, seconds))
    known = [node for node in nodes if node is not None]
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
    """Return the samples in a file, from any tool; damaged ones are left out.

    Each line of nvidia-smi has a stamp, and a GPU that is already in a sample begins the next
    one. In rocm-smi's output a line with the seconds since the epoch precedes each table.
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
    return [look for look in found if look.gpus]


def _note(look: Look, gpu: str, watts: str, held: str, unit: int) -> None:
    with contextlib.suppress(ValueError):
        drawn, memory = float(watts), float(held) / unit
        if 0 <= drawn <= _WATTS and 0 <= memory <= _MEMORY:
            look.gpus[gpu] = drawn, memory


def _stamp(text: str) -> float | None:
    """Return seconds of nvidia-smi's time, to compare only with others of its kind."""
    match = _STAMP.fullmatch(text)
    if match is None:
        return None
    try:
        whole = calendar.timegm(time.strptime(match[1], "%Y/%m/%d %H:%M:%S"))
    except ValueError:
        return None
    return whole + float(match[2] or 0)


def window(found: Sequence[Look], gpus: int, seconds: float) -> Sampled | None:
    """Return the power of a node's GPUs in the stretch with the most power; None: it is too short.

    Args:
        found: The samples, in order.
        gpus: Number of GPUs to count: those with the most power overall.
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
    """Yield the stretches of a length, as the first place and the place after the last."""
    if len(times) < _LEAST:
        return
    # Two samples are this far apart; one may be missing at each end of a stretch.
    gap = (times[-1] - times[0]) / (len(times) - 1)
    last = 0
    for first, begin in enumerate(times):
        while last < len(times) and times[last] <= begin + seconds:
            last += 1
        if last - first >= _LEAST and times[last - 1] - begin > seconds - 2 * gap:
            yield first, last
