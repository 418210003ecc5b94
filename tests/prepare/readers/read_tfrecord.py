"""Read every record of TFRecord files with TensorFlow's reader, as Model Garden does; save the arrays.

python read_tfrecord.py FOLDER FILES SAMPLES LENGTH PREDICTIONS OUTPUT.npz
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import tensorflow as tf  # type: ignore[import-untyped]


def main(folder: str, numbers: list[int], output: str) -> None:
    files, samples, length, predictions = numbers
    # official/nlp/bert/input_pipeline.py
    features = {
        "input_ids": tf.io.FixedLenFeature([length], tf.int64),
        "input_mask": tf.io.FixedLenFeature([length], tf.int64),
        "segment_ids": tf.io.FixedLenFeature([length], tf.int64),
        "masked_lm_positions": tf.io.FixedLenFeature([predictions], tf.int64),
        "masked_lm_ids": tf.io.FixedLenFeature([predictions], tf.int64),
        "masked_lm_weights": tf.io.FixedLenFeature([predictions], tf.float32),
        "next_sentence_labels": tf.io.FixedLenFeature([1], tf.int64),
    }
    paths = sorted(map(str, Path(folder).iterdir()))
    assert len(paths) == files, paths
    records = list(tf.data.TFRecordDataset(paths).as_numpy_iterator())
    assert len(records) == samples, len(records)
    read = tf.io.parse_example(records, features)
    np.savez(output, **{name: values.numpy() for name, values in read.items()})


if __name__ == "__main__":
    main(sys.argv[1], [int(word) for word in sys.argv[2:6]], sys.argv[6])
