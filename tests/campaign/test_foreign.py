"""Collecting what hpcbert never submitted, through the command line."""

import json
import re
import shlex
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from hpcbert.campaign.foreign import read_system
from hpcbert.model import Shape
from tests.kit import logs
from tests.kit.cases import cases
from tests.kit.cli import codes, first_row, only_run, rows
from tests.kit.logs import DEEPSPEED, write_file
from tests.kit.recipes import options_of, printed, sample

DLPERF = "logs/Oneflow-Inc+DLPerf/e36df2e/Tensorflow/resnet50v1.5"
WINDOW = ("--skip", "2", "--iters", "12")


def deepspeed_log(
    rates: Iterable[float], *, nan_at: int = 0, samples: int = 32, run: int = 0
) -> str:
    """Return a log of micro-batches of so many samples over all GPUs, its stamps as its rates.

    Its `run` is the days from the first run to it.
    """
    lines = []
    at = datetime(2020, 10, 27, 11, 28, tzinfo=timezone.utc) + timedelta(days=run)
    for step, rate in enumerate(rates, start=3):
        at += timedelta(seconds=samples / rate)
        moment = f"{at:%Y-%m-%d %H:%M:%S},{at.microsecond // 1000:03}"
        lines.append(f"[{moment}] [INFO] [timer.py:157:stop] 0/{step}, SamplesPerSec={rate}")
        loss = "nan" if step == nan_at else "7.5"
        lines.append(f"bing_bert_progress: step={step}, loss={loss}, lr=1e-3, sample_count=1")
    return "\n".join([*lines, ""])


def write_deepspeed(root: Path, name: str, rate: float, run: int, steps: int = 118) -> Path:
    return write_file(root, f"deepspeed/1n1g/{name}", deepspeed_log([rate] * steps, run=run))


def test_the_thirty_logs_of_dlperf_by_its_time_rule(shared, collect, collect_json):
    time = [321.74, 574.59, 1143.29, 2458.22, 4848.89, 9415.85]
    words = (shared / DLPERF, "--fw", "tf2-resnet", "--rule", "dlperf-time")
    assert [round(row["median"], 2) for row in rows(collect_json(*words))] == time
    result = collect(*words, "--format", "dlperf-json")
    published = json.loads((shared / DLPERF / "result" / "resnet50_result.json").read_text())
    assert json.loads(result.stdout) == published


@pytest.mark.slow
def test_bad_logs_are_in_no_median_and_say_why(tmp_path, collect, collect_json):
    """Runs that DLPerf printed, as logs of DeepSpeed in DLPerf's layout."""
    deepspeed = tmp_path / "logs" / "deepspeed"
    for shape, speeds in [*DEEPSPEED.items()][:3]:
        for number, speed in enumerate(speeds, start=1):
            # A running average that settles: the warm-up differs, the window's mean is the speed.
            rates = [speed * 0.8] * 18 + [speed - 1, speed + 1] * 50
            log = deepspeed_log(rates, samples=32 * Shape.parse(shape).gpus, run=number)
            write_file(deepspeed, f"bert/bz32/{shape}/bert_b32_fp32_{number}.log", log)
    first, _, third, _, fifth = sorted((deepspeed / "bert/bz32/1n4g").iterdir())
    first.write_text("".join(first.read_text().splitlines(keepends=True)[:-4]))
    third.write_text(deepspeed_log([575.07] * 118, nan_at=57, samples=128))
    fifth.write_text("srun: error: n1: tasks 0-3: Killed\n")
    before = sorted(path.name for path in deepspeed.rglob("*"))
    document = collect_json(deepspeed)
    assert sorted(path.name for path in deepspeed.rglob("*")) == before
    assert (document["status"], document["exit_code"]) == ("partial", 4)
    assert document["errors"][0]["code"] == "incomplete"
    row = rows(document)[1]
    assert row["median"] == pytest.approx((573.84 + 587.55) / 2)
    assert codes(row) == [["incomplete"], [], ["loss"], [], ["incomplete"]]
    assert [run["throughput"] for run in row["runs"] if not run["valid"]] == [None] * 3
    text = collect(deepspeed)
    assert "✗ repeat 3  loss: the loss is nan at iteration 57" in text.stdout
    assert "✗ repeat 1  incomplete: the log ends at iteration 118 of 120" in text.stdout
    assert "3 of 15 repeats are invalid" in text.stderr
    fifth.write_text("n1:77:99 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'\n")
    (deepspeed / "bert/bz32/1n8g/bert_b32_fp32_2.log").unlink()
    strict = rows(collect_json(deepspeed, "--require-all"))
    assert codes(strict[1])[4] == ["incomplete", "device-oom"]
    assert (strict[1]["median"], strict[1]["speedup"], strict[1]["repeats"]["ok"]) == (
        None,
        None,
        2,
    )
    assert codes(strict[2])[1] == ["no-log"]


