"""Logs as programs print them."""

from __future__ import annotations

import json

from hpcbert.model import Shape

ITERS, SKIP = 12, 2


def pytorch(
    shape: str,
    rate: float,
    *,
    last: int | None = None,
    iters: int = ITERS,
    batch: int = 4,
    nan_at: int = 0,
    start: float = 1763717655.5,
) -> str:
    """Return a log of the PyTorch reference whose clock rule gives the rate, in samples/s."""
    gpus = Shape.parse(shape).gpus
    config = {"batch_size_per_device": batch, "accumulation": 1, "precision": "fp32"}
    config |= {"world_size": gpus, "global_batch_size": batch * gpus}
    seconds = batch * gpus / rate
    lines = [f"hpcbert-config {json.dumps(config)}"]
    lines += [
        f"iteration: {n}/{iters} loss: {'nan' if n == nan_at else '9.5'} mlm_loss: 8.8 "
        f"nsp_loss: 0.7 samples/s: {rate:.2f} time: {start + n * seconds:.6f}"
        for n in range(1, (iters if last is None else last) + 1)
    ]
    return "\n".join([*lines, ""])
