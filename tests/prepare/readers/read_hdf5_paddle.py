"""Read every row of HDF5 files with PaddleNLP's data set class; save the arrays.

python read_hdf5_paddle.py FOLDER FILES SAMPLES LENGTH PREDICTIONS OUTPUT.npz
with examples/language_model/bert/static of PaddleNLP@5af122b on PYTHONPATH.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np

# libpaddle has an old zlib of its own: the system's has to be there first.
ctypes.CDLL("libz.so.1", mode=ctypes.RTLD_GLOBAL)

from dataset import PretrainingDataset  # type: ignore[import-not-found]  # noqa: E402


def main(folder: str, predictions: int, output: str) -> None:
    columns: dict[str, list[np.ndarray]] = {}
    for path in sorted(Path(folder).glob("*training*")):
        dataset = PretrainingDataset(input_file=str(path), max_pred_length=predictions)
        for number in range(len(dataset)):
            tokens, segments, mask, positions, labels, follows = dataset[number]
            padding = (0, predictions - len(positions))
            # It makes the mask an addend, and cuts predictions after the last one.
            sample = {
                "input_ids": tokens,
                "segment_ids": segments,
                "input_mask": (mask == 0).astype(np.int64),
                "masked_lm_positions": np.pad(positions, padding),
                "masked_lm_ids": np.pad(labels[:, 0], padding),
                "masked_lm_weights": np.pad(np.ones(len(positions)), padding),
                "next_sentence_labels": follows,
            }
            for name, value in sample.items():
                columns.setdefault(name, []).append(value)
    np.savez(output, **{name: np.stack(rows) for name, rows in columns.items()})  # type: ignore[arg-type]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[5]), sys.argv[6])