def test_numbers_in_names_are_repeats_and_attempts(tmp_path, collect, collect_json):
    """Runs from zero become runs from one; of several attempts, the last good one counts."""
    write_deepspeed(tmp_path, "bert_b32_fp32_0.log", 100.0, 0)
    write_deepspeed(tmp_path, "bert_b32_fp32_1.log", 101.0, 1)
    write_deepspeed(tmp_path, "bert_b32_fp32_1.r1.log", 200.0, 2)
    write_deepspeed(tmp_path, "bert_b32_fp32_1.r2.log", 300.0, 3, steps=50)
    row = first_row(collect_json(tmp_path / "deepspeed"))
    assert row["repeats"] == {"ok": 2, "asked": 2}
    numbers = [(run["repeat"], run["attempt"], round(run["throughput"])) for run in row["runs"]]
    assert numbers == [(1, 0, 100), (2, 1, 200)]
    other = write_deepspeed(tmp_path / "b", "bert_b32_fp32_1.log", 500.0, 4)
    result = collect(tmp_path / "deepspeed", other.parents[1])
    assert result.returncode == 2
    assert f"{tmp_path}/deepspeed/1n1g/bert_b32_fp32_0.log" in result.stderr
    assert str(other) in result.stderr
    # Rehearsed logs make no table.
    other.write_text(f"HPCBERT REHEARSAL rank=0/1\n{other.read_text()}")
    document = collect_json(other.parents[1])
    assert (document["data"]["tables"], document["exit_code"]) == ([], 4)
    text = collect(other.parents[1])
    assert (text.stdout, "500" in text.output) == ("", False)
    assert "1 rehearsed, nothing was trained" in text.stderr


def test_patterns_and_flags_supply_what_paths_lack(tmp_path, collect, collect_json):
    for number in (1, 2):
        log = deepspeed_log([10.0] * 118, samples=512, run=number)
        write_file(tmp_path, f"x/run{number}-on-2x8.txt", log)
    words = (tmp_path / "x", "--pattern", "run{repeat}-on-{nodes}x{gpus_per_node}.txt")
    missing = collect(*words)
    assert missing.returncode == 2
    assert "x/run1-on-2x8.txt" in missing.stderr
    assert "--batch-size --precision" in missing.stderr
    options = ("--fw", "deepspeed", "--batch-size", "32", "--precision", "fp16", "--model", "m")
    (table,) = collect_json(*words, *options)["data"]["tables"]
    assert (table["model"], table["precision"], table["rows"][0]["shape"]) == ("m", "fp16", "2n8g")
    assert [run["repeat"] for run in table["rows"][0]["runs"]] == [1, 2]


def test_a_precision_that_names_have_wrong_is_read_past(tmp_path, collect, collect_json):
    """DLPerf's OneFlow logs are all named fp32 (Oneflow-Inc/DLPerf@c89430b, cp_logs.sh)."""
    header = "gpu_num_per_node = 1\nnum_nodes = 1\nbatch_size_per_device = 64\nuse_fp16 = True\n"
    steps = "".join(
        f"step: {n}, total_loss: 9.7, mlm_loss: 8.9, nsp_loss: 0.7, throughput: 64.9 {1e9 + n}\n"
        for n in range(19, 120, 20)
    )
    write_file(tmp_path, "logs/oneflow/1n1g/bert_base_b64_fp32_0.log", header + steps)
    assert codes(first_row(collect_json(tmp_path / "logs"))) == [["config"]]
    relabelled = collect(tmp_path / "logs", "--precision", "fp16")
    assert relabelled.returncode == 2
    assert "The path says precision = fp32, but --precision says fp16" in relabelled.stderr
    names = ("--pattern", "{nodes}n{gpus_per_node}g/*_b{batch_size}_*_{repeat}.log")
    right = collect_json(tmp_path / "logs", *names, "--precision", "fp16")
    assert first_row(right)["median"] == pytest.approx(64)
    assert right["data"]["tables"][0]["precision"] == "fp16"


def test_a_log_without_its_header_belongs_to_its_siblings(tmp_path, collect_json):
    lines = "".join(
        f"iteration: {n}/120 loss: 9 samples/s: 32 time: {1e9 + n}\n" for n in range(121)
    )
    config = '{"accumulation": 4, "world_size": 1, "batch_size_per_device": 8, "precision": "fp32"}'
    write_file(tmp_path, "logs/pytorch/1n1g/run1.log", f"hpcbert-config {config}\n{lines}")
    write_file(tmp_path, "logs/pytorch/1n1g/run2.log", "")
    document = collect_json(tmp_path / "logs", "--pattern", "run{repeat}.log")
    (row,) = rows(document)
    assert document["data"]["tables"][0]["variant"] == "acc4"
    assert (row["median"], row["repeats"]) == (32.0, {"ok": 1, "asked": 2})
    assert row["flags"] == ["single-run", "incomplete", "accumulation", "unchecked"]
    assert row["unchecked"] == ["model"]


