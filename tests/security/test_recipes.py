"""A recipe that came with somebody's campaign runs nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hpcbert.cli.collect import command
from hpcbert.logs.scan import Reading
from hpcbert.logs.setting import Setting

GADGETS = (
    "subprocess:call",
    "os:system",
    "os:execv",
    "runpy:run_path",
    "pickle:load",
    "builtins:open",
)


def reads_logs(path: Path, setting: Setting) -> Reading:
    return Reading(42.0, 12, 10, setting)


def collected(made: Any, reader: str) -> Any:
    (made.directory / "recipe.toml").write_text(f'schema = 1\n[log]\ngrammar = "{reader}"\n')
    return CliRunner().invoke(command, [str(made.directory)], catch_exceptions=False)


@pytest.fixture
def made(build: Any, tmp_path: Path) -> Any:
    made = build("1n1g", repeats=1, scheduler="local")
    made.complete("1n1g", 1, 10.0)
    log = made.directory / "logs/pytorch/bert/bz4/1n1g/bert_b4_fp32_1.log"
    log.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    log.chmod(0o755)
    return made


@pytest.mark.parametrize("reader", GADGETS)
def test_a_function_that_reads_no_logs_is_not_called(
    made: Any, tmp_path: Path, reader: str
) -> None:
    result = collected(made, reader)
    assert result.exit_code == 2
    assert "does not say that it reads logs" in result.stderr
    assert not (tmp_path / "sprung").exists()


def test_a_module_in_the_campaign_is_not_imported(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = f"import pathlib; pathlib.Path({str(tmp_path / 'sprung')!r}).touch()"
    for folder in (made.directory, made.directory / "scripts"):
        (folder / "mine.py").write_text(trap)
    result = collected(made, "mine:read")
    assert result.exit_code == 2
    assert not (tmp_path / "sprung").exists()


def test_a_function_that_says_so_is_called(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mine", sys.modules[__name__])
    assert "42.00" in collected(made, "mine:reads_logs").stdout
