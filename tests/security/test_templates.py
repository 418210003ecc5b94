"""A recipe folder that came from somebody runs nothing on the login node."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hpcbert.cli.render import render
from hpcbert.cli.submit import submit
from tests.kit.paths import REPOSITORY, TEMPLATES
from tests.kit.waiting import CEILING, until

HERE = Path(__file__).resolve().parent
SITE = 'schema = 1\nname = "t"\nscheduler = "slurm"\n'

# One template a line: Jinja's and Python's ways out, as lists of template injections have them.
ESCAPES = (HERE / "escapes.txt").read_text().splitlines()


def name_of(template: str) -> str:
    return re.sub(r"\W+", "-", template).strip("-")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a site.toml and a recipe of its own beside it."""
    (tmp_path / "site.toml").write_text(SITE)
    shutil.copytree(TEMPLATES / "pytorch", tmp_path / "templates/mine")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(place: Path, template: str, *words: str) -> Any:
    body = place / "templates/mine/run.sh.j2"
    body.write_text(f"set -e\n{template}\n")
    command = submit if words else render
    result = CliRunner().invoke(command, ["--fw", "mine", "--json", *words])
    document = json.loads(result.stdout)
    assert result.exit_code == document["exit_code"] == 2, document
    (error,) = document["errors"]
    assert error["message"].startswith(str(body)), error
    assert not (place / "sprung").exists()
    assert not (place / "runs").exists()
    return error["message"]


@pytest.mark.parametrize("template", ESCAPES, ids=name_of)
def test_no_template_gets_out(place: Path, template: str) -> None:
    message = refused(place, template)
    if "include" not in template and "raw" not in template and "import" not in template:
        assert f"{place}/templates/mine/run.sh.j2:2: A template" in message


@pytest.mark.parametrize(
    "template",
    ["{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{% include 'mine/run.sh.j2' %}"],
    ids=["macro", "include"],
)
def test_an_endless_recursion_is_an_error(place: Path, template: str) -> None:
    assert "A template is wrong" in refused(place, template)


def test_an_interrupt_ends_an_endless_template(place: Path) -> None:
    loop = "{% for x in range(99999) %}{% for y in range(99999) %}{% endfor %}{% endfor %}\n"
    (place / "templates/mine/run.sh.j2").write_text(loop)
    words = [sys.executable, "-m", "hpcbert", "render", "--fw", "mine"]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(words, env=env, stderr=subprocess.PIPE) as process:
        maps = Path(f"/proc/{process.pid}/maps")
        until(lambda: "markupsafe" in maps.read_text(), "Jinja is loaded")
        process.send_signal(signal.SIGINT)
        assert process.wait(CEILING) == 130


def test_a_dry_run_renders_in_the_sandbox_too(place: Path) -> None:
    refused(place, ESCAPES[3], "--dry-run")


def test_what_recipes_need_still_works(place: Path) -> None:
    (place / "templates/mine/run.sh.j2").write_text(
        "{% set ns = namespace(n=0) %}{% for i in range(8) %}{% set ns.n = ns.n + 2**i %}{% endfor %}\n"
        "echo {{ ns.n }} {{ gcd(12, 18) }} {{ point.key }} {{ range(3)|join(',') }} {{ 'a b'.upper() }}\n"
    )
    result = CliRunner().invoke(render, ["--fw", "mine"])
    assert result.exit_code == 0, result.output
    assert "echo 255 6 bert-base_1n1g_fp32_b32 0,1,2 'A B'\n" in result.output
