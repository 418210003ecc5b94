"""Collecting what hpcbert never submitted, through the command line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from hpcbert.model import Shape
from tests.kit.cases import cases
from tests.kit.cli import Collect, CollectJson, rows
from tests.kit.logs import DEEPSPEED, write_file

DLPERF = "logs/Oneflow-Inc+DLPerf/e36df2e/Tensorflow/resnet50v1.5"


def list_codes(row: dict[str, Any]) -> dict[int, list[str]]:
    return {
        run["repeat"]: [reason["code"] for reason in run["reasons"]]
        for run in row["runs"]
        if not run["valid"]
    }


def deepspeed_log(
    rates: Iterable[float], *, nan_at: int = 0, first: int = 3, samples: int = 32, run: int = 0
) -> str:
    """Return a log of micro-batches of so many samples over all GPUs, its stamps as its rates.

    Its `run` is the days from the first run to it.
    """
    lines = []
    at = datetime(2020, 10, 27, 11, 28, tzinfo=timezone.utc) + timedelta(days=run)
    for step, rate in enumerate(rates, start=first):
        at += timedelta(seconds=samples / rate)
        moment = f"{at:%Y-%m-%d %H:%M:%S},{at.microsecond // 1000:03}"
        lines.append(f"[{moment}] [INFO] [timer.py:157:stop] 0/{step}, SamplesPerSec={rate}")
        loss = "nan" if step == nan_at else "7.5"
        lines.append(f"bing_bert_progress: step={step}, loss={loss}, lr=1e-3, sample_count=1")
    return "\n".join([*lines, ""])


@pytest.fixture
def deepspeed(tmp_path: Path) -> Path:
    """The 25 runs that DLPerf printed, as logs of DeepSpeed in DLPerf's layout."""
    root = tmp_path / "logs" / "deepspeed"
    for shape, speeds in DEEPSPEED.items():
        for number, speed in enumerate(speeds, start=1):
            # A running average that settles: the warm-up differs, the window's mean is the speed.
            rates = [speed * 0.8] * 18 + [speed - 1, speed + 1] * 50
            log = deepspeed_log(rates, samples=32 * Shape.parse(shape).gpus, run=number)
            write_file(root, f"bert/bz32/{shape}/bert_b32_fp32_{number}.log", log)
    return root


def test_the_thirty_logs_of_dlperf_by_its_time_rule(
    shared: Path, collect: Collect, collect_json: CollectJson
) -> None:
    time = [321.74, 574.59, 1143.29, 2458.22, 4848.89, 9415.85]
    words = (shared / DLPERF, "--fw", "tf2-resnet", "--rule", "dlperf-time")
    assert [round(row["median"], 2) for row in rows(collect_json(*words))] == time
    result = collect(*words, "--format", "dlperf-json")
    published = json.loads((shared / DLPERF / "result" / "resnet50_result.json").read_text())
    assert json.loads(result.stdout) == published


@pytest.mark.slow
def test_bad_logs_are_in_no_median_and_say_why(
    deepspeed: Path, collect: Collect, collect_json: CollectJson
) -> None:
    point = deepspeed / "bert/bz32/1n4g"
    truncated = (point / "bert_b32_fp32_1.log").read_text().splitlines(keepends=True)[:-4]
    (point / "bert_b32_fp32_1.log").write_text("".join(truncated))
    bad = deepspeed_log([575.07] * 118, nan_at=57, samples=128)
    (point / "bert_b32_fp32_3.log").write_text(bad)
    (point / "bert_b32_fp32_5.log").write_text("srun: error: n1: tasks 0-3: Killed\n")
    document = collect_json(deepspeed)
    assert (document["status"], document["exit_code"]) == ("partial", 4)
    row = rows(document)[1]
    assert row["median"] == pytest.approx((573.84 + 587.55) / 2)
    assert row["repeats"] == {"ok": 2, "asked": 5}
    assert list_codes(row) == {1: ["incomplete"], 3: ["loss"], 5: ["incomplete"]}
    assert [run["throughput"] for run in row["runs"] if not run["valid"]] == [None] * 3
    assert document["errors"][0]["code"] == "incomplete"
    text = collect(deepspeed)
    assert text.returncode == 4
    assert "✗ repeat 3  loss: the loss is nan at iteration 57" in text.stdout
    assert "✗ repeat 1  incomplete: the log ends at iteration 118 of 120" in text.stdout
    assert "3 of 25 repeats are invalid" in text.stderr
    lack = "n1:77:99 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'\n"
    for number, content in ((1, "".join(truncated) + lack), (5, lack)):
        (point / f"bert_b32_fp32_{number}.log").write_text(content)
    row = rows(collect_json(deepspeed))[1]
    assert list_codes(row) == {
        1: ["incomplete", "device-oom"],
        3: ["loss"],
        5: ["incomplete", "device-oom"],
    }
    strict = rows(collect_json(deepspeed, "--require-all"))[1]
    assert (strict["median"], strict["speedup"], strict["repeats"]["ok"]) == (None, None, 2)


