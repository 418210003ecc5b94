"""What hints name, what outranks what, and checks that check nothing."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcbert.config.site import read_site
from hpcbert.lab import files
from hpcbert.lab.record import DEFAULT_DIRECTORY, LabPlan, Layout, command

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("text", ["/srv/other lab", "/var/lib/hpcbert-lab2"])
def test_the_labs_commands_name_its_directory(text: str) -> None:
    words = shlex.split(command("down", Path(text)))
    assert words == ["hpcbert", "lab", "down", "--directory", text]
    assert command("down", DEFAULT_DIRECTORY) == "hpcbert lab down"


def test_no_lab_there_hints_at_that_directory(
    run_commands: Callable[..., list[Any]], tmp_path: Path
) -> None:
    for result in run_commands([["lab", "status", "--directory", str(tmp_path)]]):
        assert f"hpcbert lab up --directory {tmp_path}" in result.stderr


def test_prepare_has_places_of_its_own_in_the_lab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_set_owner", lambda *_: None)
    layout = Layout(tmp_path)
    path = tmp_path / "site.toml"
    path.write_text(files.site_toml(LabPlan(), layout, mpi=""))
    site = read_site(path, base=tmp_path, env={})
    assert (site.sources, site.container.images) == (str(layout.sources), str(layout.images))


def test_init_says_what_outranks_the_file_it_writes(
    run_commands: Callable[..., list[Any]], tmp_path: Path
) -> None:
    other = tmp_path / "other.toml"
    (first,) = run_commands([["init", "--local", "--json"]])
    assert first.document["warnings"] == []
    other.write_text((tmp_path / "home" / "site.toml").read_text())
    words = ["init", "--local", "--force", "--json"]
    (result,) = run_commands([words], HPCBERT_SITE=str(other))
    assert result.returncode == 0
    (warning,) = result.document["warnings"]
    assert "HPCBERT_SITE" in warning
    assert str(other) in warning
    (text,) = run_commands([words[:-1]], HPCBERT_SITE=str(other))
    assert "hpcbert doctor --site site.toml" in text.stdout
    (result,) = run_commands([words], HPCBERT_SITE=str(tmp_path / "absent.toml"))
    assert "HPCBERT_SITE" in result.document["warnings"][0]
    (result,) = run_commands([[*words, "--output", str(tmp_path / "elsewhere.toml")]])
    assert "elsewhere.toml" in result.document["warnings"][0]


def test_templates_that_are_not_there_are_refused(run_commands: Callable[..., list[Any]]) -> None:
    command_lines = [
        ["frameworks", "list", "--templates", "absent", "--json"],
        ["render", "--templates", "absent", "--json"],
    ]
    for result in run_commands(command_lines):
        assert result.returncode == 2
        assert "absent" in result.document["errors"][0]["message"]
