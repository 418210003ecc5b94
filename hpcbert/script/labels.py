"""What a point is called in the first eight characters of its job's name.

squeue shows no more of a name by default (squeue(1), `--format=%.8j`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcbert.model import Point

SHOWN = 8
_LETTER = {"fp32": "f", "tf32": "t", "fp16": "h", "bf16": "b"}
_SHORT = {"fp32": "f32", "tf32": "t32", "fp16": "f16", "bf16": "b16"}


def labels(points: Sequence[Point]) -> tuple[str, ...]:
    """Return a label for each point of a campaign, all different in what squeue shows.

    Nodes and GPUs with the precision, `4n8gf32`; where that names two points, or is too long, with
    a letter, `h` for fp16, and the batch size, `4n8gf.64`; else after the point's number, `3.4n8g`.
    """
    ways = (
        tuple(f"{one.shape}{_SHORT[one.precision]}" for one in points),
        tuple(f"{one.shape}{_LETTER[one.precision]}.{one.batch_size_per_device}" for one in points),
    )
    for way in ways:
        if len(set(way)) == len(points) and max(map(len, way)) <= SHOWN:
            return way
    return tuple(f"{number}.{one.shape}" for number, one in enumerate(points, start=1))
