"""Read every line of compressed text with PaddlePaddle 1.8's own reader of it; save the arrays.

python read_paddle_text.py FOLDER FILES SAMPLES LENGTH PREDICTIONS OUTPUT.npz

Needs PaddlePaddle/models@b71cf63's PaddleNLP/pretrain_language_models/BERT on PYTHONPATH. Its
reader imports paddle and six, and uses them for nothing that is asked for here.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

import numpy as np


def main(folder: str, samples: int, length: int, output: str) -> None:
    for name in ("paddle", "paddle.fluid", "six"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["paddle"].fluid = sys.modules["paddle.fluid"]  # type: ignore[attr-defined]
    sys.modules["six"].PY3 = True  # type: ignore[attr-defined]
    reader = importlib.import_module("reader.pretraining").DataReader(
        folder, str(Path(folder).parent / "vocab.txt"), max_seq_len=length
    )
    originals = np.zeros((samples, length), dtype=np.int64)
    segments = np.zeros_like(originals)
    labels: list[int] = []
    for path in sorted(Path(folder).iterdir()):
        for tokens, sentences, positions, label in reader.read_file(path.name):
            assert positions == list(range(len(tokens)))
            originals[len(labels), : len(tokens)] = tokens
            segments[len(labels), : len(tokens)] = sentences
            labels.append(1 - label)  # 1 is where the second sentence follows the first
    np.savez(output, originals=originals, segment_ids=segments, next_sentence_labels=labels)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[3]), int(sys.argv[4]), sys.argv[6])
