"""Whether a program's input held it up: time that it waited, and CPUs that its ranks had.

All as far as its log says so.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path

from hpcbert.logs.lines import NotALogError, has_text, read_ends, read_pieces
from hpcbert.model import Note

# From the PyTorch reference: seconds that rank 0 waited inside the window, and the window's
# seconds.
_RESULT = re.compile(rb"^hpcbert-result (\{[^\n]{0,20000}\})$", re.MULTILINE)
# From Paddle's programs: seconds of reading and of a whole batch, the means of each record.
_PARTS = re.compile(rb"reader_cost: ([0-9.]{1,20}) s(?:ec)?, (?:avg_)?batch_cost: ([0-9.]{1,20}) s")
# From Megatron's programs, with timers: milliseconds of getting a batch, and of a whole iteration.
_GENERATOR = re.compile(rb"\bbatch[- ]generator: ([0-9.]{1,20})\b")
_ITERATION = re.compile(rb"elapsed time per iteration \(ms\): ([0-9.]{1,20})\b")
# From rank.bash, before the program starts.
_CPUS = re.compile(rb"^hpcbert: ranks have (\d{1,9}) of their node's (\d{1,9}) CPUs", re.MULTILINE)
# A program that reads ahead waits only if reading is slower than its steps.
LONG_WAIT = 0.1
# Records to leave out at the beginning: the first batch waits for the reader to start.
_FIRST = 1
_MORE_CPUS = "set nodes.cpus_per_gpu in the site.toml"


def read_input_notes(log: Path) -> tuple[Note, ...]:
    """Return the flags of a log that its input sets, each with its numbers."""
    try:
        return find_input_notes(*read_ends(log))
    except NotALogError:
        return ()


def find_input_notes(head: bytes, tail: bytes) -> tuple[Note, ...]:
    """Return what `read_input_notes` does, from the ends of a log."""
    notes = []
    match = _CPUS.search(head) if has_text(head, b"hpcbert: ranks have ") else None
    if match:
        mine, all_cpus = match[1].decode(), match[2].decode()
        notes.append(Note("few-cpus", f"{mine} of {all_cpus} CPUs a rank: {_MORE_CPUS}"))
    share = _find_share([tail])
    if share is not None and share >= LONG_WAIT:
        detail = f"waited {share:.0%} of the time for data: {_MORE_CPUS}, or faster storage"
        notes.append(Note("loader-bound", detail))
    return tuple(notes)


def read_wait_share(log: Path) -> float | None:
    """Return the share of the time that a program waited for its input; None if unknown."""
    with suppress(NotALogError), closing(read_pieces(log)) as pieces:
        return _find_share(pieces)
    return None


def _find_share(pieces: Iterable[bytes]) -> float | None:
    """Return the share of a log's parts: that of the program's result, else that of its records."""
    costs: list[tuple[float, float]] = []
    share: float | None = None
    for piece in pieces:
        texts = _PARTS.findall(piece) if has_text(piece, b"reader_cost: ") else []
        if has_text(piece, b"generator: "):
            texts += zip(_GENERATOR.findall(piece), _ITERATION.findall(piece), strict=False)
        for read_text, batch_text in texts:
            with suppress(ValueError):
                costs.append((float(read_text), float(batch_text)))
        share = _share_of_result(piece) if share is None else share
    if share is not None:
        return share
    costs = [pair for pair in costs if pair[1] > 0][_FIRST:]
    total = math.fsum(batch_seconds for _, batch_seconds in costs)
    waited = math.fsum(read_seconds for read_seconds, _ in costs)
    return min(1.0, waited / total) if total > 0 else None


def _share_of_result(piece: bytes) -> float | None:
    match = _RESULT.search(piece) if has_text(piece, b"hpcbert-result ") else None
    if match is None:
        return None
    with suppress(ValueError, KeyError, TypeError, ZeroDivisionError, OverflowError):
        result = json.loads(match[1])
        window = result["iteration_seconds_mean"] * (result["iters"] - result["skip"])
        share = float(result["data_wait_seconds"] / window)
        return share if 0 <= share <= 1 else None
    return None
