"""Read every record of .npz files with GluonNLP's own data set class; save the arrays.

python read_npz.py FOLDER FILES SAMPLES LENGTH PREDICTIONS OUTPUT.npz
"""

from __future__ import annotations

import sys
from pathlib import Path

import gluonnlp  # type: ignore[import-not-found]
import numpy as np


def main(folder: str, output: str) -> None:
    columns: dict[str, list[np.ndarray]] = {}
    for path in sorted(Path(folder).glob("*.npz")):
        # scripts/bert/pretraining_utils.py, get_pretrain_data_npz
        dataset = gluonnlp.data.NumpyDataset(str(path), allow_pickle=True)
        for number in range(len(dataset)):
            sample = dataset[number]
            for place, name in enumerate(dataset.keys):
                columns.setdefault(name, []).append(sample[place])
    np.savez(output, **{name: np.stack(rows) for name, rows in columns.items()})  # type: ignore[arg-type]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[6])
