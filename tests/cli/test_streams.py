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
from tests.kit.waiting import CEILING

pytestmark = pytest.mark.slow


def hpcbert(*words: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[bytes]:
    left_out = ("LC_", "LANG", "PYTHON")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return subprocess.run(
        [sys.executable, "-m", "hpcbert", *words],
        cwd=cwd, env={**kept, "HOME": str(cwd), **env}, capture_output=True, check=False,
        timeout=CEILING,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("env", "plain"),
    [
        ({"LC_ALL": "C"}, True),
        ({"LC_ALL": "POSIX"}, True),
        ({"LANG": "C"}, True),
        ({"LC_CTYPE": "C"}, True),
        ({}, True),
        ({"LC_ALL": "C", "LANG": "C.UTF-8"}, True),
        ({"PYTHONIOENCODING": "ascii", "LANG": "C.UTF-8"}, True),
        ({"LC_ALL": "C.UTF-8"}, False),
        ({"LANG": "C.utf8"}, False),
        ({"LC_CTYPE": "C.UTF-8"}, False),
        ({"PYTHONIOENCODING": "utf-8", "LC_ALL": "C"}, False),
        ({"PYTHONUTF8": "1", "LC_ALL": "C"}, False),
    ],
    ids=str,
)
def test_the_locale_decides(env: dict[str, str], plain: bool, tmp_path: Path) -> None:
    result = hpcbert("frameworks", "show", "oneflow", cwd=tmp_path, **env)
    assert result.returncode == 0, result.stderr
    assert result.stdout.isascii() == plain
    assert (" - " if plain else " · ") in result.stdout.decode()


def test_every_text_and_every_error_is_ascii_there(
    finished: Path, logs: Path, many: Callable[..., list[Any]], tmp_path: Path
) -> None:
    asked = [
        ["collect", str(finished)], ["collect", str(logs)], ["audit", str(finished)],
        ["frameworks"], ["frameworks", "show", "deepspeed"], ["config"], ["--help"],
        ["submit", "--dry-run", "--fw", "oneflow"], ["submit", "--fw", "ünbekannt"],
        ["collect", "ünbekannt→…"], ["nö"], ["render", "--set", "é"], ["logs", str(finished)],
    ]  # fmt: skip
    both = [*asked, *([*words, "--json"] for words in asked if words != ["--help"])]
    for words, done in zip(both, many(both, LC_ALL="C"), strict=True):
        assert (done.stdout + done.stderr).isascii(), (words, done)
        done.check(as_json="--json" in words)
    (error,) = many([["collect", "ünbekannt→…", "--json"]], LC_ALL="C")
    assert "ünbekannt→…" in error.document["errors"][0]["message"]


def test_scripts_and_documents_arrive_byte_by_byte(
    logs: Path, many: Callable[..., list[Any]]
) -> None:
    words = ["render", "--fw", "pytorch", "--scheduler", "slurm", "--data", "/dätä"]
    (there,) = many([words], LC_ALL="C.UTF-8")
    (here,) = many([words], LC_ALL="C")
    assert here.stdout == there.stdout != ""
    tables = [
        json.loads(many([["collect", str(logs), "--format", "json"]], LC_ALL=one)[0].stdout)[
            "tables"
        ]
        for one in ("C", "C.UTF-8")
    ]
    assert tables[0] == tables[1] != []
    assert "/dätä" in many([words], LC_ALL="C")[0].stdout


def test_signs_become_what_resembles_them_and_letters_are_escaped() -> None:
    assert to_ascii("a · b … c → d ✓ ✗ jörg") == "a - b ... c -> d + x j\\xf6rg"
    assert json.loads('"' + to_ascii("plain") + '"') == "plain"
