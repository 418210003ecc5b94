"""Which logs are repeats of one point: those that names number, of runs that followed each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.logs import pytorch, put
from tests.kit.tables import CollectJson, first_row, rows

RATES = (100.0, 130.0)
# Seconds between the beginnings of two runs, far more than each takes.
APART = 3600.0


def written(root: Path, *names: str, apart: float = APART) -> Path:
    for number, (name, rate) in enumerate(zip(names, RATES, strict=True)):
        put(root, f"pytorch/{name}", pytorch("1n1g", rate, start=1763717655.5 + number * apart))
    return root / "pytorch"


WINDOW = ("--skip", 2, "--iters", 12)
PATTERN = "*_{precision}_bs{batch_size}_gpu{gpus}*.log"
SAME_POINT = [
    pytest.param(
        ("tf_fp32_bs4_gpu1_without_gradacc.log", "tf_fp32_bs4_gpu1.log"),
        ("--pattern", PATTERN),
        id="text under a star",
    ),
    pytest.param(
        ("A100_LOG/fp32_bs4_gpu1.log", "V100_LOG/fp32_bs4_gpu1.log"),
        ("--pattern", "{precision}_bs{batch_size}_gpu{gpus}.log"),
        id="the folder above the pattern",
    ),
    pytest.param(
        ("A100_LOG/run.log", "V100_LOG/run.log"), ("--pattern", "*/run.log"), id="a folder"
    ),
    pytest.param(
        ("A100/1n1g/bert_b4_fp32_1.log", "V100/1n1g/bert_b4_fp32_2.log"),
        (),
        id="numbers of two folders in DLPerf's layout",
    ),
    pytest.param(
        ("A100/run1.log", "V100/run2.log"),
        ("--pattern", "run{repeat}.log"),
        id="numbers of two folders by a pattern",
    ),
]
GIVEN = ("--nodes", 1, "--gpus-per-node", 1, "--batch-size", 4, "--precision", "fp32", *WINDOW)


@pytest.mark.parametrize(("names", "words"), SAME_POINT)
def test_logs_that_fall_on_one_point_are_repeats_only_if_the_user_says_so(
    names: tuple[str, str], words: tuple[str, ...], tmp_path: Path, run: CollectJson
) -> None:
    words = (
        *words,
        "--gpus-per-node",
        "1",
        *(("--nodes", "1") if "gpu{" not in str(words) else ()),
    )
    words = (*words, *map(str, WINDOW))
    folder = written(tmp_path, *names)
    document = run(folder, *words)
    assert document["exit_code"] == 2
    message = document["errors"][0]["message"]
    assert all(name in message for name in names), message
    assert "--as-repeats" in document["errors"][0]["hint"]
    (row,) = rows(run(folder, *words, "--as-repeats"))
    assert row["repeats"] == {"ok": 2, "asked": 2}
    assert [one["repeat"] for one in row["runs"]] == [1, 2]


def test_named_files_are_no_repeats_by_themselves(tmp_path: Path, run: CollectJson) -> None:
    folder = written(tmp_path, "first.log", "second.log")
    files = folder / "first.log", folder / "second.log"
    assert run(*files, *GIVEN)["exit_code"] == 2
    assert first_row(run(*files, *GIVEN, "--as-repeats"))["repeats"]["ok"] == 2


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (("run1_a.log", "run2_b.log"), "run{repeat}_*.log"),
        (("run1/a.log", "run2/a.log"), "run{repeat}/*.log"),
        (("slurm-71_0.out", "slurm-71_1.out"), "slurm-*_{repeat}.out"),
    ],
    ids=["a star", "a folder", "an array's tasks"],
)
def test_a_number_in_the_pattern_says_that_logs_are_repeats(
    names: tuple[str, str], pattern: str, tmp_path: Path, run: CollectJson
) -> None:
    folder = written(tmp_path, *names)
    row = first_row(run(folder, *GIVEN, "--pattern", pattern))
    assert row["repeats"] == {"ok": 2, "asked": 2}


def test_an_invalid_log_beside_another_experiment_is_left_out(
    tmp_path: Path, run: CollectJson
) -> None:
    folder = written(tmp_path, "x_fp32_bs4_gpu1.log", "x_fp32_bs4_gpu1_acc.log")
    put(folder, "x_fp32_bs4_gpu1_acc.log", pytorch("1n1g", 100, last=3))
    document = run(folder, "--pattern", PATTERN, "--gpus-per-node", 1, *WINDOW)
    assert document["exit_code"] == 4
    assert first_row(document)["repeats"] == {"ok": 1, "asked": 1}
    (left,) = document["data"]["left_out"]
    assert "nothing says that it is a repeat of" in left["why"]
    assert "x_fp32_bs4_gpu1.log" in left["why"]


def test_options_about_repeats_have_no_effect_on_campaigns(build: object, run: CollectJson) -> None:
    built = build("1n1g", repeats=1)  # type: ignore[operator]
    document = run(built.directory, "--as-repeats")
    assert "--as-repeats has no effect on campaigns" in document["errors"][0]["message"]


def test_two_real_logs_with_and_without_accumulation_are_not_pooled(
    shared: Path, run: CollectJson
) -> None:
    folder = shared / "logs/PaddlePaddle+Perf/v2.0-ee2e639/Bert/OtherReports/PyTorch/logs"
    start = "bert_base_lamb_pretraining.pyt_bert_pretraining_phase1"
    names = [f"{start}{what}_fp32_bs32_gpu32.log" for what in ("", "_without_gradacc")]
    words = ("--pattern", PATTERN, "--fw", "ngc-pytorch", "--rule", "footer", "--gpus-per-node", 8)
    document = run(*(folder / name for name in names), *words)
    assert document["exit_code"] == 2
    assert all(name in document["errors"][0]["message"] for name in names)
