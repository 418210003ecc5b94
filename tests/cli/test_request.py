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

pytestmark = pytest.mark.slow

SUBMIT = ["submit", "--fw", "oneflow", "--scheduler", "slurm", "--dry-run"]
LOCAL = ["submit", "--scheduler", "local"]
PREPARE = ["prepare", "--fw", "oneflow", "--dry-run"]
# The command line, the option that it must name, what that conflicts with.
REFUSED = [
    (["data", "make", "--format", "npz", "--cased", "x"], "--cased", "--text"),
    (["data", "make", "--format", "npz", "--text", "t", "--fill", "full", "x"], "--fill", "--text"),
    ([*SUBMIT, "--shapes", "1n1g", "--nodes", "2"], "--nodes", "--shapes"),
    ([*SUBMIT, "--shapes", "1n1g", "--gpus-per-node", "2"], "--gpus-per-node", "--shapes"),
    ([*SUBMIT, "--shapes", "1n1g", "--scaling"], "--scaling", "--shapes"),
    (["submit", "--scheduler", "slurm", "--dry-run", "--fw", "pytorch,tf2", "--python", "p"], "--python", "several frameworks"),
    (["submit", "--max-retries", "1"], "--max-retries", "--wait"),
    ([*SUBMIT, "--concurrent-repeats", "2", "--batch-size", "8,max"], "--concurrent-repeats", "--batch-size max"),
    ([*SUBMIT, "--accumulation", "2", "--global-batch-size", "8"], "--global-batch-size", "--accumulation"),
    (["render", "--accumulation", "2", "--global-batch-size", "8"], "--global-batch-size", "--accumulation"),
    ([*SUBMIT, "--image", "x.sqsh"], "--image", "runtime none"),
    (["submit", "--scheduler", "slurm", "--dry-run", "--source", "/s"], "--source", "pytorch"),
    (["submit", "--scheduler", "slurm", "--dry-run", "--fw", "nccl-tests", "--data", "/d"], "--data", "nccl-tests"),
    *(
        ([*LOCAL, *words], words[0].partition("=")[0], "local scheduler")
        for words in (
            ["--partition", "gpu"], ["--account", "a"], ["--qos", "q"], ["--notify", "END"], ["--sbatch-arg=--nice=1"],
            ["--srun-arg=--overlap"], ["--concurrent-repeats", "2"], ["--concurrent-points"],
            ["--reservation", "r"], ["--nodelist", "n1"], ["--exclude", "n1"],
        )
    ),
    *(
        (["submit", "--here", *words], words[0].partition("=")[0], "--here")
        for words in (["--partition", "gpu"], ["--notify", "END"], ["--sbatch-arg=--nice=1"], ["--concurrent-points"],
            ["--scheduler", "slurm"], ["--nodelist", "n1"])
    ),
    *(
        (["submit", "--resume", "x", *words], words[0].partition("=")[0], "--resume")
        for words in (
            ["--fw", "pytorch"], ["--nodes", "1"], ["--gpus-per-node", "1"], ["--precision", "fp32"],
            ["--batch-size", "4"], ["--model", "m"], ["--device", "cpu"], ["--protocol", "p"], ["--accumulation", "2"],
            ["--global-batch-size", "8"], ["--xla"], ["--set", "a=b"], ["--scaling"],
            ["--repeats", "5"], ["--iters", "9"], ["--skip", "2"], ["--templates", "."],
            ["--scheduler", "local"], ["--runtime", "none"], ["--partition", "p"],
            ["--account", "a"], ["--qos", "q"], ["--notify", "END"], ["--time", "60"], ["--image", "i"], ["--data", "d"],
            ["--source", "s"], ["--python", "p"], ["--sbatch-arg=x"], ["--srun-arg=x"],
            ["--concurrent-repeats", "1"], ["--concurrent-points"], ["--repeats-in", "array"],
            ["--dry-run"], ["--rehearse"], ["--force"], ["--like", "x"], ["--here"],
            ["--shapes", "1n1g"], ["--env", "A=b"], ["--reservation", "r"], ["--nodelist", "n1"],
            ["--exclude", "n1"], ["--name", "x"], ["--note", "x"], ["--max-gpu-hours", "9"], ["--preflight"],
            ["--stop-on-failure"], ["--max-repeats", "9"], ["--precision-of-median", "2%"], ["--window-seconds", "5"],
        )
    ),
    *(
        (["submit", "--like", "x", *words], words[0], "--like")
        for words in (
            ["--fw", "pytorch"], ["--nodes", "1"], ["--gpus-per-node", "1"], ["--precision", "fp32"],
            ["--batch-size", "4"], ["--model", "m"], ["--protocol", "p"], ["--accumulation", "2"],
            ["--global-batch-size", "8"], ["--xla"], ["--set", "a=b"], ["--scaling"],
            ["--repeats", "5"], ["--iters", "9"], ["--skip", "2"], ["--concurrent-repeats", "1"],
            ["--concurrent-points"], ["--repeats-in", "array"], ["--device", "gpu"],
            ["--shapes", "1n1g"], ["--env", "A=b"], ["--max-repeats", "9"], ["--precision-of-median", "2%"],
        )
    ),
    ([*SUBMIT, "--max-repeats", "9"], "--max-repeats", "without --repeats auto"),
    ([*SUBMIT, "--repeats", "7", "--precision-of-median", "2%"], "--precision-of-median", "without --repeats auto"),
    (["render", "--repeats", "auto"], "--repeats auto", "by hand"),
    ([*LOCAL, "--device", "cpu", "--preflight"], "--preflight", "local scheduler"),
    (["plan", "--partition", "gpu"], "--partition", "local scheduler"),
    (["plan", "--accumulation", "2", "--global-batch-size", "8"], "--global-batch-size", "--accumulation"),
    ([*PREPARE, "--image", "i"], "--image", "runtime none"),
    (["init", "--partition", "p", "--local"], "--partition", "--local"),
    (["init", "--gpu-type", "a100", "--local"], "--gpu-type", "--local"),
    (["doctor", "--nodes", "2"], "--nodes", "local scheduler"),
    (["doctor", "--partition", "p"], "--partition", "local scheduler"),
    (["doctor", "--reservation", "r"], "--reservation", "local scheduler"),
    (["compare", "a", "b", "--junit", "x.xml"], "--junit", "--fail-under"),
    *(
        (["collect", "x", "--explain", *words], words[0], "--explain")
        for words in (
            ["--format", "csv"], ["--output", "x.csv"], ["--junit", "x.xml"], ["--beside", "dlperf"], ["--unit", "tokens"],
        )
    ),
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
    used = {
        "--resume",
        "--wait",
        "--max-retries",
        "--runs",
        "--site",
        "--json",
        "--help",
        "--help-all",
    }
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


@pytest.mark.parametrize(
    ("word", "precision"),
    [
        *(
            (spelling, "fp16")
            for spelling in ("amp", "AMP", "FP16", "mixed", "half", "float16", "Mixed")
        ),
        *((spelling, "fp32") for spelling in ("FP32", "float32", "single", "Float-32", "float")),
        *((spelling, "bf16") for spelling in ("bfloat16", "BF16", "BFloat16")),
        *((spelling, "tf32") for spelling in ("TF32", "TensorFloat-32")),
    ],
)
def test_precisions_are_understood_in_every_spelling(word: str, precision: str) -> None:
    assert parse_precision(word) == precision
    assert parse_precision("fp8") == "fp8"


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
