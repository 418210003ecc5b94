"""What every command keeps to: streams, JSON, exit codes, and what it does not load."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hpcbert.cli.main import COMMANDS
from hpcbert.cli.output import Result, make_document
from hpcbert.errors import CheckError, IncompleteError
from tests.kit.cases import cases
from tests.kit.cli import HEAVY, UNCOUNTED, Cli, CliResult

pytestmark = pytest.mark.slow


def hpcbert(*words: str, cwd: Path, env: dict[str, str] | None = None) -> CliResult:
    # Looking upward ends at home.
    return Cli(cwd, {"HOME": str(cwd), **(env or {})})(*words)


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["-h"], *([name, "--help"] for name in COMMANDS)]
)
def test_help_ends_well_and_loads_nothing_heavy(words: list[str], tmp_path: Path) -> None:
    result = Cli(tmp_path, {**UNCOUNTED, "PYTHONPROFILEIMPORTTIME": "1"})(*words)
    assert result.returncode == 0, result.stderr[-500:]
    assert not HEAVY & result.modules


def test_every_command_is_listed_with_a_line_and_in_the_order_of_work(tmp_path: Path) -> None:
    text = hpcbert("--help", cwd=tmp_path).stdout
    places = [text.index(f"\n  {name} ") for name in COMMANDS]
    assert places == sorted(places)


@cases
def test_errors_speak_json_on_stdout_too(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "x.sbatch").write_text("#!/bin/bash\n")
    result = hpcbert(*words, "--json", cwd=tmp_path)
    document = json.loads(result.stdout)
    assert set(document) == {
        "version", "command", "status", "exit_code", "data", "errors", "warnings",
    }  # fmt: skip
    assert document["status"] == "error"
    assert document["exit_code"] == result.returncode == 2
    assert set(document["errors"][0]) == {"code", "message", "hint"}
    plain = hpcbert(*words, cwd=tmp_path)
    assert plain.stdout == ""
    assert plain.returncode == 2
    assert "rror: " in plain.stderr


def test_dry_run_writes_nothing_and_shows_argv_and_script(tmp_path: Path) -> None:
    words = ("submit", "--nodes", "4", "--gpus-per-node", "8", "--fw", "oneflow", "--dry-run")
    result = hpcbert(*words, cwd=tmp_path, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})
    assert result.returncode == 0, result.stderr
    assert "$ sbatch --parsable" in result.stdout
    assert "#SBATCH --nodes=4" in result.stdout
    assert "--array=1-5%1" in result.stdout
    assert list(tmp_path.iterdir()) == []
    document = json.loads(hpcbert(*words, "--json", cwd=tmp_path).stdout)
    (array,) = document["data"]["arrays"]
    assert array["argv"][:2] == ["sbatch", "--parsable"]
    assert array["global_batch_size"] == 1024


def test_colour_follows_flag_then_variables(tmp_path: Path) -> None:
    bad = ("submit", "--fw", "nix")
    assert "\x1b[" not in hpcbert(*bad, cwd=tmp_path).stderr
    assert "\x1b[" in hpcbert("--color", "always", *bad, cwd=tmp_path).stderr
    assert "\x1b[" in hpcbert(*bad, cwd=tmp_path, env={"FORCE_COLOR": "1"}).stderr
    both = {"FORCE_COLOR": "1", "NO_COLOR": "1"}
    assert "\x1b[" not in hpcbert(*bad, cwd=tmp_path, env=both).stderr


def test_a_closed_pipe_is_no_traceback(tmp_path: Path) -> None:
    command = f"{shlex.quote(sys.executable)} -m hpcbert completion bash | head -c 1 >/dev/null"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert result.stderr == ""


def test_status_words_of_the_envelope() -> None:
    def status(result: Result) -> str:
        return str(json.loads(make_document("x", result))["status"])

    assert status(Result()) == "success"
    assert status(Result([1], errors=(IncompleteError("no"),))) == "partial"
    assert status(Result(errors=(CheckError("no"),))) == "error"