def test_a_gap_in_the_numbers_is_a_run_that_is_missing(
    deepspeed: Path, collect_json: CollectJson
) -> None:
    (deepspeed / "bert/bz32/1n8g/bert_b32_fp32_2.log").unlink()
    row = rows(collect_json(deepspeed))[2]
    assert (row["repeats"], list_codes(row)) == ({"ok": 4, "asked": 5}, {2: ["no-log"]})


def test_rehearsed_logs_make_no_table(
    tmp_path: Path, collect: Collect, collect_json: CollectJson
) -> None:
    for number in range(1, 4):
        log = "HPCBERT REHEARSAL rank=0/1\n" + deepspeed_log([500.0] * 118)
        write_file(tmp_path, f"deepspeed/1n1g/bert_b32_fp32_{number}.log", log)
    document = collect_json(tmp_path / "deepspeed")
    assert document["data"]["tables"] == []
    assert document["exit_code"] == 4
    text = collect(tmp_path / "deepspeed")
    assert text.stdout == ""
    assert "3 rehearsed, nothing was trained" in text.stderr
    assert "500" not in text.output


def test_runs_from_zero_become_runs_from_one(tmp_path: Path, collect_json: CollectJson) -> None:
    for number in range(3):
        name = f"deepspeed/1n1g/bert_base_b32_fp32_{number}.log"
        write_file(tmp_path, name, deepspeed_log([100.0 + number] * 118, run=number))
    row = rows(collect_json(tmp_path / "deepspeed"))[0]
    assert [run["repeat"] for run in row["runs"]] == [1, 2, 3]
    assert row["repeats"] == {"ok": 3, "asked": 3}


def test_the_last_good_attempt_counts(tmp_path: Path, collect_json: CollectJson) -> None:
    name = "deepspeed/1n1g/bert_b32_fp32_1"
    write_file(tmp_path, f"{name}.log", deepspeed_log([100.0] * 118))
    write_file(tmp_path, f"{name}.r1.log", deepspeed_log([200.0] * 118))
    write_file(tmp_path, f"{name}.r2.log", deepspeed_log([300.0] * 50))
    (run,) = rows(collect_json(tmp_path / "deepspeed"))[0]["runs"]
    assert (run["attempt"], run["throughput"]) == (1, pytest.approx(200.0))


def test_two_logs_of_one_repeat_are_refused_by_name(tmp_path: Path, collect: Collect) -> None:
    for folder in ("a", "b"):
        write_file(
            tmp_path, f"{folder}/deepspeed/1n1g/bert_b32_fp32_1.log", deepspeed_log([1.0] * 118)
        )
    result = collect(tmp_path / "a", tmp_path / "b")
    assert result.returncode == 2
    assert "a/deepspeed/1n1g/bert_b32_fp32_1.log" in result.stderr
    assert "b/deepspeed/1n1g/bert_b32_fp32_1.log" in result.stderr


