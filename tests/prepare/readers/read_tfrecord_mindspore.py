"""Read every record of TFRecord files with MindSpore's TFRecordDataset; save the arrays.

python read_tfrecord_mindspore.py FOLDER FILES SAMPLES LENGTH PREDICTIONS OUTPUT.npz
"""

from __future__ import annotations

import sys
from pathlib import Path

import mindspore.dataset  # type: ignore[import-not-found]
import numpy as np


def main(folder: str, output: str) -> None:
    columns: dict[str, list[np.ndarray]] = {}
    for path in sorted(Path(folder).glob("*tfrecord*")):
        # official/nlp/Bert/src/dataset.py of mindspore-ai/models, create_bert_dataset
        dataset = mindspore.dataset.TFRecordDataset([str(path)], shuffle=False)
        for record in dataset.create_dict_iterator(num_epochs=1, output_numpy=True):
            for name, value in record.items():
                columns.setdefault(name, []).append(value)
    np.savez(output, **{name: np.stack(rows) for name, rows in columns.items()})  # type: ignore[arg-type]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[6])
