"""ASCII where the locale has no UTF-8, and nothing lost by it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcbert.cli.streams import to_ascii
from tests.kit.cases import cases
from tests.kit.waiting import CEILING

pytestmark = pytest.mark.slow


def hpcbert(*words: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[bytes]:
    left_out = ("LC_", "LANG", "PYTHON")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return subprocess.run(
        [sys.executable, "-m", "hpcbert", *words],
        cwd=cwd, env={**inherited, "HOME": str(cwd), **env}, capture_output=True, check=False,
        timeout=CEILING,
    )  # fmt: skip


@cases
def test_the_locale_decides(env: dict[str, str], plain: bool, tmp_path: Path) -> None:
    result = hpcbert("frameworks", "show", "oneflow", cwd=tmp_path, **env)
    assert result.returncode == 0, result.stderr
    assert result.stdout.isascii() == plain
    assert (" - " if plain else " · ") in result.stdout.decode()


def test_every_text_and_every_error_is_ascii_there(
    finished: Path, logs: Path, run_commands: Callable[..., list[Any]], tmp_path: Path
) -> None:
    command_lines = [
        ["collect", str(finished)], ["collect", str(logs)], ["audit", str(finished)],
        ["frameworks"], ["frameworks", "show", "deepspeed"], ["config"], ["--help"],
        ["submit", "--dry-run", "--fw", "oneflow"], ["submit", "--fw", "ünbekannt"],
        ["collect", "ünbekannt→…"], ["nö"], ["render", "--set", "é"], ["logs", str(finished)],
    ]  # fmt: skip
    both = [*command_lines, *([*words, "--json"] for words in command_lines if words != ["--help"])]
    for words, result in zip(both, run_commands(both, LC_ALL="C"), strict=True):
        assert (result.stdout + result.stderr).isascii(), (words, result)
        result.check(as_json="--json" in words)
    (error,) = run_commands([["collect", "ünbekannt→…", "--json"]], LC_ALL="C")
    assert "ünbekannt→…" in error.document["errors"][0]["message"]


def test_scripts_and_documents_arrive_byte_by_byte(
    logs: Path, run_commands: Callable[..., list[Any]]
) -> None:
    words = ["render", "--fw", "pytorch", "--scheduler", "slurm", "--data", "/dätä"]
    (utf8_result,) = run_commands([words], LC_ALL="C.UTF-8")
    (ascii_result,) = run_commands([words], LC_ALL="C")
    assert ascii_result.stdout == utf8_result.stdout != ""
    tables = [
        json.loads(
            run_commands([["collect", str(logs), "--format", "json"]], LC_ALL=locale)[0].stdout
        )["tables"]
        for locale in ("C", "C.UTF-8")
    ]
    assert tables[0] == tables[1] != []
    assert "/dätä" in run_commands([words], LC_ALL="C")[0].stdout


def test_signs_become_what_resembles_them_and_letters_are_escaped() -> None:
    assert to_ascii("a · b … c → d ✓ ✗ jörg") == "a - b ... c -> d + x j\\xf6rg"
    assert json.loads('"' + to_ascii("plain") + '"') == "plain"
