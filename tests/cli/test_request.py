"""Options that would be ignored are refused by name; precisions and forms in all their spellings."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from hpcbert.model import parse_precision
from tests.kit.cases import read_constant

pytestmark = pytest.mark.slow

SUBMIT = ["submit", "--fw", "oneflow", "--scheduler", "slurm", "--dry-run"]
PREPARE = ["prepare", "--fw", "oneflow", "--dry-run"]
# Command lines, the option that each must name, and what that conflicts with.
REFUSED = [
    ([*row["line"].split(), *words.split()], row.get("option") or words.split()[0].partition("=")[0], row["conflict"])
    for row in read_constant(__file__, "REFUSED")
    for words in row.get("options", ("",))
]  # fmt: skip


def test_what_would_be_ignored_is_refused(
    run_commands: Callable[..., list[Any]], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "site.toml").write_text('schema = 1\nname = "here"\nscheduler = "local"\n')
    results = run_commands([[*words, "--json"] for words, _, _ in REFUSED], cwd=home)
    for (words, option, conflict), result in zip(REFUSED, results, strict=True):
        result.check(as_json=True)
        (error,) = result.document["errors"]
        assert result.returncode == 2, (words, result)
        assert error["code"] == "usage", words
        assert option in error["message"], (words, error)
        assert conflict in error["message"], (words, error)
        assert option in error["hint"], words
    assert sorted(path.name for path in home.iterdir()) == ["site.toml"]


def test_every_option_that_resume_has_no_use_for_is_in_the_table() -> None:
    """A new option of submit has to say what it does beside --resume."""
    command = importlib.import_module("hpcbert.cli.submit").submit
    used = {"--resume", "--wait", "--max-retries", "--runs", "--site", "--json", "--help"}
    used.add("--help-all")
    options = {
        max(param.opts, key=len) for param in command.params if isinstance(param, click.Option)
    } - used
    table_options = {option for words, option, _ in REFUSED if "--resume" in words}
    assert options == table_options


def test_defaults_conflict_with_nothing(run_commands: Callable[..., list[Any]]) -> None:
    command_lines = [
        [*SUBMIT, "--repeats-in", "one-job", "--json"],
        [*SUBMIT, "--data", "/d", "--source", "/s", "--partition", "p", "--json"],
        ["render", "--concurrent-points", "--partition", "p", "--json"],
        [*PREPARE, "--only", "source", "--repository", "r", "--json"],
    ]
    for words, result in zip(command_lines, run_commands(command_lines), strict=True):
        assert "no effect" not in result.stdout + result.stderr, (words, result)


SPELLINGS = {
    "fp16": "amp AMP FP16 mixed half float16 Mixed",
    "fp32": "FP32 float32 single Float-32 float",
    "bf16": "bfloat16 BF16 BFloat16",
    "tf32": "TF32 TensorFloat-32",
    "fp8": "fp8",
}


@pytest.mark.parametrize("precision", SPELLINGS)
def test_precisions_are_understood_in_every_spelling(precision: str) -> None:
    assert {parse_precision(word) for word in SPELLINGS[precision].split()} == {precision}


def test_precisions_on_the_command_line(run_commands: Callable[..., list[Any]]) -> None:
    words = ["render", "--fw", "pytorch", "--scheduler", "slurm", "--json"]
    first, other, *refused = run_commands(
        [
            *([*words, "--precision", p] for p in ("FP32,amp", "fp32,fp16", "fp9", "nvfp4")),
            ["collect", "--precision", "fp9", "--json"],
        ]
    )
    assert first.document["data"] == other.document["data"] != {}
    assert (first.returncode, other.returncode) == (0, 0)
    for result, word in zip(refused, ("fp9", "nvfp4", "fp9"), strict=True):
        assert result.returncode == 2, result
        assert word in result.error["message"]


@pytest.mark.parametrize("kind", ["campaign", "logs"])
def test_what_says_of_logs_what_campaigns_record(
    kind: str, logs: Path, run_commands: Callable[..., list[Any]], finished: Path
) -> None:
    options = {
        "--fw": "oneflow", "--nodes": "1", "--gpus-per-node": "1", "--batch-size": "4",
        "--precision": "AMP", "--model": "bert", "--pattern": "{repeat}.log",
    }  # fmt: skip
    where = str(finished if kind == "campaign" else logs)
    command_lines = [["collect", where, "--json", name, value] for name, value in options.items()]
    for words, result in zip(command_lines, run_commands(command_lines), strict=True):
        is_refused = f"{words[3]} has no effect on campaigns" in result.stdout
        assert is_refused == (kind == "campaign"), (words, result)
        assert not is_refused or result.returncode == 2


def test_a_table_takes_its_form_from_its_name(
    logs: Path, run_commands: Callable[..., list[Any]], tmp_path: Path
) -> None:
    names = ("t.csv", "t.MD", "t.markdown", "t.json", "t.txt", "t", "t.out")
    command_lines = [
        ["collect", str(logs), "--json", "--output", str(tmp_path / name)] for name in names
    ]
    for result in run_commands(command_lines):
        assert result.document["data"], result
        assert not [warning for warning in result.document["warnings"] if "--format" in warning]
    # Below the table stand the time and the command that made it.
    text = {name: (tmp_path / name).read_text() for name in names}
    head = {name: content.splitlines()[:5] for name, content in text.items()}
    assert text["t.csv"].count(",") > 5
    assert head["t.MD"] == head["t.markdown"]
    assert "|" in text["t.MD"]
    assert json.loads(text["t.json"])["tables"]
    assert head["t.txt"] == head["t"] == head["t.out"]
    both = ["collect", str(logs), "--json", "--format", "markdown", "--output"]
    csv_result, markdown_result = run_commands(
        [[*both, str(tmp_path / "u.csv")], [*both, str(tmp_path / "u.md")]]
    )
    for name in ("u.csv", "u.md"):
        assert (tmp_path / name).read_text().splitlines()[:5] == head["t.MD"]
    assert any(
        "markdown because of --format" in warning for warning in csv_result.document["warnings"]
    )
    assert not any("--format" in warning for warning in markdown_result.document["warnings"])


def test_a_table_that_cannot_be_written_is_the_systems_refusal(
    logs: Path, run_commands: Callable[..., list[Any]], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    places = (tmp_path / "absent" / "t.md", tmp_path / "file" / "t.md", Path("/dev/full"), tmp_path)
    for result in run_commands(
        [["collect", str(logs), "--json", "--output", str(place)] for place in places]
    ):
        assert result.returncode == 1, result
        assert result.document["errors"][0]["code"] == "error"
