"""Read every document of training.bin and .idx with Megatron's own data set class; save the arrays.

python read_megatron.py FOLDER FILES SAMPLES LENGTH PREDICTIONS OUTPUT.npz

Needs torch, and NVIDIA/Megatron-LM@3860e99 on PYTHONPATH: its file of data sets is loaded without
the package around it, which asks for CUDA.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

import numpy as np

CLS, SEP = 101, 102


def dataset_class() -> type:
    # Its table of types names an alias that numpy 1.24 dropped.
    if not hasattr(np, "float"):
        setattr(np, "float", np.float64)  # noqa: B010
    package = importlib.util.find_spec("megatron")
    assert package is not None
    assert package.submodule_search_locations
    path = Path(package.submodule_search_locations[0]) / "data" / "indexed_dataset.py"
    stand_in = types.ModuleType("megatron")
    stand_in.print_rank_0 = print  # type: ignore[attr-defined]
    sys.modules["megatron"] = stand_in
    spec = importlib.util.spec_from_file_location("indexed_dataset", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    dataset: type = module.MMapIndexedDataset
    return dataset


def main(folder: str, samples: int, length: int, output: str) -> None:
    dataset = dataset_class()(str(Path(folder) / "training"), skip_warmup=True)
    originals = np.zeros((samples, length), dtype=np.int64)
    segments = np.zeros_like(originals)
    assert len(dataset.doc_idx) == samples + 1
    for number in range(samples):
        first, second = dataset[int(dataset.doc_idx[number]) : int(dataset.doc_idx[number + 1])]
        row = [CLS, *first.tolist(), SEP, *second.tolist(), SEP]
        originals[number, : len(row)] = row
        segments[number, len(first) + 2 : len(row)] = 1
    np.savez(output, originals=originals, segment_ids=segments)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[3]), int(sys.argv[4]), sys.argv[6])