def test_patterns_and_flags_supply_what_paths_do_not_tell(
    tmp_path: Path, collect: Collect, collect_json: CollectJson
) -> None:
    for number in (1, 2):
        write_file(
            tmp_path,
            f"x/run{number}-on-2x8.txt",
            deepspeed_log([10.0] * 118, samples=512, run=number),
        )
    pattern = ("--pattern", "run{repeat}-on-{nodes}x{gpus_per_node}.txt")
    words = (tmp_path / "x", *pattern)
    missing = collect(*words)
    assert missing.returncode == 2
    assert "x/run1-on-2x8.txt" in missing.stderr
    assert "--batch-size --precision" in missing.stderr
    options = ("--fw", "deepspeed", "--batch-size", "32", "--precision", "fp16", "--model", "m")
    document = collect_json(*words, *options)
    (table,) = document["data"]["tables"]
    assert (table["model"], table["precision"], table["rows"][0]["shape"]) == ("m", "fp16", "2n8g")
    assert [run["repeat"] for run in table["rows"][0]["runs"]] == [1, 2]


def test_a_precision_that_names_have_wrong_is_read_past(
    tmp_path: Path, collect: Collect, collect_json: CollectJson
) -> None:
    """DLPerf's OneFlow logs are all named fp32 (Oneflow-Inc/DLPerf@c89430b, cp_logs.sh)."""
    header = "gpu_num_per_node = 1\nnum_nodes = 1\nbatch_size_per_device = 64\nuse_fp16 = True\n"
    steps = "".join(
        f"step: {n}, total_loss: 9.7, mlm_loss: 8.9, nsp_loss: 0.7, throughput: 64.9 {1e9 + n}\n"
        for n in range(19, 120, 20)
    )
    write_file(tmp_path, "logs/oneflow/1n1g/bert_base_b64_fp32_0.log", header + steps)
    wrong = collect_json(tmp_path / "logs")
    assert list_codes(rows(wrong)[0]) == {1: ["config"]}
    relabelled = collect(tmp_path / "logs", "--precision", "fp16")
    assert relabelled.returncode == 2
    assert "The path says precision = fp32, but --precision says fp16" in relabelled.stderr
    assert "--pattern" in relabelled.stderr
    names = ("--pattern", "{nodes}n{gpus_per_node}g/*_b{batch_size}_*_{repeat}.log")
    right = collect_json(tmp_path / "logs", *names, "--precision", "fp16")
    assert rows(right)[0]["median"] == pytest.approx(64)
    assert right["data"]["tables"][0]["precision"] == "fp16"


def test_a_log_without_its_header_belongs_to_its_siblings(
    tmp_path: Path, collect_json: CollectJson
) -> None:
    for number in (1, 2):
        lines = "".join(
            f"iteration: {n}/120 loss: 9 samples/s: 32 time: {1e9 + n}\n" for n in range(121)
        )
        config = (
            '{"accumulation": 4, "world_size": 1, "batch_size_per_device": 8, "precision": "fp32"}'
        )
        log = f"hpcbert-config {config}\n{lines}" if number == 1 else ""
        write_file(tmp_path, f"logs/pytorch/1n1g/run{number}.log", log)
    document = collect_json(tmp_path / "logs", "--pattern", "run{repeat}.log")
    (table,) = document["data"]["tables"]
    assert table["variant"] == "acc4"
    (row,) = table["rows"]
    assert (row["median"], row["repeats"]) == (32.0, {"ok": 1, "asked": 2})
    assert row["flags"] == ["single-run", "incomplete", "accumulation", "unchecked"]
    assert row["unchecked"] == ["model"]


def test_directories_of_logs_are_never_written_to(deepspeed: Path, collect: Collect) -> None:
    before = sorted(path.name for path in deepspeed.rglob("*"))
    collect(deepspeed)
    assert sorted(path.name for path in deepspeed.rglob("*")) == before


@cases
def test_mistakes_are_usage_errors(
    deepspeed: Path, collect_json: CollectJson, words: tuple[str, ...], complaint: str
) -> None:
    document = collect_json(deepspeed, *words)
    assert (document["status"], document["exit_code"]) == ("error", 2)
    assert complaint in document["errors"][0]["message"]


def test_nothing_to_collect_is_said(tmp_path: Path, collect: Collect) -> None:
    assert "There is no campaign yet" in collect().stderr
    assert "There is no campaign 'absent'" in collect("absent").stderr
    assert collect("./absent").returncode == 2
    (tmp_path / "empty").mkdir()
    assert "No log has a name in DLPerf's form" in collect("empty").stderr
