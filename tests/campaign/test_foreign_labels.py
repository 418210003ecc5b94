"""What is said of a log by options, by its path and by itself must agree; what it is, its lines say."""

from __future__ import annotations

import gzip
import lzma
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.kit.cases import cases
from tests.kit.cli import CollectJson, only_run
from tests.kit.logs import write_file
from tests.kit.recipes import sample

TF1 = "1n8g/bert_b64_fp16_1.log"


def read_reason(document: dict[str, Any]) -> tuple[str, str]:
    (entry,) = only_run(document)["reasons"]
    return entry["code"], entry["detail"]


@cases
def test_an_option_never_relabels_a_path(
    tmp_path: Path, run: CollectJson, flag: str, value: str, message: str
) -> None:
    write_file(tmp_path, f"ngc-tf1/{TF1}", sample("ngc-tf1"))
    document = run(tmp_path / "ngc-tf1", flag, value)
    assert document["exit_code"] == 2
    assert message in document["errors"][0]["message"]
    assert "data" not in document or not (document["data"] or {}).get("tables")


def test_all_gpus_of_a_path_agree_with_the_options(tmp_path: Path, run: CollectJson) -> None:
    write_file(tmp_path, "logs/bs64_fp16_gpu8.log", sample("ngc-tf1"))
    words = ("--fw", "ngc-tf1", "--pattern", "bs{batch_size}_{precision}_gpu{gpus}.log")
    assert only_run(run(tmp_path / "logs", *words, "--nodes", 1))["valid"]
    assert only_run(run(tmp_path / "logs", *words, "--gpus-per-node", 8))["valid"]
    document = run(tmp_path / "logs", *words, "--nodes", 1, "--gpus-per-node", 4)
    message = "The path says gpus = 8, but --nodes with --gpus-per-node says 1 x 4"
    assert (document["exit_code"], message in document["errors"][0]["message"]) == (2, True)


def test_a_folders_framework_is_not_overruled(tmp_path: Path, run: CollectJson) -> None:
    write_file(tmp_path, f"ngc-tf1/{TF1}", sample("ngc-tf1"))
    document = run(tmp_path / "ngc-tf1", "--fw", "paddle")
    assert document["exit_code"] == 2
    message = document["errors"][0]["message"]
    assert "The path says framework = ngc-tf1, but --fw says paddle" in message
    patterned = run(
        tmp_path, "--fw", "paddle", "--pattern",
        "{framework}/{nodes}n{gpus_per_node}g/bert_b{batch_size}_{precision}_{repeat}.log",
    )  # fmt: skip
    assert "framework = ngc-tf1, but --fw says paddle" in patterned["errors"][0]["message"]


def test_a_folder_may_be_called_as_another_framework(tmp_path: Path, run: CollectJson) -> None:
    """DLPerf keeps the logs of NVIDIA's PyTorch BERT in folders called pytorch."""
    write_file(
        tmp_path, "pytorch/1n8g/bert-base-adam-training_b32_fp32_1.log", sample("ngc-pytorch")
    )
    document = run(tmp_path / "pytorch", "--fw", "ngc-pytorch")
    assert only_run(document)["valid"]


@pytest.mark.slow
@cases
def test_a_log_that_says_otherwise_is_refused_by_both_values(
    tmp_path: Path, run: CollectJson, name: str, words: tuple[str, ...], message: str
) -> None:
    path = write_file(tmp_path, f"logs/{name}", sample("ngc-tf1"))
    code, detail = read_reason(run(path, "--fw", "ngc-tf1", *words))
    assert (code, message in detail) == ("config", True), detail


@pytest.mark.parametrize(
    "word", ["packing", "packing=0", "packing=2.5", "nodes=2", "packing=-1", "=2"]
)
def test_a_setting_of_logs_is_a_known_name_and_a_whole_number(
    tmp_path: Path, run: CollectJson, word: str
) -> None:
    path = write_file(tmp_path, TF1, sample("ngc-tf1"))
    document = run(path, "--fw", "ngc-tf1", "--set", word)
    assert document["exit_code"] == 2
    assert "--set" in document["errors"][0]["message"]
    twice = run(path, "--fw", "ngc-tf1", "--set", "packing=2", "--set", "packing=2")
    assert "twice" in twice["errors"][0]["message"]


@cases
def test_a_log_of_another_framework_is_recognised_by_its_lines(
    tmp_path: Path, run: CollectJson, fw: str, log: str, names: str
) -> None:
    path = write_file(tmp_path, "logs/1n8g/bert_b32_fp16_1.log", sample(log))
    code, detail = read_reason(run(path, "--fw", fw))
    assert code == "format"
    assert f"has no line of {fw}, but looks like a log of {names}" in detail


def test_a_log_of_a_program_with_the_same_lines_keeps_its_own_batch(
    tmp_path: Path, run: CollectJson
) -> None:
    path = write_file(tmp_path, "logs/1n8g/bert_b32_fp16_1.log", sample("perfzero"))
    code, detail = read_reason(run(path, "--fw", "tf2"))
    assert (code, "a global batch of 760 is not 32 samples" in detail) == ("config", True)