@cases
def test_mistakes_are_usage_errors(tmp_path, collect_json, words, complaint):
    write_deepspeed(tmp_path, "bert_b32_fp32_1.log", 1.0, 1)
    document = collect_json(tmp_path, *words)
    assert (document["status"], document["exit_code"]) == ("error", 2)
    assert complaint in document["errors"][0]["message"]


def find_options(detail: str) -> list[str]:
    """Return the first options that a message says to type."""
    (words,) = re.findall(r"type (--rule [^,;]+)", detail)
    return shlex.split(words)


@pytest.mark.slow
@cases
def test_a_rule_without_a_record_names_those_that_give_a_number(  # noqa: PLR0917
    folder, words, options, records, shared, run
):
    detail = first_row(run(shared / folder, *words))["runs"][0]["reasons"][0]["detail"]
    assert detail.startswith("the log has no record ")
    assert records in detail
    assert " ".join(find_options(detail)) == options
    row = first_row(run(shared / folder, *words, *find_options(detail)))
    assert row["repeats"]["ok"] == row["repeats"]["asked"] > 0


def test_a_window_that_the_log_does_not_reach_names_one_that_it_has(tmp_path, run):
    for framework, skip, iters in (("pytorch", 150, 300), ("hf-trainer", 20, 500)):
        write_file(tmp_path, f"{framework}/run_1.log", sample(framework))
        words = (tmp_path / framework, *options_of(framework))
        detail = only_run(run(*words, "--skip", skip, "--iters", iters))["reasons"][0]["detail"]
        assert detail.startswith("the log ends at iteration 120 of ")
        assert only_run(run(*words, "--skip", skip, "--iters", iters, *find_options(detail)))[
            "valid"
        ]


@cases
def test_facts_that_contradict_each_other_are_the_reason(recipe, head, message, tmp_path, run):
    """They end the reading: what follows them is unknown, but not because the log lacks it."""
    write_file(tmp_path, "logs/run_1.log", head.encode() + printed(recipe))
    document = run(tmp_path / "logs", *options_of(recipe)[:4])
    assert document["exit_code"] in {2, 4}
    assert message in str(document)
    assert "Neither the path nor the log" not in str(document)
    (reason,) = only_run(run(tmp_path / "logs", *options_of(recipe)))["reasons"]
    assert (reason["code"], message in reason["detail"]) == ("config", True), reason


def test_text_names_files_where_numbers_are_others(tmp_path, collect, run):
    for number in range(3):
        last, start = 12 if number else 7, 1763717655.5 + 1e4 * number
        log = logs.log("1n1g", 100 + number, last=last, start=start)
        write_file(tmp_path, f"pytorch/1n1g/bert_b4_fp32_{number}.log", log)
        write_file(tmp_path, f"named/pytorch/1n1g/bert_b4_fp32_{number + 1}.log", log)
        write_file(tmp_path, f"as/pytorch/1n1g/{2 - number}/run.log", log)
    details = first_row(run(tmp_path / "named", *WINDOW))["runs"][0]["reasons"]
    assert [reason["detail"] for reason in details] == ["the log ends at iteration 7 of 12"]
    assert "✗ bert_b4_fp32_0.log  incomplete: " in collect(tmp_path / "pytorch", *WINDOW).stdout
    assert "✗ repeat 1  incomplete: " in collect(tmp_path / "named", *WINDOW).stdout
    markdown = collect(tmp_path / "pytorch", *WINDOW, "--format", "markdown").stdout
    assert "_0.log is invalid: incomplete" in markdown.replace("\\", "")
    words = ("--pattern", "{nodes}n{gpus_per_node}g/*/run.log", "--as-repeats")
    text = collect(tmp_path / "as", *words, *WINDOW).stdout
    assert re.search(r"✗ \S+/2/run.log  incomplete", text), text


def test_runs_that_state_their_end_may_differ_in_length(tmp_path, run):
    head = 'schema = 1\ntitle = "steps"\nlaunch = "per-gpu"\nprecisions = ["fp32"]\n'
    recipe = f"{head}[batch_sizes]\nfp32 = 1\n{logs.grammar_file('steps').read_text()}"
    write_file(tmp_path, "templates/steps/recipe.toml", recipe)
    words = ("--templates", tmp_path / "templates", "--iters", "end")
    for closing, ok in (("result: 1.0\n", 3), ("Killed\n", 1)):
        for number, last in enumerate((120, 90, 100), start=1):
            lines = [logs.step(n, at=n + number * 1e4, rate=1.0) for n in range(1, last + 1)]
            log = "".join([*lines, closing])
            write_file(tmp_path, f"steps/1n1g/bert_b1_fp32_{number}.log", log)
        row = first_row(run(tmp_path / "steps", *words))
        assert row["repeats"] == {"ok": ok, "asked": 3}, row["runs"]


@cases
def test_a_shape_is_that_of_the_only_description(tmp_path, files, shape):
    folder = tmp_path / "NVIDIA/results/dgx/bert"
    for name, text in files.items():
        write_file(folder, name, text)
    assert read_system(folder)[:2] == (shape or (None, None))
