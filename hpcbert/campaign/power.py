"""Power and memory of a run's GPUs, as sample.sh summed them up on the nodes; pure except reading.

The sampler does not know when the window begins: a program prints its iterations, not the times of
its first and last one. The window is the stretch of its length in which the GPUs of a node used the
most power: outside of it they load, compile, warm up, and end.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from hpcbert.model import Sampled
from hpcbert.system import files

ENDING = ".power.jsonl"
_MAX_BYTES = 1 << 30
# Samples of a node's GPUs inside a window below which no result is given.
_MIN_SAMPLES = 5
# Watts and MiB above which a sample is invalid.
_MAX_WATTS, _MAX_MEMORY = 1e7, 1e8


@dataclass
class NodeSamples:
    """The samples of one node.

    Attributes:
        rows: Seconds, watts of all its GPUs in use, and MiB of the fullest of these.
        gpus: Number of these GPUs.
        count: Number of rows that the node sent; -1 if its last line is missing.
    """

    rows: list[tuple[float, float, float]] = field(default_factory=list)
    gpus: int = 0
    count: int = -1


def read_power(path: Path, *, seconds: float) -> Sampled | None:
    """Return the GPUs' power in a window; None if a node has too few samples.

    Args:
        path: The samplers' file.
        seconds: Length of the window.
    """
    try:
        raw = files.read(path, max_bytes=_MAX_BYTES)
    except OSError:
        return None
    windows = [find_window(samples, seconds) for samples in parse_samples(raw).values()]
    node_windows = [window for window in windows if window is not None]
    if not node_windows or len(node_windows) < len(windows):
        return None
    return Sampled(
        watts=math.fsum(window.watts for window in node_windows),
        memory_mib=max(window.memory_mib for window in node_windows),
        gpus=sum(window.gpus for window in node_windows),
        seconds=seconds,
        samples=min(window.samples for window in node_windows),
    )


def parse_samples(raw: bytes) -> dict[str, NodeSamples]:
    """Return the samples of each node; lines that are damaged are left out."""
    by_node: dict[str, NodeSamples] = {}
    for line in raw.splitlines():
        with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
            data = json.loads(line)
            samples = by_node.setdefault(str(data["node"]), NodeSamples())
            if "count" in data:
                samples.gpus, samples.count = int(data["gpus"]), int(data["count"])
            else:
                samples.rows += [(time, watts, mib) for time, watts, mib in data["samples"]]
    return by_node


def find_window(samples: NodeSamples, seconds: float) -> Sampled | None:
    """Return the power of a node's GPUs in the stretch with the most power; None if there is none.

    Args:
        samples: The node's samples, in order.
        seconds: Length of the stretch.
    """
    if len(samples.rows) != samples.count or not samples.count or samples.gpus <= 0:
        return None
    times, watts, memory = zip(*samples.rows, strict=True)
    columns = ((times, math.inf), (watts, _MAX_WATTS), (memory, _MAX_MEMORY))
    if not all(_are_numbers(column, most) for column, most in columns):
        return None
    sums = [0.0, *accumulate(watts)]
    stretches = _list_stretches(times, seconds)
    means = (
        ((sums[last] - sums[first]) / (last - first), first, last) for first, last in stretches
    )
    mean, first, last = max(means, default=(0.0, 0, 0))
    if not last:
        return None
    return Sampled(mean, max(memory[first:last]), samples.gpus, seconds, last - first)


def _are_numbers(column: Sequence[object], most: float) -> bool:
    return all(type(value) in {int, float} and 0 <= value <= most for value in column)  # type: ignore[operator]


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
