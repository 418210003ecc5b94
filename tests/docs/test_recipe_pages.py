"""Each recipe's page has a command that works as typed where nothing is prepared."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.paths import TEMPLATES
from tests.kit.recipes import NAMES, load

pytestmark = pytest.mark.slow

_COMMAND = re.compile(r"(?m)^ {4}hpcbert ((?:prepare|submit|render) .+)$")


def list_commands(name: str) -> list[list[str]]:
    text = (TEMPLATES / name / "README.md").read_text(encoding="utf-8")
    return [shlex.split(line, comments=True) for line in _COMMAND.findall(text)]


@pytest.mark.parametrize("name", NAMES)
def test_a_page_begins_with_a_command_for_the_recipe(name: str) -> None:
    commands = list_commands(name)
    assert all(words[1:3] == ["--fw", name] for words in commands)
    kinds = {(words[0], "cpu" in words) for words in commands}
    on_cpu = load(name).environment or load(name).on.get("cpu") or name == "pytorch"
    assert ("submit", True) in kinds if on_cpu else kinds, kinds


def test_every_command_works_as_typed(
    run_commands: Callable[..., list[Any]], tmp_path: Path
) -> None:
    """Without submitting; what prepare needs is for another place."""
    commands = [line for name in NAMES for line in list_commands(name) if line[0] != "prepare"]
    dry = [[*words, *([] if words[0] == "render" else ["--dry-run"])] for words in commands]
    for words, result in zip(dry, run_commands(dry, cwd=tmp_path), strict=True):
        assert result.returncode == 0, (words, result.stderr)
