"""Logs of tinygrad's program, which hpcbert reads and does not start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kit import cli
from tests.kit.cli import CollectJson, first_row

_PROGRAM = '"metadata": {"file": "tinygrad/examples/mlperf/model_train.py", "lineno": 917'
_SYSTEM = {"number_of_nodes": "1", "accelerators_per_node": "6", "framework": "tinygrad"}
# mlcommons/training_results_v5.0@0fdc28f, tinycorp/results/tinybox_red: samples of a step.
_GLOBAL_BATCH = 96


def format_event(seconds: float, key: str, value: object = None, samples: int = 0) -> str:
    head = f'{{"namespace": "", "time_ms": {1745530925055 + round(seconds * 1000)}'
    body = f'"event_type": "POINT_IN_TIME", "key": "{key}", "value": {json.dumps(value)}'
    more = f', "epoch_num": {samples}' if samples else ""
    return f":::MLLOG {head}, {body}, {_PROGRAM}{more}}}}}\n"


def format_run(rate: float, benchmark: str = "bert") -> str:
    """Return the log of a run: 20 times 1,000 steps and an evaluation, `rate` samples/s in all."""
    header = {"global_batch_size": _GLOBAL_BATCH, "max_sequence_length": 512}
    text = format_event(0, "submission_benchmark", benchmark) + format_event(1, "init_start")
    text += format_event(1700, "run_start")
    for key, value in {**header, "gradient_accumulation_steps": 1}.items():
        text += format_event(1710, key, value)
    stop = 0.0
    for samples in range(1000 * _GLOBAL_BATCH, 20001 * _GLOBAL_BATCH, 1000 * _GLOBAL_BATCH):
        stop = 1700 + samples / rate
        text += format_event(stop - 5, "eval_start", None, samples)
        text += format_event(stop, "eval_accuracy", 0.1, samples)
    return text + format_event(stop, "run_stop")


def write_runs(root: Path, *texts: str) -> Path:
    """Write a folder of results, each run of another day, and its system."""
    folder = root / "tinycorp" / "results" / "tinybox_red" / "bert"
    folder.mkdir(parents=True)
    systems = root / "tinycorp" / "systems"
    systems.mkdir()
    (systems / "tinybox_red.json").write_text(json.dumps(_SYSTEM))
    for number, text in enumerate(texts):
        log = text.replace('"time_ms": 1745', f'"time_ms": 17{46 + number}')
        (folder / f"result_{number}.txt").write_text(log)
    return folder


def test_a_folder_of_results_gives_the_rate_of_the_whole_run(
    tmp_path: Path, run: CollectJson
) -> None:
    """From run_start, compilation and evaluations included: the record has the same rates."""
    document = run(write_runs(tmp_path, *map(format_run, (160.0, 170.0, 165.0))))
    row, (table,) = first_row(document), document["data"]["tables"]
    assert (row["median"], row["shape"]) == (pytest.approx(165.0, rel=1e-6), "1n6g")
    labels = ("framework", "model", "precision", "batch_size_per_device", "rule")
    assert [table[name] for name in labels] == [
        *("mlperf-tinygrad", "bert-large", "fp16", 16, "run-clock")
    ]
    assumed = {entry["name"]: entry["option"] for entry in document["data"]["assumed"]}
    assert assumed["precision"] == "--precision"


def test_other_benchmarks_and_cut_runs_give_no_number_and_none_is_started(
    tmp_path: Path, empty_directory: None
) -> None:
    cut = format_run(160.0).rpartition(":::MLLOG")[0]
    for log, words in ((format_run(160.0, "retinanet"), "No recipe reads"), (cut, "run_stop")):
        (tmp_path / words).mkdir()
        result = cli.run("collect", write_runs(tmp_path / words, log))
        assert result.returncode != 0
        assert words in result.output
    result = cli.run("submit", "--fw", "mlperf-tinygrad")
    assert (result.returncode, "does not start" in result.stderr) == (2, True)
