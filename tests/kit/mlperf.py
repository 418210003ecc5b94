"""Result folders of MLPerf Training."""

from __future__ import annotations

import json
from pathlib import Path

SYSTEM = {
    "number_of_nodes": "1",
    "accelerators_per_node": "8",
    "accelerator_model_name": "TPU v3",
    "framework": "JAX",
    "division": "closed",
}


def write_submission(root: Path, seconds: list[int], samples: int = 3_000_000) -> Path:
    """Write the result folder of a system with a run of each duration; 0 missed the target."""
    folder = root / "Org" / "results" / "sys" / "bert"
    folder.mkdir(parents=True)
    systems = root / "Org" / "systems"
    systems.mkdir()
    (systems / "sys.json").write_text(json.dumps(SYSTEM))
    for number, duration in enumerate(seconds):
        status = "success" if duration else "aborted"
        stop = 1000 + (duration or 9) * 1000
        records = [
            {"time_ms": 1000, "key": "run_start", "value": None},
            {"time_ms": 1000, "key": "global_batch_size", "value": 64},
            {"time_ms": 1001, "key": "train_samples", "value": 99_000_000},
            {"time_ms": stop, "key": "eval_accuracy", "metadata": {"epoch_num": samples}},
            {"time_ms": stop, "key": "run_stop", "metadata": {"status": status}},
        ]
        text = "".join(f"0: :::MLLOG {json.dumps(record)}\n" for record in records)
        (folder / f"result_{number}.txt").write_text(text)
    return folder
