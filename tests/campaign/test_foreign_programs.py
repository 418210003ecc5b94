"""A log of another program's model, or in a precision that it names elsewhere: what it is, or a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.campaign.test_foreign_labels import read_reason
from tests.campaign.test_foreign_models import drop_lines
from tests.kit.cases import cases
from tests.kit.cli import CollectJson
from tests.kit.logs import write_file
from tests.kit.recipes import load, options_of, printed


def list_headings(document: Any) -> list[tuple[str, str]]:
    return [(table["model"], table["precision"]) for table in document["data"]["tables"]]


# Lines that state another model, after the lines that this one replaces.
_GPT2 = "building GPT2 model ...\n"
_SIZES = "  hidden_size .................................... 1600\n  num_layers ..................................... 48\n"
_OWN = r"(?:hidden_size|num_layers|num_hidden_layers)[: .=]+\d+|model_name_or_path="


@cases
def test_a_table_of_another_model_is_not_headed_as_berts(
    recipe: str, lines: str, model: str, tmp_path: Path, run: CollectJson
) -> None:
    log = (
        drop_lines(recipe, _OWN)
        if "building" not in lines or _SIZES in lines
        else drop_lines(recipe, "")
    )
    write_file(tmp_path, "logs/run_1.log", lines + log)
    document = run(tmp_path / "logs", *options_of(recipe))
    assert [heading for heading, _ in list_headings(document)] == [model]
    # Whoever says that it is BERT is contradicted.
    code, detail = read_reason(run(tmp_path / "logs", *options_of(recipe), "--model", "bert-base"))
    assert code == "config"
    assert "--model says" in detail


def test_models_of_two_points_are_both_in_the_heading(tmp_path: Path, run: CollectJson) -> None:
    base = printed("megatron").decode()
    write_file(tmp_path, "logs/run_1.log", base)
    write_file(tmp_path, "logs/run_2.log", (_GPT2 + base).replace("micro_batch_size ................................ 32", "micro_batch_size ................................ 16").replace("global_batch_size ............................... 256", "global_batch_size ............................... 128").replace("batch size:   256", "batch size:   128"))  # fmt: skip
    document = run(
        tmp_path / "logs", "--fw", "megatron", "--pattern", "run_*.log", "--nodes", "1",
        "--gpus-per-node", "8", "--precision", "fp32",
    )  # fmt: skip
    assert {heading for heading, _ in list_headings(document)} == {"GPT2 or bert-base"}


_FP8 = [
    pytest.param("mlperf-bert", "parsed args:\nNamespace(use_transformer_engine=False, use_transformer_engine2=True, x=1)\n", id="mlperf-arguments"),
    pytest.param("mlperf-bert", "+ python run_pretraining.py --fp16 --use_transformer_engine2 --x\n", id="mlperf-command"),
    pytest.param("megatron", "  fp8 ............................................. hybrid\n", id="megatron"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("last", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("recipe", "lines"), _FP8)
def test_a_run_in_fp8_is_not_shown_as_16_bits(
    recipe: str, lines: str, *, last: bool, tmp_path: Path, run: CollectJson
) -> None:
    """Its program prints `16-bits training: True`, or parameters of 16 bits, all the same."""
    text = printed(recipe).decode(errors="replace").replace("torch.float32", "torch.bfloat16")
    stated = "16-bits training: True\n" if recipe == "mlperf-bert" else "torch.bfloat16\n"
    content = text.replace(stated, stated + lines, 1) if last else lines + text
    log = write_file(tmp_path, "logs/1n8g/bert_b1_1.log", content)
    sample = load(recipe).sample
    assert sample is not None
    words = ("--fw", recipe, "--pattern", "*_{repeat}.log", "--nodes", "1", "--gpus-per-node", "8")
    assert [precision for _, precision in list_headings(run(log, *words))] == ["fp8"]
    assert [
        precision for _, precision in list_headings(run(log, *words, "--precision", "fp8"))
    ] == ["fp8"]
    code, detail = read_reason(run(log, *words, "--precision", "fp16"))
    assert code == "config"
    assert "the log says precision = fp8, --precision says fp16" in detail


def test_deepspeed_in_bf16_is_not_shown_as_fp32(tmp_path: Path, run: CollectJson) -> None:
    stated = "[2023-04-18 01:00:00,000] [INFO] [config.py:1003:print]   bfloat16_enabled ............. True\n"
    log = write_file(
        tmp_path, "logs/run_1.log", stated + printed("deepspeed").decode(errors="replace")
    )
    words = (
        "--fw",
        "deepspeed",
        "--pattern",
        "run_{repeat}.log",
        "--nodes",
        "4",
        "--gpus-per-node",
        "8",
    )
    assert [precision for _, precision in list_headings(run(log, *words))] == ["bf16"]
