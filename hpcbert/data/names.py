"""Formats of training data by name, and the defaults of samples; without numpy."""

from __future__ import annotations

from typing import Literal, get_args

FormatName = Literal["tfrecord", "ofrecord", "hdf5", "npz", "paddle-text", "megatron"]
FORMAT_NAMES: tuple[FormatName, ...] = get_args(FormatName)
# google-research/bert@eedf571, create_pretraining_data.py predicts 15 % of the tokens; the
# published data sets of 128 tokens hold 20 predictions, one more.
PREDICTED_PERCENT = 15
_PUBLISHED = {128: 20}


def usual_predictions(length: int) -> int:
    """Return the most predictions in a sample of `length` tokens: 20 of 128, 76 of 512."""
    return _PUBLISHED.get(length, max(1, length * PREDICTED_PERCENT // 100))
