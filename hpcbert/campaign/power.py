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
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcbert.model import Sampled
from hpcbert.system import files

ENDING = ".csv"
_MAX_BYTES = 1 << 26
# Samples of a node's GPUs inside a window below which no result is given.
_MIN_SAMPLES = 5
# Watts and MiB above which a reading is invalid.
_MAX_WATTS, _MAX_MEMORY = 1e5, 1e8
_STAMP = re.compile(r"(\d{4}/\d\d/\d\d \d\d:\d\d:\d\d)(\.\d{1,6})?")
_EPOCH = re.compile(r"\d{9,11}\.\d{1,9}")
_MIB = 1 << 20


class PowerSample(NamedTuple):
    """One sample of a node's GPUs: the time, and watts and MiB of each by its name."""

    time: float
    gpus: dict[str, tuple[float, float]]


def read_power(paths: Iterable[Path], *, gpus_per_node: int, seconds: float) -> Sampled | None:
    """Return the GPUs' power in a window; None if there are too few samples.

    Args:
        paths: The sampler's files, one per node.
        gpus_per_node: Number of GPUs of a node that the run used: those with the most power.
        seconds: Length of the window.
    """
    nodes = []
    for path in paths:
        with contextlib.suppress(OSError):
            text = files.read(path, max_bytes=_MAX_BYTES).decode("utf-8", "replace")
            nodes.append(find_window(parse_samples(text), gpus_per_node, seconds))
    node_samples = [node for node in nodes if node is not None]
    if not node_samples or len(node_samples) < len(nodes):
        return None
    return Sampled(
        watts=math.fsum(sampled.watts for sampled in node_samples),
        memory_mib=max(sampled.memory_mib for sampled in node_samples),
        gpus=sum(sampled.gpus for sampled in node_samples),
        seconds=seconds,
        samples=min(sampled.samples for sampled in node_samples),
    )


def parse_samples(text: str) -> list[PowerSample]:
    """Return the samples in a file, from any tool; damaged ones are left out.

    Each line of nvidia-smi has a stamp, and a GPU that is already in a sample begins the next
    one. In rocm-smi's output a line with the seconds since the epoch precedes each table.
    """
    rows = csv.reader(text.replace("\0", "").splitlines(), skipinitialspace=True)
    samples: list[PowerSample] = []
    header: list[str] = []
    for row in rows:
        if len(row) == 1 and _EPOCH.fullmatch(row[0]):
            samples.append(PowerSample(float(row[0]), {}))
        elif row[:1] == ["device"]:
            header = row
        elif len(row) == 4 and (stamp := _parse_stamp(row[0])) is not None:  # noqa: PLR2004
            if not samples or row[1] in samples[-1].gpus:
                samples.append(PowerSample(stamp, {}))
            _add_reading(samples[-1], row[1], row[2], row[3], 1)
        elif samples and header and len(row) == len(header):
            values = dict(zip(header, row, strict=True))
            watts = next((value for name, value in values.items() if "Power (W)" in name), "")
            memory = next(
                (value for name, value in values.items() if "Used Memory (B)" in name), ""
            )
            _add_reading(samples[-1], row[0], watts, memory, _MIB)
    return [sample for sample in samples if sample.gpus]


def _add_reading(sample: PowerSample, gpu: str, watts: str, used_memory: str, unit: int) -> None:
    with contextlib.suppress(ValueError):
        power, memory = float(watts), float(used_memory) / unit
        if 0 <= power <= _MAX_WATTS and 0 <= memory <= _MAX_MEMORY:
            sample.gpus[gpu] = power, memory


def _parse_stamp(text: str) -> float | None:
    """Return seconds of nvidia-smi's time, to compare only with others of its kind."""
    match = _STAMP.fullmatch(text)
    if match is None:
        return None
    try:
        seconds = calendar.timegm(time.strptime(match[1], "%Y/%m/%d %H:%M:%S"))
    except ValueError:
        return None
    return seconds + float(match[2] or 0)


def find_window(samples: Sequence[PowerSample], gpus: int, seconds: float) -> Sampled | None:
    """Return the GPUs' power in the stretch with the most power; None if there is none.

    Args:
        samples: The samples, in order.
        gpus: Number of GPUs to count: those with the most power overall.
        seconds: Length of the stretch.
    """
    names = {name for sample in samples for name in sample.gpus}
    ranked = sorted(names, key=lambda name: _sum_power(samples, name), reverse=True)[:gpus]
    full_samples = [sample for sample in samples if all(name in sample.gpus for name in ranked)]
    totals = [math.fsum(sample.gpus[name][0] for name in ranked) for sample in full_samples]
    best: tuple[float, int, int] | None = None
    for first, last in _list_stretches([sample.time for sample in full_samples], seconds):
        mean = math.fsum(totals[first:last]) / (last - first)
        best = max(best or (mean, first, last), (mean, first, last))
    if best is None or not ranked:
        return None
    mean, first, last = best
    memory = max(
        full_samples[index].gpus[name][1] for index in range(first, last) for name in ranked
    )
    return Sampled(mean, memory, len(ranked), seconds, last - first)


def _sum_power(samples: Sequence[PowerSample], name: str) -> float:
    return math.fsum(sample.gpus[name][0] for sample in samples if name in sample.gpus)


def _list_stretches(times: Sequence[float], seconds: float) -> Iterator[tuple[int, int]]:
    """Yield the stretches of a length, as first index and index after the last."""
    if len(times) < _MIN_SAMPLES:
        return
    # Two samples are this far apart; one may be missing at each end of a stretch.
    gap = (times[-1] - times[0]) / (len(times) - 1)
    last = 0
    for first, begin in enumerate(times):
        while last < len(times) and times[last] <= begin + seconds:
            last += 1
        if last - first >= _MIN_SAMPLES and times[last - 1] - begin > seconds - 2 * gap:
            yield first, last
