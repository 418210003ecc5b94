"""Nothing vanishes: what was looked at and is in no table is named, with why."""

from __future__ import annotations

import bz2
import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hpcbert.results.formats import shorten_command
from tests.campaign.test_foreign import deepspeed_log
from tests.kit.cli import Collect, CollectJson, rows
from tests.kit.logs import log as pytorch_log
from tests.kit.logs import write_file, write_submission
from tests.recipes import test_tinygrad as tinygrad


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    root = tmp_path / "logs" / "deepspeed"
    for number in (1, 2):
        name = f"1n1g/bert_b32_fp32_{number}.log"
        write_file(root, name, deepspeed_log([100.0 + number] * 118, run=number))
    return root


def list_left_out(document: dict[str, Any]) -> dict[str, str]:
    return {Path(log["path"]).name: log["why"] for log in document["data"]["left_out"]}


@pytest.mark.parametrize(
    "name",
    ["bert_b32_fp32_run2.log", "bert_b32_fp32_3.LOG", "bert_b32_fp32_3.log.zst", "slurm-7.out"],
)
def test_what_may_be_a_log_is_named_and_counted(
    logs: Path, collect: Collect, collect_json: CollectJson, name: str
) -> None:
    shutil.copy(logs / "1n1g/bert_b32_fp32_1.log", logs / "1n1g" / name)
    document = collect_json(logs)
    assert (document["status"], document["exit_code"]) == ("partial", 4)
    assert "a name in DLPerf's form" in list_left_out(document)[name]
    assert rows(document)[0]["repeats"] == {"ok": 2, "asked": 2}
    text = collect(logs)
    assert text.returncode == 4
    assert "left out 1 file, because it does not have a name in DLPerf's form" in text.stderr
    assert name in text.stderr
    assert "hpcbert left out what may be a log" in text.stderr
    assert "101.50" in text.stdout


def test_what_is_no_log_is_named_and_no_loss(
    logs: Path, collect: Collect, collect_json: CollectJson
) -> None:
    for number in range(12):
        write_file(logs, f"result/table{number}.json", "{}")
    write_file(logs, "README.md", "numbers")
    document = collect_json(logs)
    assert document["exit_code"] == 0
    assert set(list_left_out(document)) == {"README.md", *(f"table{n}.json" for n in range(12))}
    (line,) = (line for line in collect(logs).stderr.splitlines() if "left out" in line)
    assert "left out 13 files, because it does not have the name of a log" in line
    assert "3 more, which --json names" in line


def test_a_pattern_leaves_out_what_it_does_not_fit(
    logs: Path, collect: Collect, collect_json: CollectJson
) -> None:
    write_file(logs, "1n1g/other.log", "x")
    words = (logs, "--pattern", "bert_b{batch_size}_{precision}_{repeat}.log")
    document = collect_json(*words)
    assert document["exit_code"] == 0
    assert "does not match the pattern" in list_left_out(document)["other.log"]
    assert "other.log" in collect(*words).stderr


def test_a_named_file_that_no_pattern_fits_is_a_loss(logs: Path, collect_json: CollectJson) -> None:
    write_file(logs, "1n1g/other.log", "x")
    files = sorted((logs / "1n1g").iterdir())
    words = ("--pattern", "bert_b{batch_size}_{precision}_{repeat}.log")
    document = collect_json(*files, *words)
    assert document["exit_code"] == 4
    assert set(list_left_out(document)) == {"other.log"}
    assert rows(document)[0]["repeats"] == {"ok": 2, "asked": 2}


def test_an_unknown_file_stops_no_table(
    tmp_path: Path, logs: Path, collect_json: CollectJson
) -> None:
    write_file(tmp_path / "logs", "unknown/1n1g/bert_b32_fp32_1.log", "nobody knows\n" * 9)
    write_file(logs, "mystery/bert_b32_fp32_1.log", "nobody knows either\n" * 9)
    document = collect_json(tmp_path / "logs")
    assert document["exit_code"] == 4
    assert rows(document)[0]["repeats"] == {"ok": 2, "asked": 2}
    whys = {log["path"]: log["why"] for log in document["data"]["left_out"]}
    assert len(whys) == 2
    assert any("names no framework" in reason for reason in whys.values())
    assert any("It has no number" in reason for reason in whys.values())


