"""A recipe that came with somebody's campaign runs nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcbert.logs.scan import Reading
from hpcbert.logs.setting import Setting
from tests.kit.cli import inside


def reads_logs(path: Path, setting: Setting) -> Reading:
    return Reading(42.0, 12, 10, setting)


def collected(made: Any, reader: str) -> Any:
    (made.directory / "recipe.toml").write_text(f'schema = 1\n[log]\ngrammar = "{reader}"\n')
    return inside("collect", made.directory)


@pytest.fixture
def made(build: Any, tmp_path: Path) -> Any:
    made = build("1n1g", repeats=1, scheduler="local")
    made.complete("1n1g", 1, 10.0)
    log = made.directory / "logs/pytorch/bert/bz4/1n1g/bert_b4_fp32_1.log"
    log.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    log.chmod(0o755)
    return made


@pytest.mark.parametrize(
    "reader",
    [
        "subprocess:call",
        "os:system",
        "os:execv",
        "runpy:run_path",
        "pickle:load",
        "builtins:open",
    ],
)
def test_a_function_that_reads_no_logs_is_not_called(
    made: Any, tmp_path: Path, reader: str
) -> None:
    result = collected(made, reader)
    assert result.returncode == 2
    assert "is not annotated as a reader of logs" in result.stderr
    assert not (tmp_path / "sprung").exists()


def test_a_module_in_the_campaign_is_not_imported(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = f"import pathlib; pathlib.Path({str(tmp_path / 'sprung')!r}).touch()"
    for folder in (made.directory, made.directory / "scripts"):
        (folder / "mine.py").write_text(trap)
    result = collected(made, "mine:read")
    assert result.returncode == 2
    assert not (tmp_path / "sprung").exists()


READER = """
from pathlib import Path
from hpcbert.logs.scan import Reading
from hpcbert.logs.setting import Setting
from tests.kit.cli import inside
def read(path: Path, setting: Setting) -> Reading:
    return Reading(43.0, 12, 10, setting)
"""


@pytest.mark.parametrize("where", ["-m", "PYTHONPATH", "empty part of PYTHONPATH"])
def test_a_module_of_the_working_directory_is_not_imported(
    made: Any, tmp_path: Path, where: str
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
    for reader in ("mine:read", "entry-point:yours"):
        (made.directory / "recipe.toml").write_text(f'schema = 1\n[log]\ngrammar = "{reader}"\n')
        done = subprocess.run(
            [sys.executable, "-m", "hpcbert", "collect", str(made.directory)],
            cwd=place,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2, done.stderr
        assert "can't be used" in done.stderr
        assert not sprung.exists()


@pytest.mark.parametrize("reader", ["installed_reader:read", "entry-point:brought"])
def test_an_installed_function_or_entry_point_is_called(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    place = tmp_path / "site-packages"
    (place / "brought-1.0.dist-info").mkdir(parents=True)
    (place / "installed_reader.py").write_text(READER)
    (place / "brought-1.0.dist-info" / "METADATA").write_text("Name: brought\nVersion: 1.0\n")
    (place / "brought-1.0.dist-info" / "entry_points.txt").write_text(
        "[hpcbert.grammars]\nbrought = installed_reader:read\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(place)])
    assert "43.00" in collected(made, reader).stdout
    sys.modules.pop("installed_reader", None)


def test_a_name_that_nobody_offers_lists_what_there_is(made: Any) -> None:
    result = collected(made, "entry-point:nobodys")
    assert result.returncode == 2
    assert "hpcbert.grammars" in result.stderr
    assert "hint: There are: none" in result.stderr


def test_a_function_that_says_so_is_called(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mine", sys.modules[__name__])
    assert "42.00" in collected(made, "mine:reads_logs").stdout
