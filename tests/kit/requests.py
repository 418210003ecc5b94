"""Requests for every combination of shapes, precisions and batch sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcbert.model import Shape
from hpcbert.script.plan import Request, RequestCell, list_shapes


def combined(
    shape: Shape,
    precisions: Sequence[str] = (),
    batch_sizes: Sequence[int] = (),
    *,
    scaling: bool = False,
    **fields: Any,
) -> Request:
    """Return a request for one shape, or for its curve; without a precision, the recipe's first."""
    cells = tuple(
        RequestCell(cell_shape, precision, size)
        for precision in precisions or ("",)
        for size in batch_sizes or (0,)
        for cell_shape in (list_shapes(shape) if scaling else (shape,))
    )
    return Request(shape, cells=cells, **fields)
