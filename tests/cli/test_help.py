"""Help pages, the manual made of them, the version, and completion of values."""

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from hpcbert import __version__
from hpcbert.cli.help import pages, walk_commands
from hpcbert.cli.main import root
from hpcbert.cli.options import SECTIONS
from hpcbert.cli.output import convert_error
from tests.kit.cases import cases, read_constant
from tests.kit.cli import HEAVY, UNCOUNTED, Cli, run
from tests.kit.paths import REPOSITORY
from tests.kit.scripts import tool

OLD, NEW = "20261121T100000Z-pytorch-3f9a1c", "20261122T100000Z-pytorch-b07d42"
VARIABLE = "_HPCBERT_COMPLETE"
PAGES = pages()


@pytest.mark.slow
def test_help_and_version_have_short_forms_a_width_and_a_disk():
    hpcbert = Cli(REPOSITORY, {"COLUMNS": "80"})  # click, too, prints help no wider than this.
    assert hpcbert("-h", status=0, COLUMNS="200").stdout == hpcbert("--help", status=0).stdout
    assert hpcbert("--version", status=0).stdout == f"hpcbert {__version__}\n"
    for word in ("--help", "--version"):
        with Path("/dev/full").open("w") as full, hpcbert.start(word, stdout=full) as child:
            assert "No space left" in child.communicate()[1]
        assert child.returncode != 0
    for words in ((), ("lab",)):
        result = hpcbert(*words, status=2)
        assert (result.stdout, result.stderr[:14]) == ("", "Usage: hpcbert")


def test_other_spellings_do_the_same():
    for words, same_words in read_constant(__file__, "SPELLINGS").items():
        result, expected = run(*words.split()), run(*same_words.split())
        assert (result.returncode, result.output) == (0, expected.output), words


@pytest.mark.parametrize("name", dict(walk_commands()))
def test_each_command_s_page_has_what_its_help_says_in_a_person_s_words(name):
    """Of the commands that are typed every day, what people give them most often comes first."""
    context = dict(walk_commands())[name]
    cut = re.compile(r"INTEGER|FLOAT|RANGE|FILENAME|[a-z]\.\.\.$", re.MULTILINE)
    assert not cut.search(context.get_help())
    page = PAGES[f"{name.replace(' ', '-')}.1"]
    page = re.sub(r"\\\[u(\w+)\]", lambda sign: chr(int(sign[1], 16)), page)
    text = re.sub(r"\\&|\\|\s", "", page)
    parts = context.get_help().partition("\nCommands:")[0].split("\n\n")
    assert all("".join(part.split()) in text for part in parts)
    options = [param for param in context.command.params if isinstance(param, click.Option)]
    first = read_constant(__file__, "FIRST").get(name.removeprefix("hpcbert "), "").split()
    assert [max(option.opts, key=len) for option in options][: len(first)] == first


@pytest.mark.needs("groff")
def test_troff_reads_the_pages_without_a_warning():
    argv, text = ["groff", "-man", "-Tutf8", "-ww", "-z"], "".join(PAGES.values())
    result = subprocess.run(argv, input=text, text=True, capture_output=True, check=True)
    assert result.stderr == ""


@pytest.mark.parametrize("command", ["submit", "plan", "render"])
def test_help_all_lists_every_option_once_and_by_subject(command):
    page = run(command, "--help-all").stdout
    assert re.findall(r"^([A-Za-z].*):$", page, re.MULTILINE) == [*SECTIONS]
    params = dict(walk_commands())[f"hpcbert {command}"].command.params
    flags = [max(param.opts, key=len) for param in params if isinstance(param, click.Option)]
    options = page.replace(",", " ").partition("What to measure:")[2].split("\n  -")[1:]
    listed = [next(word for word in f"-{text}".split() if word in flags) for text in options[:-1]]
    assert sorted(listed) == sorted(flags)
    for words in read_constant(__file__, "EXPLAINED").get(command, ()):
        assert words in " ".join(run(command, "--help").stdout.split())


@cases
def test_clicks_own_errors_are_plain_sentences_that_suggest_what_is_meant(line, sentence, option):
    words = line.split()
    with pytest.raises(click.UsageError) as caught, root.make_context("hpcbert", words) as context:
        root.invoke(context)
    error = convert_error(caught.value)
    assert error.message.endswith(sentence)
    suggestion = f"Did you mean {option}? " if option else ""
    assert error.hint.startswith(f"{suggestion}See hpcbert")


@pytest.fixture
def campaigns(build, empty_directory, monkeypatch):
    """Makes two campaigns, and returns the newer one's directory."""
    monkeypatch.setenv(VARIABLE, "bash_complete")
    build("1n1g", "1n4g", name=OLD)
    return build("2n8g", name=NEW, jobs=("90",)).directory


def complete(line):
    """Complete the last word; a file or folder is what the shell completes itself."""
    *words, last = line.replace("OLD", OLD).replace("NEW", NEW).split(" ")
    items = ShellComplete(root, {}, "hpcbert", VARIABLE).get_completions(words, last)
    names = [item.value if item.type == "plain" else f"({item.type})" for item in items]
    return " ".join(names).replace(OLD, "OLD").replace(NEW, "NEW")


@cases
def test_a_value_is_completed(campaigns, line, completions):
    assert complete(line) == completions


def test_what_is_damaged_completes_nothing(campaigns):
    (campaigns / "manifest.json").write_text("{")
    (campaigns / "recipe.toml").write_text("[")
    assert complete("logs NEW --point ") == complete("collect NEW --rule ") == ""
    Path("site.toml").write_text("no = toml = no")
    assert complete("submit --fw one") == "oneflow oneflow-models"


@pytest.mark.slow
def test_each_shell_is_answered_in_its_own_form_and_bash_itself_completes(campaigns, tmp_path):
    environment = {"COMP_WORDS": "hpcbert show 3f9", "PYTHONPROFILEIMPORTTIME": "1", **UNCOUNTED}
    for shell, word, answer in (
        ("bash", "2", f"plain,{OLD}"),
        ("zsh", "2", f"plain\n{OLD}\n_"),
        ("fish", "3f9", f"plain,{OLD}"),
    ):
        variables = {VARIABLE: f"{shell}_complete", "COMP_CWORD": word}
        result = Cli(tmp_path, {**environment, **variables})()
        assert result.stdout.strip() == answer
        assert not HEAVY & result.modules
    tool(tmp_path, "hpcbert", f'#!/bin/sh\nexec "{sys.executable}" -m hpcbert "$@"\n')
    argv = ["bash", "--norc", "-c", read_constant(__file__, "SCRIPT")]
    env = {**os.environ, VARIABLE: "", "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    output = subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout
    assert output == f"{OLD}\n"
