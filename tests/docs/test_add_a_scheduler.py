"""The page "Add a scheduler", followed word by word, and what comes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kit.scripts import SPOOL_PAGE, make_environment, read_steps, type_commands, write_files

pytestmark = [pytest.mark.slow, pytest.mark.torch]


def test_the_page_makes_a_scheduler_that_works(tmp_path: Path) -> None:
    place = tmp_path / "add a scheduler"
    place.mkdir()
    tools = make_environment(place)
    steps = read_steps(SPOOL_PAGE)
    write_files(steps, place)
    commands = [block for name, _, block in steps if not name]
    assert len(commands) == 2
    outputs = [
        type_commands(f"export SPOOL=$PWD/queue\n{block}", place, tools=tools) for block in commands
    ]
    assert all("bert-tiny" in output for output in outputs)
    assert sorted(path.name for path in place.glob("queue/*")) == ["0001", "0002", "0003"]
    for directory in place.glob("runs/2*"):
        words = f"export SPOOL=$PWD/queue; hpcbert collect {directory.name} --json"
        (table,) = json.loads(type_commands(words, place, tools=tools))["data"]["tables"]
        assert table["rows"][0]["repeats"] == {"ok": 2, "asked": 2}
        assert json.loads((directory / "manifest.json").read_text())["scheduler"] == "spool"
