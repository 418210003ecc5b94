"""The JSON page shows a real document of each command: they are made again and compared."""

from __future__ import annotations

import os
from collections.abc import Iterator

import click
import pytest

from hpcbert.cli.main import root
from tests.docs.examples import LINES, OF_A_LAB, documents, read_examples


def commands(group: click.Group, *path: str) -> Iterator[str]:
    """Yield the name of every command that has --json."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        elif command and any(param.name == "as_json" for param in command.params):
            yield " ".join([*path, name])


def test_every_command_has_an_example() -> None:
    assert {*LINES, *OF_A_LAB} == {*commands(root)} == read_examples().keys()


@pytest.mark.torch  # its absence is in what plan prints
def test_the_examples_are_what_the_commands_print() -> None:
    of_a_lab = {
        name: read_examples()[name] for name in OF_A_LAB
    }  # held by tests/cluster/test_lab.py
    if os.geteuid() != 0:
        of_a_lab["lab down"] = read_examples()[
            "lab down"
        ]  # only root may; tests/lab/test_lifecycle_requirements.py
    assert read_examples() == {**documents(), **of_a_lab}, "run: python -m tests.docs.examples"