def test_an_unknown_framework_of_a_pattern_stops_no_table(
    tmp_path: Path, logs: Path, collect_json: CollectJson
) -> None:
    write_file(tmp_path / "logs", "nonesuch/1n1g/bert_b32_fp32_1.log", deepspeed_log([1.0] * 118))
    pattern = "{framework}/{nodes}n{gpus_per_node}g/bert_b{batch_size}_{precision}_{repeat}.log"
    document = collect_json(tmp_path / "logs", "--pattern", pattern)
    assert document["exit_code"] == 4
    assert rows(document)[0]["repeats"] == {"ok": 2, "asked": 2}
    (log,) = document["data"]["left_out"]
    assert "no framework 'nonesuch'" in log["why"]


def test_a_log_and_itself_compressed_are_one(logs: Path, collect_json: CollectJson) -> None:
    plain = logs / "1n1g/bert_b32_fp32_1.log"
    packed = plain.with_suffix(".log.gz")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    document = collect_json(logs)
    assert document["exit_code"] == 0
    assert rows(document)[0]["repeats"] == {"ok": 2, "asked": 2}
    assert "which was read" in list_left_out(document)[packed.name]
    packed.with_suffix(".bz2").write_bytes(bz2.compress(plain.read_bytes()))
    plain.unlink()
    document = collect_json(logs)
    assert document["exit_code"] == 0
    assert rows(document)[0]["repeats"] == {"ok": 2, "asked": 2}
    assert list(list_left_out(document)) == [packed.name]


def test_a_log_and_another_under_its_name_compressed_are_refused(
    logs: Path, collect: Collect
) -> None:
    other = gzip.compress(deepspeed_log([300.0] * 118).encode())
    (logs / "1n1g/bert_b32_fp32_1.log.gz").write_bytes(other)
    result = collect(logs)
    assert result.returncode == 2
    assert "are both repeat 1 of one point" in result.stderr


def test_links_to_logs_that_are_read_are_named(logs: Path, collect_json: CollectJson) -> None:
    (logs / "1n1g/bert_b32_fp32_3.log").symlink_to("bert_b32_fp32_1.log")
    document = collect_json(logs)
    assert rows(document)[0]["repeats"] == {"ok": 2, "asked": 2}
    assert "is a link to" in list_left_out(document)["bert_b32_fp32_3.log"]


def test_a_window_goes_on_to_the_end(logs: Path, collect_json: CollectJson) -> None:
    for number in (1, 2):
        rates = [1.0] * 18 + [100.0 + number] * 100 + [200.0 + number] * 100
        write_file(logs, f"1n1g/bert_b32_fp32_{number}.log", deepspeed_log(rates, run=number))
    row = rows(collect_json(logs, "--iters", "end"))[0]
    assert row["median"] == pytest.approx(151.5)
    assert row["window"] == {"skip": 20, "iters": "end", "counted": "iterations 21 to the end"}
    row = rows(collect_json(logs, "--skip", "120", "--iters", "end"))[0]
    assert row["median"] == pytest.approx(201.5)
    assert rows(collect_json(logs))[0]["median"] == pytest.approx(101.5)


def test_a_run_that_ended_before_the_others_is_not_whole(
    logs: Path, collect_json: CollectJson
) -> None:
    write_file(logs, "1n1g/bert_b32_fp32_3.log", deepspeed_log([100.0] * 90))
    document = collect_json(logs, "--iters", "end")
    (bad,) = (run for run in rows(document)[0]["runs"] if not run["valid"])
    assert (document["exit_code"], bad["repeat"]) == (4, 3)
    assert "ends at iteration 92, that of another repeat at 120" in bad["reasons"][0]["detail"]


