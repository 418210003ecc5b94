"""The pages that are printed without click: the same words, in a fraction of the time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcbert import __version__
from tests.kit.cli import of_click
from tests.kit.paths import REPOSITORY

PAGE = REPOSITORY / "hpcbert" / "cli" / "help.txt"
# click, too, prints help no wider than this.
WIDE = {"COLUMNS": "80"}


def said(*words: str, python: tuple[str, ...] = (), **environ: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, *python, "-m", "hpcbert", *words],
        env={**os.environ, **WIDE, **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout, done.stderr


def test_the_page_is_what_click_prints() -> None:
    # With another option before it, click answers.
    made, _ = said("--color", "auto", "--help")
    assert PAGE.read_text() == made, f"hpcbert --color auto --help >{PAGE.relative_to(REPOSITORY)}"
    assert said("--help")[0] == said("-h")[0] == made
    assert said("--help", COLUMNS="200")[0] == made
    assert said("--version")[0] == f"hpcbert {__version__}\n"


def test_on_a_narrow_terminal_help_is_folded() -> None:
    narrow, _ = said("--help", COLUMNS="60")
    assert max(map(len, narrow.splitlines())) <= 60
    assert narrow.split() == PAGE.read_text().split()


@pytest.mark.parametrize("word", ["--help", "-h", "--version"])
def test_click_is_not_imported_for_it(word: str) -> None:
    names = modules(word)
    assert "hpcbert" in names
    assert not names & {"click", "hpcbert.cli", "hpcbert.cli.main"}


def modules(*words: str) -> set[str]:
    _, imported = said(*words, python=("-X", "importtime"))
    return {line.rpartition("|")[2].strip() for line in imported.splitlines()}


def test_help_of_submit_imports_what_its_options_are_made_of() -> None:
    found = modules("submit", "--help") - of_click()
    rooms = {name.split(".")[1] for name in found if name.startswith("hpcbert.")}
    assert rooms <= {"cli", "config", "errors", "timelimit"}
    assert not found & {
        "hashlib",
        "hpcbert.config.site",
        "secrets",
        "socket",
        "subprocess",
        "tomli",
    }


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_what_can_not_be_printed_is_said(word: str, tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "hpcbert", word],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode != 0
    assert b"No space left" in done.stderr


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("submit", ("a campaign, in one directory", "allocation (its nodes)", "step: the ranks")),
        ("plan", ("campaign (everything that one submit starts)",)),
    ],
    ids=["submit", "plan"],
)
def test_help_explains_the_words_of_the_field(command: str, words: tuple[str, ...]) -> None:
    text = " ".join(said(command, "--help")[0].split())
    for word in words:
        assert word in text
