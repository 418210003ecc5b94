"""Read every sample of HDF5 files with the data set of DeepSpeed's bing_bert; save the arrays.

python read_hdf5.py FOLDER FILES SAMPLES LENGTH PREDICTIONS OUTPUT.npz

bing_bert is found on the path: PYTHONPATH names the checkout's folder of that name.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from nvidia_bert_dataset_provider import (  # type: ignore[import-not-found]
    pretraining_dataset,
)


def main(folder: str, numbers: list[int], output: str) -> None:
    files, samples, _, predictions = numbers
    paths = sorted(map(str, Path(folder).iterdir()))
    assert len(paths) == files, paths
    rows = []
    for path in paths:
        dataset = pretraining_dataset(path, predictions)
        rows += [dataset[number] for number in range(len(dataset))]
    assert len(rows) == samples, len(rows)
    _, ids, mask, segments, sentence, labels = map(np.stack, zip(*rows, strict=True))
    masked = np.zeros((2, samples, predictions), np.int64)
    for number, row in enumerate(labels):
        (places,) = np.nonzero(row != -1)
        masked[:, number, : len(places)] = places, row[places]
    arrays = {"input_ids": ids, "input_mask": mask, "segment_ids": segments}
    arrays |= {"masked_lm_positions": masked[0], "masked_lm_ids": masked[1]}
    arrays |= {"masked_lm_weights": masked[0] != 0, "next_sentence_labels": sentence}
    np.savez(output, **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(sys.argv[1], [int(word) for word in sys.argv[2:6]], sys.argv[6])