@pytest.mark.parametrize("at_end", [True, False], ids=["at-the-end", "now-and-then"])
def test_only_a_line_after_all_records_closes_a_run(
    logs: Path, collect_json: CollectJson, *, at_end: bool
) -> None:
    rate = "Average throughput: 100.0 samples/s"
    log = deepspeed_log([100.0] * 90, run=7)
    lines = log.splitlines() if at_end else [line + "\n" + rate for line in log.splitlines()]
    write_file(logs, "1n1g/bert_b32_fp32_3.log", "\n".join([*lines, rate, ""]))
    document = collect_json(logs, "--iters", "end")
    assert [run["valid"] for run in rows(document)[0]["runs"]] == [True, True, at_end]


@pytest.mark.parametrize("last", [0, 1, 17])
def test_a_window_without_an_end_is_incomplete(
    logs: Path, collect_json: CollectJson, last: int
) -> None:
    for number in (1, 2):
        write_file(
            logs,
            f"1n1g/bert_b32_fp32_{number}.log",
            deepspeed_log([9.0 + number] * last, run=number) + "x\n",
        )
    document = collect_json(logs, "--iters", "end")
    assert document["exit_code"] == 4
    assert "1099511627776" not in json.dumps(document)
    assert rows(document)[0]["repeats"]["ok"] == 0


@pytest.mark.parametrize("value", ["End", "0", "-1", "x", "1e3", "٣"], ids=ascii)
def test_other_ends_are_usage_errors(logs: Path, collect: Collect, value: str) -> None:
    result = collect(logs, "--iters", value)
    assert result.returncode == 2
    assert "neither a number above 0 nor `end`" in result.stderr


def test_gpus_alone_tell_the_shapes_of_one_folder(
    tmp_path: Path, collect: Collect, collect_json: CollectJson
) -> None:
    for gpus in (1, 4, 8, 32):
        for number in (1, 2):
            name = f"x/bs32_fp32_gpu{gpus}_run{number}.log"
            log = deepspeed_log([100.0 * gpus + number] * 118, samples=32 * gpus, run=number)
            write_file(tmp_path, name, log)
    pattern = "bs{batch_size}_{precision}_gpu{gpus}_run{repeat}.log"
    words = (tmp_path / "x", "--fw", "deepspeed", "--pattern", pattern)
    expected = rows(collect_json(*words, "--gpus-per-node", "8"))
    assert [row["shape"] for row in expected] == ["1n1g", "1n4g", "1n8g", "4n8g"]
    assert rows(collect_json(*words)) == expected
    result = collect(*words)
    assert result.returncode == 0
    assert "only their GPUs are known, and a node usually has 8; --gpus-per-node" in result.stdout
    assert "nodes = 1 with 4 GPUs each, 1 with 8 GPUs each, 4 with 8 GPUs each" in result.stdout
    four = rows(collect_json(*words, "--gpus-per-node", "4"))
    assert [row["shape"] for row in four] == ["1n1g", "1n4g", "2n4g", "8n4g"]


def test_gpus_that_make_no_whole_nodes_are_unknown(
    tmp_path: Path, collect_json: CollectJson
) -> None:
    for gpus in (8, 12):
        write_file(
            tmp_path,
            f"x/bs32_fp32_gpu{gpus}.log",
            deepspeed_log([10.0 * gpus] * 118, samples=32 * gpus),
        )
    pattern = "bs{batch_size}_{precision}_gpu{gpus}.log"
    document = collect_json(tmp_path / "x", "--fw", "deepspeed", "--pattern", pattern)
    assert document["exit_code"] == 4
    assert [row["shape"] for row in rows(document)] == ["1n8g"]
    assert "has nodes" in list_left_out(document)["bs32_fp32_gpu12.log"]


