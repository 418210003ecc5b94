"""What a table states about a run is confirmed by its logs, contradicted, or marked by name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.campaign.test_foreign_models import drop_lines
from tests.kit import logs
from tests.kit.cases import cases
from tests.kit.cli import Collect, CollectJson, first_row, only_run
from tests.kit.logs import write_file
from tests.kit.recipes import options_of, printed

PERF = "logs/PaddlePaddle+Perf/v2.0-ee2e639/Bert"
TORCH = f"{PERF}/OtherReports/PyTorch/logs/bert_base_lamb_pretraining.pyt_bert_pretraining_phase1"
TF1 = f"{PERF}/OtherReports/TensorFlow/logs/tf_bert_pretraining_lamb_base"
LABELLED = "*_{precision}_bs{batch_size}_gpu{gpus}.log"


def collect_log(
    run: CollectJson, folder: Path, log: Path, name: str, *words: object
) -> dict[str, object]:
    folder.mkdir(exist_ok=True)
    shutil.copy(log, folder / name)
    return run(folder, "--pattern", LABELLED, "--gpus-per-node", 8, *words)


def test_a_rate_of_the_whole_run_confirms_no_label(
    tmp_path: Path, shared: Path, run: CollectJson
) -> None:
    """32 GPUs, fp32, 32 samples: the closing line is right whatever the name says."""
    log = shared / f"{TORCH}_without_gradacc_fp32_bs32_gpu32.log"
    words = ("--fw", "ngc-pytorch", "--rule", "footer")
    row = first_row(collect_log(run, tmp_path / "x", log, "x_fp16_bs7_gpu64.log", *words))
    assert "unchecked" in row["flags"]
    assert {"nodes", "gpus", "batch", "precision", "model"} <= {*row["unchecked"]}


def test_a_label_that_a_log_states_otherwise_is_refused(
    tmp_path: Path, shared: Path, run: CollectJson
) -> None:
    log = shared / f"{TORCH}_fp16_bs96_gpu32.log"
    words = ("--fw", "ngc-pytorch", "--rule", "footer")
    document = collect_log(run, tmp_path / "x", log, "x_fp32_bs7_gpu64.log", *words)
    (reason,) = only_run(document)["reasons"]
    assert reason["code"] == "config"
    assert "precision = fp16, the path says fp32" in reason["detail"]


@pytest.mark.parametrize(("gpus", "unchecked"), [(32, False), (64, None), (16, None)])
def test_the_ranks_of_mpirun_are_the_gpus(
    gpus: int, unchecked: bool | None, tmp_path: Path, shared: Path, run: CollectJson
) -> None:
    log = shared / f"{TF1}_without_gradacc_fp16_bs64_gpu32.log"
    words = ("--fw", "ngc-tf1", "--rule", "rate", "--skip", 10, "--iters", 40)
    document = collect_log(run, tmp_path / "x", log, f"x_fp16_bs64_gpu{gpus}.log", *words)
    if unchecked is None:
        (reason,) = only_run(document)["reasons"]
        assert reason["code"] == "config"
        assert "mpirun labels 32 ranks" in reason["detail"]
    else:
        assert ("gpus" in first_row(document)["unchecked"]) is unchecked


@pytest.mark.parametrize(
    ("batch", "message"), [(48, ""), (32, "batch_size_per_device = 48, the path says 32")]
)
def test_paddles_samples_of_a_step_are_the_batch(
    batch: int, message: str, tmp_path: Path, shared: Path, run: CollectJson
) -> None:
    log = shared / f"{PERF}/logs/base_bs48_fp32_gpu32_gradacc.log"
    words = ("--fw", "paddle", "--skip", 20, "--iters", 100)
    document = collect_log(run, tmp_path / "x", log, f"x_fp32_bs{batch}_gpu32.log", *words)
    (row,) = document["data"]["tables"][0]["rows"]  # type: ignore[index]
    if message:
        assert message in str(row["runs"][0]["reasons"])
    else:
        assert row["median"], row
        assert "batch" not in row["unchecked"]


@pytest.mark.parametrize(
    ("devices", "gpus"), [("0,1,2", 3), ("4,5,6,7", 4), ("3", 1), ("0,1,2,3,4,5", 6)]
)
def test_a_list_of_devices_says_how_many_they_are(
    devices: str, gpus: int, tmp_path: Path, run: CollectJson
) -> None:
    log = drop_lines("paddle", "TRAINERS|Local start")
    write_file(tmp_path, "logs/run_1.log", f"gpus: {devices}\n{log}")
    words = [*options_of("paddle")]
    words[words.index("--gpus-per-node") + 1] = str(gpus)
    row = first_row(run(tmp_path / "logs", *words))
    assert row["runs"][0]["valid"], row
    assert "gpus" not in row["unchecked"] or row["nodes"] == 1
    words[words.index("--gpus-per-node") + 1] = str(gpus + 1)
    (reason,) = only_run(run(tmp_path / "logs", *words))["reasons"]
    assert f"gpus_per_node = {gpus}" in reason["detail"]


@cases
def test_each_label_is_marked_by_its_name(
    recipe: str, lost: str, unchecked: list[str], tmp_path: Path, run: CollectJson
) -> None:
    write_file(tmp_path, "logs/run_1.log", drop_lines(recipe, lost))
    row = first_row(run(tmp_path / "logs", *options_of(recipe)))
    if not row["runs"][0]["valid"]:
        pytest.fail(str(row["runs"][0]["reasons"]))
    assert {*unchecked} <= {*row["unchecked"]}
    assert unchecked or not row["unchecked"]
    assert ("unchecked" in row["flags"]) is bool(row["unchecked"])


def test_a_product_confirms_neither_of_its_factors(tmp_path: Path, run: CollectJson) -> None:
    """A clock and a global rate agree for 1 GPU of 4 samples, and for 2 of 2."""
    log = logs.log("1n1g", 100.0).partition("\n")[2]
    for gpus, batch in ((1, 4), (2, 2)):
        write_file(tmp_path, f"pytorch/1n{gpus}g/bert_b{batch}_fp32_1.log", log)
        path = tmp_path / f"pytorch/1n{gpus}g"
        row = first_row(run(path, "--skip", 2, "--iters", 12))
        assert row["median"] == pytest.approx(100.0, rel=1e-3)
        assert {"gpus", "batch"} <= {*row["unchecked"]}
    write_file(tmp_path, "pytorch/1n2g/bert_b4_fp32_1.log", log)
    (reason,) = only_run(
        run(tmp_path / "pytorch/1n2g/bert_b4_fp32_1.log", "--skip", 2, "--iters", 12)
    )["reasons"]
    assert reason["code"] == "contradiction"


def test_the_names_are_in_text_and_markdown(tmp_path: Path, collect: Collect) -> None:
    write_file(tmp_path, "logs/run_1.log", printed("deepspeed"))
    words = (tmp_path / "logs", *options_of("deepspeed"))
    assert "! unchecked: nodes, gpus, batch, precision, model" in collect(*words).stdout
    assert (
        ": unchecked: nodes, gpus, batch, precision, model"
        in collect(*words, "--format", "markdown").stdout
    )
