"""Power and memory of a run's GPUs, as sample.sh recorded them on the nodes; pure except reading.

The job adds up the samples of all nodes (add_samples of nodes.bash). It does not know when the
window begins: a program prints its iterations, not the times of its first and last one. The window
is the stretch of its length in which the GPUs used the most power: outside of it they load,
compile, warm up, and end.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from hpcbert.model import Sampled
from hpcbert.system import files

ENDING = ".power.json"
_MAX_BYTES = 1 << 26
# Samples inside a window below which no result is given.
_MIN_SAMPLES = 5
# Watts and MiB above which a sample is invalid.
_MAX_WATTS, _MAX_MEMORY = 1e9, 1e8


class PowerSamples(NamedTuple):
    """The samples of a run's GPUs.

    Attributes:
        gpus: Number of the GPUs.
        rows: Seconds since the first sample, watts of all GPUs, and MiB of the fullest.
    """

    gpus: int
    rows: Sequence[tuple[float, float, float]]


def read_power(path: Path, *, seconds: float) -> Sampled | None:
    """Return the power in a window of so many seconds; None if there are too few samples."""
    try:
        samples = parse_samples(files.read(path, max_bytes=_MAX_BYTES))
    except OSError:
        return None
    return find_window(samples, seconds) if samples else None


def parse_samples(raw: bytes) -> PowerSamples | None:
    """Return the samples in a file; None if it is damaged."""
    try:
        data = json.loads(raw)
        rows = [(float(time), float(watts), float(mib)) for time, watts, mib in data["samples"]]
        gpus = int(data["gpus"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    limits = (math.inf, _MAX_WATTS, _MAX_MEMORY)
    is_sound = all(
        0 <= value <= most for row in rows for value, most in zip(row, limits, strict=True)
    )
    return PowerSamples(gpus, rows) if is_sound and gpus > 0 and rows else None


def find_window(samples: PowerSamples, seconds: float) -> Sampled | None:
    """Return the power in the stretch of a length with the most power; None if there is none."""
    times, watts, memory = zip(*samples.rows, strict=True)
    sums = [0.0, *accumulate(watts)]
    stretches = _list_stretches(times, seconds)
    means = (
        ((sums[last] - sums[first]) / (last - first), first, last) for first, last in stretches
    )
    mean, first, last = max(means, default=(0.0, 0, 0))
    if not last:
        return None
    return Sampled(mean, max(memory[first:last]), samples.gpus, seconds, last - first)


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
