"""Man pages say what --help says, and troff has nothing to complain about."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import click
import pytest

from hpcbert.cli.help import pages
from hpcbert.cli.main import root
from tests.kit.cases import read_constant

PAGES = pages()


def walk(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None
            yield from walk(found, f"{name} {inner}")


TREE = dict(walk(root, "hpcbert"))


def words(text: str) -> list[str]:
    text = re.sub(r"\\\[u(\w+)\]", lambda match: chr(int(match[1], 16)), text)
    return re.sub(r"\\&|\\", "", text).split()


@pytest.mark.parametrize("name", TREE)
def test_each_command_has_a_page_with_all_that_its_help_says(name: str) -> None:
    page = PAGES[f"{name.replace(' ', '-')}.1"]
    lines = [line for line in page.splitlines() if not re.fullmatch(r"\.(PP|TP|br)", line)]
    page_words = words("\n".join(re.sub(r"^\.(B|SH|TH|BR) ", "", line) for line in lines))
    assert name.rsplit(maxsplit=1)[-1] in page_words
    for param in TREE[name].params:
        if isinstance(param, click.Option):
            assert {opt.rstrip(",") for opt in param.opts} <= {
                one.rstrip(",") for one in page_words
            }
            assert not [word for word in (param.help or "").split() if word not in page_words], (
                param.name
            )


# Of the commands that are typed every day: what people give them most often.
FIRST = read_constant(__file__, "FIRST")


@pytest.mark.parametrize("name", FIRST)
def test_help_begins_with_the_options_that_are_used_most(name: str) -> None:
    options = [
        max(param.opts, key=len)
        for param in TREE[f"hpcbert {name}"].params
        if isinstance(param, click.Option)
    ]
    assert options[:3] == FIRST[name].split()


def test_no_page_is_of_a_command_that_is_not_there() -> None:
    assert set(PAGES) == {f"{name.replace(' ', '-')}.1" for name in TREE}


@pytest.mark.needs("groff")
def test_troff_reads_them_without_a_warning() -> None:
    result = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-z"], input="".join(PAGES.values()), text=True,
        capture_output=True, check=True,
    )  # fmt: skip
    assert result.stderr == ""
