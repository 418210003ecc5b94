"""What is said of logs without a number: the true reason, the file, and what to type instead."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.kit import logs
from tests.kit.cases import cases
from tests.kit.cli import Collect, CollectJson, first_row, only_run
from tests.kit.logs import step, write_file
from tests.kit.recipes import options_of, printed, sample


def find_options(detail: str) -> list[str]:
    """Return the first options that a message says to type."""
    (words,) = re.findall(r"type (--rule [^,;]+)", detail)
    return shlex.split(words)


@pytest.mark.slow
@cases
def test_a_rule_that_finds_no_record_names_those_that_give_a_number(  # noqa: PLR0917
    folder: str,
    words: tuple[str, ...],
    options: str,
    records: str,
    shared: Path,
    run: CollectJson,
) -> None:
    row = first_row(run(shared / folder, *words))
    detail = row["runs"][0]["reasons"][0]["detail"]
    assert detail.startswith("the log has no record ")
    assert records in detail
    assert " ".join(find_options(detail)) == options
    row = first_row(run(shared / folder, *words, *find_options(detail)))
    assert row["repeats"]["ok"] == row["repeats"]["asked"] > 0


@pytest.mark.parametrize(
    ("framework", "words"),
    [
        ("pytorch", ("--skip", 20, "--iters", 500)),
        ("pytorch", ("--skip", 150, "--iters", 300)),
        ("hf-trainer", ("--skip", 20, "--iters", 500)),
    ],
)
def test_a_window_that_the_log_does_not_reach_names_one_that_it_has(
    framework: str, words: tuple[object, ...], tmp_path: Path, run: CollectJson
) -> None:
    write_file(tmp_path, "logs/run_1.log", sample(framework))
    options = options_of(framework)
    detail = only_run(run(tmp_path / "logs", *options, *words))["reasons"][0]["detail"]
    assert detail.startswith("the log ends at iteration 120 of ")
    assert only_run(run(tmp_path / "logs", *options, *find_options(detail)))["valid"]


def test_beside_a_valid_log_a_short_one_is_just_short(tmp_path: Path, run: CollectJson) -> None:
    write_file(tmp_path, "pytorch/1n1g/bert_b4_fp32_1.log", logs.log("1n1g", 100))
    write_file(
        tmp_path, "pytorch/1n1g/bert_b4_fp32_2.log", logs.log("1n1g", 100, last=7, start=1.8e9)
    )
    row = first_row(run(tmp_path / "pytorch", "--skip", 2, "--iters", 12))
    details = [reason["detail"] for reason in row["runs"][1]["reasons"]]
    assert details == ["the log ends at iteration 7 of 12"]


@cases
def test_facts_that_contradict_each_other_are_the_reason(
    recipe: str, head: str, message: str, tmp_path: Path, run: CollectJson
) -> None:
    """They end the reading: what follows them is unknown, but not because the log lacks it."""
    write_file(tmp_path, "logs/run_1.log", head.encode() + printed(recipe))
    options = options_of(recipe)[:4]
    document = run(tmp_path / "logs", *options)
    assert document["exit_code"] in {2, 4}
    assert message in str(document)
    assert "Neither the path nor the log" not in str(document)
    (reason,) = only_run(run(tmp_path / "logs", *options_of(recipe)))["reasons"]
    assert (reason["code"], message in reason["detail"]) == ("config", True), reason


def test_text_names_files_where_numbers_are_others(
    tmp_path: Path, collect: Collect, run: CollectJson
) -> None:
    for number in range(3):
        last = 12 if number else 5
        log = logs.log("1n1g", 100 + number, last=last, start=1763717655.5 + 1e4 * number)
        write_file(tmp_path, f"pytorch/1n1g/bert_b4_fp32_{number}.log", log)
        write_file(tmp_path, f"named/pytorch/1n1g/bert_b4_fp32_{number + 1}.log", log)
    window = ("--skip", "2", "--iters", "12")
    text = collect(tmp_path / "pytorch", *window).stdout
    assert "✗ bert_b4_fp32_0.log  incomplete: " in text
    assert "✗ repeat 1  incomplete: " in collect(tmp_path / "named", *window).stdout
    markdown = collect(tmp_path / "pytorch", *window, "--format", "markdown").stdout
    assert "_0.log is invalid: incomplete" in markdown.replace("\\", "")


def test_files_that_the_user_calls_repeats_keep_their_names(
    tmp_path: Path, collect: Collect
) -> None:
    for number, name in enumerate(("b", "a", "c")):
        log = logs.log(
            "1n1g", 100, last=12 if name == "c" else 5 + number, start=1.7e9 + 1e4 * number
        )
        write_file(tmp_path, f"pytorch/1n1g/x{name}/run.log", log)
    words = ("--pattern", "{nodes}n{gpus_per_node}g/*/run.log", "--as-repeats")
    text = collect(tmp_path / "pytorch", *words, "--skip", "2", "--iters", "12").stdout
    assert re.search(r"✗ \S+/xb/run.log  incomplete", text), text


CONVERGED = (120, 90, 100)


@pytest.mark.parametrize(
    ("closing", "ok"),
    [("result: 1.0\n", 3), ("", 1), ("Killed\n", 1)],
    ids=["a closing line", "none", "killed"],
)
def test_runs_that_state_their_end_may_differ_in_length(
    closing: str, ok: int, tmp_path: Path, run: CollectJson
) -> None:
    for number, last in enumerate(CONVERGED, start=1):
        lines = "".join(step(n, at=n + number * 1e4, rate=1.0) for n in range(1, last + 1))
        write_file(tmp_path, f"steps/1n1g/bert_b1_fp32_{number}.log", lines + closing)
    recipe = (Path(__file__).parent.parent / "logs/grammars/steps.toml").read_text()
    head = 'schema = 1\ntitle = "steps"\nlaunch = "per-gpu"\nprecisions = ["fp32"]\n'
    write_file(tmp_path, "templates/steps/recipe.toml", f"{head}[batch_sizes]\nfp32 = 1\n{recipe}")
    row = first_row(
        run(tmp_path / "steps", "--templates", tmp_path / "templates", "--iters", "end")
    )
    assert row["repeats"] == {"ok": ok, "asked": 3}, row["runs"]
