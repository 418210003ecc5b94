"""Read every record of OFRecord files with OneFlow's reader, as Oneflow-Inc/models does; save the arrays.

python read_ofrecord.py FOLDER FILES SAMPLES LENGTH PREDICTIONS OUTPUT.npz
"""

from __future__ import annotations

import sys

import numpy as np
import oneflow as flow  # type: ignore[import-not-found]


def main(folder: str, numbers: list[int], output: str) -> None:
    files, samples, length, predictions = numbers
    # utils/ofrecord_data_utils.py
    shapes = {
        "input_ids": length,
        "input_mask": length,
        "segment_ids": length,
        "masked_lm_positions": predictions,
        "masked_lm_ids": predictions,
        "masked_lm_weights": predictions,
        "next_sentence_labels": 1,
    }
    reader = flow.nn.OFRecordReader(folder, batch_size=1, data_part_num=files)
    decoders = {
        name: flow.nn.OFRecordRawDecoder(
            name, shape=[size], dtype=flow.float if name == "masked_lm_weights" else flow.int32
        )
        for name, size in shapes.items()
    }
    columns: dict[str, list[np.ndarray]] = {name: [] for name in shapes}
    for _ in range(samples):
        record = reader()
        for name, decode in decoders.items():
            columns[name].append(decode(record).numpy()[0])
    np.savez(output, **{name: np.stack(rows) for name, rows in columns.items()})  # type: ignore[arg-type]


if __name__ == "__main__":
    main(sys.argv[1], [int(word) for word in sys.argv[2:6]], sys.argv[6])