@pytest.mark.parametrize(
    ("data", "code", "message"),
    [
        (
            b"epoch 3 took 17 ms\n" * 50,
            "incomplete",
            "bert_b32_fp32_1.log has no line of oneflow",
        ),
        (b"srun: error: n1: tasks 0-3: Killed\n", "incomplete", "the run ended before the first"),
        (b"", "incomplete", "is empty"),
        (bytes(range(256)) * 40, "format", "is not a text file"),
        (b"\x7fELF\x02\x01\x01" + bytes(4000), "format", "is not a text file"),
        (b"\x28\xb5\x2f\xfd" + bytes(100), "format", "if it is compressed, unpack it first"),
        (gzip.compress(b"step: 1\n" * 9)[:-9], "no-log", "is cut short"),
        (gzip.compress(bytes(range(256)) * 40), "format", "is not a text file"),
        ("epoch 3 took 17 ms\n".encode("utf-16") * 20, "incomplete", "has no line of"),
        ("epoch 3 took 17 ms\n".encode("utf-16-le") * 20, "incomplete", "has no line of"),
    ],
    ids=[
        "unknown",
        "died",
        "empty",
        "binary",
        "elf",
        "zstd",
        "torn gzip",
        "binary in gzip",
        "utf-16",
        "utf-16 without its mark",
    ],
)
def test_what_is_no_log_of_any_framework_says_what_it_is(
    tmp_path: Path, run: CollectJson, data: bytes, code: str, message: str
) -> None:
    write_file(tmp_path, "oneflow/1n1g/bert_b32_fp32_1.log", data)
    reason_code, detail = read_reason(run(tmp_path / "oneflow"))
    assert (reason_code, message in detail) == (code, True), detail


def test_compressed_and_wide_logs_are_in_the_table(tmp_path: Path, run: CollectJson) -> None:
    data = sample("ngc-tf1")
    write_file(tmp_path, "ngc-tf1/1n8g/bert_b64_fp16_1.log", data)
    write_file(tmp_path, "ngc-tf1/1n8g/bert_b64_fp16_2.log.gz", gzip.compress(data))
    write_file(tmp_path, "ngc-tf1/1n8g/bert_b64_fp16_3.log.xz", lzma.compress(data))
    write_file(tmp_path, "ngc-tf1/1n8g/bert_b64_fp16_4.log", gzip.compress(data))
    write_file(tmp_path, "ngc-tf1/1n8g/bert_b64_fp16_5.log", data.decode().encode("utf-16"))
    pattern = "bert_b{batch_size}_{precision}_{repeat}.log"
    for words in ((), ("--pattern", pattern)):
        (table,) = run(tmp_path / "ngc-tf1", *words)["data"]["tables"]
        (row,) = table["rows"]
        assert [entry["repeat"] for entry in row["runs"]] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "log",
    ["fp32_bs32_gpu1", "fp32_bs32_gpu8", "fp32_bs32_gpu32", "fp16_bs64_gpu1", "fp16_bs64_gpu32"],
)
def test_the_precision_of_a_real_tensorflow_log_is_read_from_its_steps(
    tmp_path: Path, shared: Path, run: CollectJson, log: str
) -> None:
    folder = shared / "logs/PaddlePaddle+Perf/v2.0-ee2e639/Bert/OtherReports/TensorFlow/logs"
    precision, batch, gpus = log.split("_")
    wrong = {"fp32": "fp16", "fp16": "fp32"}[precision]
    shape = {"gpu1": "1n1g", "gpu8": "1n8g", "gpu32": "4n8g"}[gpus]
    path = tmp_path / f"ngc-tf1/{shape}/bert_b{batch[2:]}_{wrong}_1.log"
    path.parent.mkdir(parents=True)
    shutil.copy(folder / f"tf_bert_pretraining_lamb_base_{log}.log", path)
    code, detail = read_reason(
        run(tmp_path / "ngc-tf1", "--rule", "rate", "--skip", 10, "--iters", 40)
    )
    assert (code, f"precision = {precision}" in detail) == ("config", True), detail


@pytest.mark.parametrize("folder", ["fp32", "logs-fp32", "bz32", "fp16_ngc_bert_b96"])
def test_a_folder_that_says_otherwise_is_named(
    tmp_path: Path, run: CollectJson, folder: str
) -> None:
    path = write_file(tmp_path, f"ngc-tf1/{folder}/{TF1}", sample("ngc-tf1"))
    document = run(tmp_path / "ngc-tf1")
    assert document["exit_code"] == 2
    assert "The path says" in document["errors"][0]["message"]
    assert document["errors"][0]["message"].count(" = ") == 2
    pattern = "{nodes}n{gpus_per_node}g/bert_b{batch_size}_{precision}_{repeat}.log"
    assert only_run(run(path, "--fw", "ngc-tf1", "--pattern", pattern))["valid"]


def test_folders_label_logs_of_any_name(tmp_path: Path, run: CollectJson) -> None:
    path = write_file(tmp_path, "fp16/bz64/1n8g/first.log", sample("ngc-tf1"))
    assert only_run(run(path, "--fw", "ngc-tf1"))["valid"]
    document = run(path, "--fw", "ngc-tf1", "--precision", "fp32")
    assert "The path says precision = fp16, but --precision says fp32" in str(document["errors"])
    path = write_file(tmp_path, "fp32/bz64/1n8g/first.log", sample("ngc-tf1"))
    assert read_reason(run(path, "--fw", "ngc-tf1"))[0] == "config"
