"""Logs of tinygrad's program, which hpcbert reads and does not start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kit import cli
from tests.kit.cli import CollectJson, first_row, only_run

_PROGRAM = '"metadata": {"file": "tinygrad/examples/mlperf/model_train.py", "lineno": 917'
_SYSTEM = {"number_of_nodes": "1", "accelerators_per_node": "6", "framework": "tinygrad"}
# mlcommons/training_results_v5.0@0fdc28f, tinycorp/results/tinybox_red: samples of a step.
_GLOBAL_BATCH = 96


def format_event(seconds: float, key: str, value: object, **metadata: object) -> str:
    more = "".join(f', "{name}": {json.dumps(entry)}' for name, entry in metadata.items())
    head = f'{{"namespace": "", "time_ms": {1745530925055 + round(seconds * 1000)}'
    body = f'"event_type": "POINT_IN_TIME", "key": "{key}", "value": {json.dumps(value)}'
    return f":::MLLOG {head}, {body}, {_PROGRAM}{more}}}}}\n"


def format_run(rate: float, *, evaluations: int = 20, benchmark: str = "bert") -> str:
    """Return the log of a run: 1,000 steps before each evaluation, `rate` samples/s in all."""
    seconds = 1000 * _GLOBAL_BATCH / rate
    text = format_event(0, "submission_benchmark", benchmark) + format_event(1, "init_start", None)
    text += format_event(1700, "run_start", None)
    text += format_event(1710, "global_batch_size", _GLOBAL_BATCH)
    text += format_event(1710, "max_sequence_length", 512)
    text += format_event(1710, "gradient_accumulation_steps", 1)
    for number in range(1, evaluations + 1):
        samples = number * 1000 * _GLOBAL_BATCH
        stop = 1700 + number * seconds
        text += format_event(stop - 5, "eval_start", None, epoch_num=samples)
        text += format_event(stop, "eval_accuracy", 0.1, epoch_num=samples)
    return text + format_event(1700 + evaluations * seconds, "run_stop", None, status="success")


def write_runs(root: Path, *texts: str) -> Path:
    folder = root / "tinycorp" / "results" / "tinybox_red" / "bert"
    folder.mkdir(parents=True)
    systems = root / "tinycorp" / "systems"
    systems.mkdir()
    (systems / "tinybox_red.json").write_text(json.dumps(_SYSTEM))
    for number, text in enumerate(texts):
        # Each run is of another day.
        log = text.replace('"time_ms": 1745', f'"time_ms": 17{46 + number}')
        (folder / f"result_{number}.txt").write_text(log)
    return folder


def test_a_folder_of_results_gives_the_rate_of_the_whole_run(
    tmp_path: Path, run: CollectJson
) -> None:
    """From run_start, compilation and evaluations included: the record has the same rates."""
    folder = write_runs(tmp_path, *map(format_run, (160.0, 170.0, 165.0)))
    document = run(folder)
    row = first_row(document)
    (table,) = document["data"]["tables"]
    assert (row["median"], row["shape"]) == (pytest.approx(165.0, rel=1e-6), "1n6g")
    labels = [
        table[name] for name in ("framework", "model", "precision", "batch_size_per_device", "rule")
    ]
    assert labels == ["mlperf-tinygrad", "bert-large", "fp16", 16, "run-clock"]
    assumed = {entry["name"]: entry["option"] for entry in document["data"]["assumed"]}
    assert assumed["precision"] == "--precision"


def test_lines_of_steps_are_read_without_mlperf(tmp_path: Path, run: CollectJson) -> None:
    lines = [
        f"{step:5} {400.0 + step % 2:7.2f} ms run,    8.61 ms python,   1.42 ms fetch data, "
        f"{390.0:7.2f} ms AMD * 8,  4.17 loss, 0.001097 LR, 180.43 GB used,  92697.87 GFLOPS\n"
        for step in range(130)
    ]
    log = tmp_path / "run.log"
    log.write_text("".join(lines))
    document = run(
        log, "--nodes", 1, "--batch-size", 16, "--precision", "fp16",
        "--set", "sequence_length=512", "--set", "accumulation=1",
    )  # fmt: skip
    assert only_run(document)["throughput"] == pytest.approx(8 * 16 / 0.4005, rel=1e-3)
    assert document["data"]["tables"][0]["rule"] == "step-time"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        pytest.param(format_run(160.0, benchmark="retinanet"), "No recipe reads", id="benchmark"),
        pytest.param(format_run(160.0).rpartition(":::MLLOG")[0], "run_stop", id="cut"),
    ],
)
def test_other_benchmarks_and_cut_runs_give_no_number(log: str, words: str, tmp_path: Path) -> None:
    result = cli.run("collect", write_runs(tmp_path, log))
    assert result.returncode != 0
    assert words in result.output


def test_it_is_not_started(empty_directory: None) -> None:
    result = cli.run("submit", "--fw", "mlperf-tinygrad")
    assert result.returncode == 2
    assert "does not start" in result.stderr
