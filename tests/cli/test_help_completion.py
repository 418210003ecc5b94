"""Completion of values, as shells ask for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from hpcbert.cli.main import root
from tests.kit.campaigns import Build, Built
from tests.kit.cases import cases
from tests.kit.cli import HEAVY, UNCOUNTED, Cli

OLD, NEW = "20261121T100000Z-pytorch-3f9a1c", "20261122T100000Z-pytorch-b07d42"
VARIABLE = "_HPCBERT_COMPLETE"
Complete = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def campaigns(build: Build, empty_directory: None) -> tuple[Built, Built]:
    return build("1n1g", "1n4g", name=OLD), build("2n8g", name=NEW, jobs=("90",))


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch) -> Complete:
    """Completes the last word; a file or folder is what the shell completes itself."""
    monkeypatch.setenv(VARIABLE, "bash_complete")

    def ask(*words: str) -> list[str]:
        shell = ShellComplete(root, {}, "hpcbert", VARIABLE)
        items = shell.get_completions(list(words[:-1]), words[-1])
        return [item.value if item.type == "plain" else f"({item.type})" for item in items]

    return ask


@cases
def test_a_value_is_completed(complete: Complete, line: str, completions: str) -> None:
    words = [{"OLD": OLD, "NEW": NEW}.get(word, word) for word in line.split(" ")]
    names = completions.replace("OLD", OLD).replace("NEW", NEW)
    assert complete(*words) == names.split()


def test_what_is_damaged_completes_nothing(
    complete: Complete, campaigns: tuple[Built, Built]
) -> None:
    (campaigns[1].directory / "manifest.json").write_text("{")
    (campaigns[1].directory / "recipe.toml").write_text("[")
    assert complete("logs", NEW, "--point", "") == []
    assert complete("collect", NEW, "--rule", "") == []
    Path("site.toml").write_text("no = toml = no")
    assert complete("submit", "--fw", "one") == ["oneflow", "oneflow-models"]


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_is_answered_in_its_own_form(shell: str, tmp_path: Path) -> None:
    env = {VARIABLE: f"{shell}_complete", "COMP_WORDS": "hpcbert show 3f9", "COMP_CWORD": "2"}
    last = {"bash": f"plain,{OLD}", "zsh": f"plain\n{OLD}\n_", "fish": f"plain,{OLD}"}
    # Fish has the word itself where the others have its number.
    env |= {"COMP_CWORD": "3f9"} if shell == "fish" else {}
    result = Cli(tmp_path, {**UNCOUNTED, **env, "PYTHONPROFILEIMPORTTIME": "1"})()
    assert result.stdout.strip() == last[shell]
    assert not HEAVY & result.modules


@pytest.mark.slow
def test_bash_itself_completes_a_campaign(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "hpcbert"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hpcbert "$@"\n')
    program.chmod(0o755)
    script = (
        'eval "$(hpcbert completion bash)"; COMP_WORDS=(hpcbert show 3f9); COMP_CWORD=2; '
        '_hpcbert_completion hpcbert; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    bash = shutil.which("bash") or "bash"
    result = subprocess.run(
        [bash, "--norc", "-c", script], env={**os.environ, "PATH": path}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert result.stdout == f"{OLD}\n"
