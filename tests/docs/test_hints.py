"""Every command that a message of hpcbert names exists, with the options that it names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from hpcbert.cli.main import COMMANDS, root
from tests.kit.paths import REPOSITORY

_COMMAND = re.compile(rf"\bhpcbert ({'|'.join(COMMANDS)})\b([^.;:()|`\n]*)")
_OPTION = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")


def list_texts(path: Path) -> Iterator[str]:
    """Yield the texts of a module, with X for each value in them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "X" for part in node.values]
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def list_commands() -> Iterator[tuple[str, str]]:
    folder = REPOSITORY / "hpcbert"
    for path in sorted(folder.rglob("*.py")):
        for text in list_texts(path):
            yield from _COMMAND.findall(text)
    for path in sorted((*folder.rglob("*.toml"), *folder.rglob("*.sh"), *folder.rglob("*.bash"))):
        yield from _COMMAND.findall(path.read_text(encoding="utf-8"))


CASES = sorted({(name, tail.strip()) for name, tail in list_commands() if "-" in tail})


@pytest.mark.parametrize(("name", "tail"), CASES, ids=[f"{name} {tail}" for name, tail in CASES])
def test_a_message_names_options_that_exist(name: str, tail: str) -> None:
    context = click.Context(root, info_name="hpcbert")
    command = root.get_command(context, name)
    assert command
    subcommands = command.commands if isinstance(command, click.Group) else {}
    command = subcommands.get(tail.partition(" ")[0]) or subcommands.get("list", command)
    flags = {
        flag
        for param in command.get_params(click.Context(command, help_option_names=["-h", "--help"]))
        for flag in (*param.opts, *param.secondary_opts)
    }
    assert set(_OPTION.findall(tail)) <= flags
