"""Lines of a recipe's README run; the table of sbatch/README.md names all that a script assigns."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from hpcbert.model import LARGEST, Shape
from hpcbert.script.plan import Request
from tests.kit import drafts
from tests.kit.cli import run
from tests.kit.drafts import combined
from tests.kit.paths import REPOSITORY, TEMPLATES
from tests.kit.recipes import RUNTIMES, Case, load, presets, render

_ASSIGNED = re.compile(r"(?<![-\w$\"'=/,{])([a-z_]+)=")


def test_each_line_of_a_recipe_s_page_works_as_typed(name: str, empty_directory: None) -> None:
    """A submission is not started: `--dry-run` plans and renders it."""
    text = (TEMPLATES / name / "README.md").read_text()
    lines = re.findall(r"^    hpcbert ((?:submit|render) .*)$", text, re.MULTILINE)
    assert lines
    for line in lines:
        words = shlex.split(line)
        words += ["--dry-run"] if words[0] == "submit" else []
        result = run(*words)
        assert result.returncode == 0, result.output


def read_names() -> set[str]:
    text = (REPOSITORY / "sbatch/README.md").read_text()
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return set(re.findall(r"`([a-z_]+)(?:=|\(\)|`)", " ".join(cells)))


def list_top_level(text: str) -> set[str]:
    """Return the names that a script assigns and calls before and after its functions."""
    head, _, functions = text.partition("\ntrain() {")
    text = head + "\n" + functions.rpartition("\n}\n")[2]
    text = re.sub(r"=\($.*?^\)$", "=()", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"#.*|'[^']*'|\"[^\"]*\"|\$\w+", "''", text)
    text = re.sub(r"=\([^()]*\)", "=()", text)
    lines = [line for line in text.splitlines() if re.match(r"[a-z]", line)]
    calls = {line.split()[0] for line in lines if re.match(r"[a-z_]+( |$)", line)}
    return {name for line in lines for name in _ASSIGNED.findall(line)} | calls


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_table_names_every_line(runtime: str) -> None:
    case = Case(Shape(4, 8), *presets(load("pytorch"))[0])
    names = list_top_level(render("pytorch", case, runtime=runtime).text)
    assert {"campaign", "environment", "run_repeats", "begin_job"} <= names
    assert names <= read_names(), names - read_names()


def test_the_table_names_every_line_of_the_committed_scripts() -> None:
    scripts = sorted((REPOSITORY / "sbatch").glob("*.sbatch"))
    names = {name for path in scripts for name in list_top_level(path.read_text())}
    assert names <= read_names(), names - read_names()


@pytest.mark.parametrize(
    ("request_", "options"),
    [
        (combined(Shape(1, 2), batch_sizes=(LARGEST,)), {}),
        (combined(Shape(2, 2), scaling=True), {"preflight": True, "stop_on_failure": True}),
    ],
    ids=["largest", "preflight"],
)
def test_the_table_names_every_line_of_a_feature(
    tmp_path: Path, request_: Request, options: dict[str, object]
) -> None:
    draft = drafts.drafted(tmp_path, request_, options=options)
    names = {name for text in draft.scripts.values() for name in list_top_level(text)}
    assert names <= read_names(), names - read_names()
