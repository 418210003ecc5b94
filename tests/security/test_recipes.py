"""A recipe that came with somebody's campaign runs nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign import archive
from tests.kit.cases import cases
from tests.kit.cli import run


def name_reader(built: Any, reader: str) -> None:
    (built.directory / "recipe.toml").write_text(f'schema = 1\n[log]\ngrammar = "{reader}"\n')


@pytest.fixture
def built(build: Any, tmp_path: Path) -> Any:
    new_campaign = build("1n1g", repeats=1, scheduler="local")
    new_campaign.complete("1n1g", 1, 10.0)
    log = new_campaign.directory / "logs/pytorch/bert/bz4/1n1g/bert_b4_fp32_1.log"
    log.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    log.chmod(0o755)
    return new_campaign


@cases
@pytest.mark.parametrize("packed", [False, True], ids=["directory", "archive"])
def test_nothing_that_a_recipe_names_is_imported(
    built: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str, packed: bool
) -> None:
    sprung, browser = tmp_path / "sprung", tmp_path / "browser"
    browser.write_text(f"#!/bin/sh\ntouch {sprung}\n")
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(browser))
    trap = f"import pathlib; pathlib.Path({str(sprung)!r}).touch()"
    for folder in (built.directory, built.directory / "scripts"):
        (folder / "mine.py").write_text(trap)
    modules = set(sys.modules)
    name_reader(built, reader)
    source = built.directory
    if packed:
        source = tmp_path / "stranger.zip"
        archive.pack(built.directory, source)
    result = run("collect", source)
    assert result.returncode == 2
    assert "log.grammar" in result.stderr
    assert not sprung.exists()
    named = {"antigravity", "this", "unittest.__main__", "test.__main__", "mine"}
    assert not named & (set(sys.modules) - modules)


READER = """
from pathlib import Path
from hpcbert.logs.scan import Reading
from hpcbert.logs.setting import Setting
def read(path: Path, setting: Setting) -> Reading:
    return Reading(43.0, 12, 10, setting)
"""


@pytest.mark.parametrize("where", ["-m", "PYTHONPATH", "empty part of PYTHONPATH"])
def test_a_module_of_the_working_directory_is_not_imported(
    built: Any, tmp_path: Path, where: str
) -> None:
    """Neither what a recipe names nor what shadows a module that hpcbert imports."""
    place, sprung = tmp_path / "work", tmp_path / "sprung"
    place.mkdir()
    for name in ("mine", "yours") + (("click", "tomli") if where == "-m" else ()):
        (place / f"{name}.py").write_text(
            f"import pathlib; pathlib.Path({str(sprung)!r}).touch()\n" + READER
        )
    info = place / "yours-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: yours\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hpcbert.grammars]\nyours = yours:read\n")
    paths = {"-m": "", "PYTHONPATH": str(place), "empty part of PYTHONPATH": f"{place}/none:"}
    environment = {**os.environ, "PYTHONPATH": paths[where]}
    for reader in ("mine:read", "entry-point:mine", "entry-point:yours"):
        name_reader(built, reader)
        argv = [sys.executable, "-m", "hpcbert", "collect", str(built.directory)]
        result = subprocess.run(
            argv, cwd=place, env=environment, capture_output=True, text=True, check=False
        )
        assert result.returncode == 2, result.stderr
        assert "log.grammar" in result.stderr
        assert not sprung.exists()


def test_the_entry_point_of_an_installed_package_is_called(
    built: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "site-packages"
    (place / "brought-1.0.dist-info").mkdir(parents=True)
    (place / "installed_reader.py").write_text(READER)
    (place / "brought-1.0.dist-info" / "METADATA").write_text("Name: brought\nVersion: 1.0\n")
    (place / "brought-1.0.dist-info" / "entry_points.txt").write_text(
        "[hpcbert.grammars]\nbrought = installed_reader:read\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(place)])
    name_reader(built, "entry-point:brought")
    assert "43.00" in run("collect", built.directory).stdout
    sys.modules.pop("installed_reader", None)


def test_a_name_that_nobody_offers_lists_what_there_is(built: Any) -> None:
    name_reader(built, "entry-point:nobodys")
    result = run("collect", built.directory)
    assert result.returncode == 2
    assert "hpcbert.grammars" in result.stderr
    assert "hint: There are: none" in result.stderr
