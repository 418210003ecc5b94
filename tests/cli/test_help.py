"""The help pages, and the version."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from hpcbert import __version__
from hpcbert.cli.help import pages, walk_commands
from hpcbert.cli.main import root
from hpcbert.cli.options import SECTIONS
from hpcbert.cli.output import convert_error
from tests.kit.cases import cases, read_constant
from tests.kit.cli import Cli
from tests.kit.paths import REPOSITORY

# click, too, prints help no wider than this.
WIDE = {"COLUMNS": "80"}


def run_hpcbert(*words: str, status: int = 0, **environ: Any) -> tuple[str, str]:
    result = Cli(REPOSITORY, WIDE)(*words, status=status, **environ)
    return result.stdout, result.stderr


def test_help_and_version_have_short_forms_and_a_width() -> None:
    page, _ = run_hpcbert("--help")
    assert run_hpcbert("-h")[0] == page
    assert run_hpcbert("--help", COLUMNS="200")[0] == page
    assert run_hpcbert("--version")[0] == f"hpcbert {__version__}\n"


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_what_can_not_be_printed_is_said(word: str, tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "hpcbert", word],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert result.returncode != 0
    assert b"No space left" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("submit", ("a campaign, in one directory", "allocation (its nodes)", "step: the ranks")),
        ("plan", ("campaign (everything that one submit starts)",)),
    ],
    ids=["submit", "plan"],
)
def test_help_explains_the_words_of_the_field(command: str, words: tuple[str, ...]) -> None:
    text = " ".join(run_hpcbert(command, "--help")[0].split())
    for word in words:
        assert word in text


@pytest.mark.slow
@pytest.mark.parametrize("command", ["submit", "plan", "render"])
def test_help_all_lists_every_option_once_and_by_subject(command: str) -> None:
    whole, _ = run_hpcbert(command, "--help-all")
    assert [line[:-1] for line in whole.splitlines() if line[:1].isalpha() and line[-1] == ":"] == [
        *SECTIONS
    ]
    subcommand = root.get_command(click.Context(root), command)
    assert subcommand
    flags = [
        max(param.opts, key=len) for param in subcommand.params if isinstance(param, click.Option)
    ]
    options = whole.replace(",", " ").partition("What to measure:")[2].split("\n  -")[1:]
    listed = [next(word for word in f"-{text}".split() if word in flags) for text in options[:-1]]
    assert sorted(listed) == sorted(flags)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "same_words"),
    [
        (("help", "submit"), ("submit", "--help")),
        (("help",), ("--help",)),
        (("help", "lab", "up"), ("lab", "up", "--help")),
        (("-V",), ("--version",)),
        (("ls", "--help"), ("list", "--help")),
        (("frameworks", "oneflow"), ("frameworks", "show", "oneflow")),
        (("frameworks", "ls"), ("frameworks",)),
        (("images", "rm", "--help"), ("images", "remove", "--help")),
        (("record", "dlperf"), ("record", "show", "dlperf")),
    ],
    ids=" ".join,
)
def test_other_spellings_do_the_same(words: tuple[str, ...], same_words: tuple[str, ...]) -> None:
    assert run_hpcbert(*words) == run_hpcbert(*same_words)


# What is typed, and the option that it means.
MEANT = read_constant(__file__, "MEANT")


@pytest.mark.parametrize(("typed", "option"), MEANT.items(), ids=MEANT)
def test_an_unknown_option_suggests_what_it_means_or_nothing(typed: str, option: str) -> None:
    with pytest.raises(click.NoSuchOption) as caught:
        root.main(["submit", typed, "3"], "hpcbert", standalone_mode=False)
    hint = f"Did you mean {option}? " if option else ""
    assert convert_error(caught.value).hint == f"{hint}See hpcbert submit --help."


def test_no_page_has_a_programmers_type_or_a_sentence_that_is_cut() -> None:
    pages = {name: context.get_help() for name, context in walk_commands()}
    assert {"hpcbert submit", "hpcbert lab down"} <= pages.keys()
    words = re.compile(r"INTEGER|FLOAT|RANGE|FILENAME|[a-z]\.\.\.$", re.MULTILINE)
    cut = {path: match[0] for path, page in pages.items() if (match := words.search(page))}
    assert cut == {}


@pytest.mark.parametrize("words", [(), ("lab",), ("data",)], ids=["hpcbert", "lab", "data"])
def test_a_group_without_a_command_shows_its_commands(words: tuple[str, ...]) -> None:
    stdout, stderr = run_hpcbert(*words, status=2)
    assert (stdout, stderr[:14]) == ("", "Usage: hpcbert")


@pytest.mark.slow
@cases
def test_clicks_own_errors_are_one_plain_line(words: tuple[str, ...], sentence: str) -> None:
    message, hint = Cli(REPOSITORY)(*words, status=2).stderr.splitlines()
    assert message.endswith(sentence)
    assert hint.startswith(f"hint: See hpcbert {words[0]}")


# --- Manual ---------------------------------------------------------------------------------------


PAGES = pages()


TREE = {name: context.command for name, context in walk_commands()}


def words(text: str) -> list[str]:
    text = re.sub(r"\\\[u(\w+)\]", lambda match: chr(int(match[1], 16)), text)
    return re.sub(r"\\&|\\", "", text).split()


@pytest.mark.parametrize("name", TREE)
def test_each_command_has_a_page_with_all_that_its_help_says(name: str) -> None:
    page = PAGES[f"{name.replace(' ', '-')}.1"]
    lines = [line for line in page.splitlines() if not re.fullmatch(r"\.(PP|TP|br)", line)]
    page_words = words("\n".join(re.sub(r"^\.(B|SH|TH|BR) ", "", line) for line in lines))
    assert name.rsplit(maxsplit=1)[-1] in page_words
    page_words += [word.rstrip(",") for word in page_words]
    for param in TREE[name].params:
        if isinstance(param, click.Option):
            assert {*param.opts, *(param.help or "").split()} <= {*page_words}, param.name


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


@pytest.mark.needs("groff")
def test_troff_reads_them_without_a_warning() -> None:
    result = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-z"], input="".join(PAGES.values()), text=True,
        capture_output=True, check=True,
    )  # fmt: skip
    assert result.stderr == ""
