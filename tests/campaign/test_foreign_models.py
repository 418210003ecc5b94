"""Which model a log is of: said by its lines, by an option or by its path, and all must agree."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hpcbert.logs.setting import SIZES, Setting, model_facts, model_name
from tests.campaign.test_foreign_labels import read_reason
from tests.kit.cases import cases, read_constant
from tests.kit.cli import CollectJson
from tests.kit.logs import write_file
from tests.kit.recipes import options_of, printed, sample

# How programs state a model.
LINES = read_constant(__file__, "LINES")
# What the samples have of these.
OWN = re.compile(
    r"(?:hidden_size|num_layers|num_hidden_layers)[: .]+\d+|model='bert_\w+'|model_name_or_path='\S+"
    r"|bert_model='\S+|\"model\": \"tiny\"|\"(?:layers|hidden)\": \d+"
)


def render_log(recipe: str, model: str) -> str:
    """Return a recipe's sample, of another model."""
    hidden, layers = SIZES[model]
    line = LINES[recipe].format(model=model, size=model[5:], hidden=hidden, layers=layers)
    return f"{line}\n{OWN.sub('', printed(recipe).decode(errors='replace'))}"


@pytest.mark.slow
@pytest.mark.parametrize("recipe", sorted(LINES))
def test_base_and_large_are_no_repeats_of_each_other(
    recipe: str, tmp_path: Path, run: CollectJson
) -> None:
    for number, model in enumerate(("bert-base", "bert-large"), start=1):
        write_file(tmp_path, f"logs/run_{number}.log", render_log(recipe, model))
    ((row,),) = [
        table["rows"] for table in run(tmp_path / "logs", *options_of(recipe))["data"]["tables"]
    ]
    assert row["repeats"] == {"ok": 0, "asked": 2}
    for entry in row["runs"]:
        (cause,) = entry["reasons"]
        assert cause["code"] == "incomparable"
        assert re.search("model|hidden_size|layers", cause["detail"])
    document = run(tmp_path / "logs", *options_of(recipe), "--model", "bert-base")
    (row,) = document["data"]["tables"][0]["rows"]
    assert [entry["valid"] for entry in row["runs"]] == [True, False]
    assert row["runs"][1]["reasons"][0]["code"] == "config"


@pytest.mark.parametrize("stated", ["bert-large", "large", "BERT_LARGE", "bert-large-uncased"])
@pytest.mark.parametrize("by", ["--model", "the path"])
def test_a_log_of_another_model_than_was_said_is_refused(
    stated: str, by: str, tmp_path: Path, run: CollectJson
) -> None:
    model = stated if by == "the path" else "run"
    log = write_file(tmp_path, f"logs/1n1g/{model}_b8_fp32_1.log", sample("pytorch"))
    words = ("--model", stated) if by == "--model" else ()
    code, detail = read_reason(run(log, "--fw", "pytorch", *words))
    assert code == "config"
    assert f"the log says model = bert-tiny, {by} says bert-large" in detail
    assert f"the log says hidden_size = 128, {by} says 1024" in detail


def test_a_campaign_counts_no_log_of_another_model(build: Any, collect_json: CollectJson) -> None:
    built = build("1n1g", repeats=2)
    for repeat, model in enumerate(("tiny", "large"), start=1):
        hidden, layers = SIZES[f"bert-{model}"]
        stated = json.dumps({"model": model, "hidden": hidden, "layers": layers})
        built.complete("1n1g", repeat, 90.0 + repeat)
        text = built.text("1n1g", 90.0 + repeat)
        built.log("1n1g", repeat, f"hpcbert-config {stated}\n{text}")
    (row,) = collect_json(built.directory)["data"]["tables"][0]["rows"]
    assert [run["valid"] for run in row["runs"]] == [True, False]
    assert "hidden_size = 1024, expected 128" in row["runs"][1]["reasons"][0]["detail"]


@pytest.mark.slow
def test_sizes_are_those_of_the_reference_program() -> None:
    pytest.importorskip("torch", reason="the reference workload needs PyTorch")
    from hpcbert.workloads.bert_settings import MODELS

    sizes = MODELS.items()
    by_name = {f"bert-{name}": (hidden, layers) for name, (layers, hidden, _) in sizes}
    assert by_name == SIZES


def test_a_model_has_the_name_of_its_sizes() -> None:
    for model, (hidden, layers) in SIZES.items():
        assert model_name(Setting(hidden_size=hidden, layers=layers)) == model
        assert model_facts(model) == {"model": model, "hidden_size": hidden, "layers": layers}
    assert model_name(Setting(layers=24)) == "bert-large"
    assert (
        model_name(Setting(layers=4))
        == model_name(Setting(hidden_size=1536))
        == model_name(Setting())
        == ""
    )
    assert model_facts("my-bert") == model_facts("bert") == {}


def drop_lines(recipe: str, lost: str) -> str:
    """Return a recipe's sample without some lines."""
    lines = printed(recipe).decode(errors="replace").splitlines()
    remaining = [line for line in lines if not (lost and re.search(lost, line))]
    return "\n".join([*remaining, ""])


@cases
def test_a_number_of_gpus_that_nothing_confirms_is_flagged(  # noqa: PLR0917
    recipe: str,
    lost: str,
    options: tuple[str, ...],
    expected: bool,
    tmp_path: Path,
    run: CollectJson,
) -> None:
    write_file(tmp_path, "logs/run_1.log", drop_lines(recipe, lost))
    document = run(tmp_path / "logs", *options_of(recipe), *options)
    (row,) = document["data"]["tables"][0]["rows"]
    assert row["runs"][0]["valid"], row
    assert ("gpus" in row["unchecked"]) is expected
    assert "unchecked" in row["flags"] or not row["unchecked"]


def test_runs_of_a_campaign_are_never_unchecked(build: Any, collect_json: CollectJson) -> None:
    built = build("1n1g", repeats=1)
    built.complete("1n1g", 1, 90.0)
    (row,) = collect_json(built.directory)["data"]["tables"][0]["rows"]
    assert "unchecked" not in row["flags"]