def test_a_reason_that_several_logs_share_is_said_once(tmp_path: Path, collect: Collect) -> None:
    """Names are relative to the folder that all of them are in."""
    for size in (4, 8):
        write_file(tmp_path, f"x/a_fp32_bs{size}_gpu1.log", pytorch_log("1n1g", 100.0, batch=size))
        cut = pytorch_log("1n1g", 100.0, batch=size, last=3)
        write_file(tmp_path, f"x/a_fp32_bs{size}_gpu1_acc.log", cut)
    result = collect(tmp_path / "x", "--gpus-per-node", 1, "--skip", 2, "--iters", 12)
    (line,) = (line for line in result.stderr.splitlines() if "left out 2 files" in line)
    assert "because it has no number" in line
    assert line.endswith(f"in {tmp_path}/x: a_fp32_bs4_gpu1_acc.log, a_fp32_bs8_gpu1_acc.log")
    assert result.returncode == 4


def test_each_reason_is_said_if_no_log_can_be_read(tmp_path: Path, collect: Collect) -> None:
    write_submission(tmp_path, [9, 10])
    write_file(tmp_path, "Org/results/sys/bert/notes.log", "hello\n")
    result = collect(tmp_path / "Org/results")
    assert result.returncode == 2
    assert result.stderr.count("error:") == 2
    assert "record extract" in result.stderr
    assert "no line of a known one" in result.stderr


def test_a_cut_log_of_a_numbered_layout_is_a_repeat_of_its_own_system(
    tmp_path: Path, run: CollectJson
) -> None:
    whole = tinygrad.write_runs(tmp_path, tinygrad.format_run(160.0), tinygrad.format_run(161.0))
    other = whole.parent.parent / "tinybox_green" / "bert"
    shutil.copytree(whole, other)
    shutil.copy(
        tmp_path / "tinycorp/systems/tinybox_red.json",
        tmp_path / "tinycorp/systems/tinybox_green.json",
    )
    for path in other.iterdir():
        # Another day: the runs of both systems do not overlap.
        path.write_text(path.read_text().replace('"time_ms": 174', '"time_ms": 175'))
    cut = other / "result_1.txt"
    cut.write_text(cut.read_text().rpartition(":::MLLOG")[0])
    document = run(whole.parent.parent)
    counts = [table["rows"][0]["repeats"] for table in document["data"]["tables"]]
    assert sorted(count["ok"] for count in counts) == [1, 2]
    assert [count["asked"] for count in counts] == [2, 2]
    assert document["data"]["left_out"] == []


def test_two_logs_of_one_run_count_once(tmp_path: Path, run: CollectJson) -> None:
    """Two of tinycorp's v4.1 logs differ only in the seed, behind the end of the run."""
    folder = tinygrad.write_runs(tmp_path, tinygrad.format_run(160.0), tinygrad.format_run(161.0))
    text = (folder / "result_0.txt").read_text()
    (folder / "result_2.txt").write_text(f"{text}seed 2\n")
    (row,) = run(folder)["data"]["tables"][0]["rows"]
    assert row["repeats"] == {"ok": 2, "asked": 3}
    codes = [[reason["code"] for reason in entry["reasons"]] for entry in row["runs"]]
    assert codes == [[], [], ["duplicate"]]


def test_the_end_of_a_run_counts_wherever_a_thousand_ranks_go_on(
    tmp_path: Path, run: CollectJson
) -> None:
    folder = tinygrad.write_runs(tmp_path, tinygrad.format_run(160.0))
    log = folder / "result_0.txt"
    log.write_text(log.read_text() + "7: ERROR sharp_create_job failed: no manager\n" * 4000)
    (row,) = run(folder)["data"]["tables"][0]["rows"]
    assert row["repeats"] == {"ok": 1, "asked": 1}


def test_a_long_command_line_is_shortened_below_the_table() -> None:
    command = "hpcbert collect " + " ".join(f"/data/logs/slurm-{n}.out" for n in range(40))
    text = shorten_command(command)
    assert len(text) < 400
    assert text.startswith("hpcbert collect /data/logs/slurm-0.out")
    assert len(command.split()) == len(text.split(" … ")[0].split()) + int(text.split()[-6])
    assert shorten_command("hpcbert collect logs") == "hpcbert collect logs"
