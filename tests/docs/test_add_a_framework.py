"""The page "Add a framework", followed word by word, and what comes of it."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcbert.system.runner import run
from tests.kit.paths import REFERENCE, REPOSITORY
from tests.kit.scripts import tool
from tests.kit.waiting import CEILING

pytestmark = pytest.mark.slow

_STEP = re.compile(r"(?:^<!-- file: (\S+) -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which a person did what the page says; the path has a space in it."""
    place = tmp_path_factory.mktemp("add a framework")
    text = (REPOSITORY / "docs/how-to/add-a-framework.md").read_text(encoding="utf-8")
    steps = _STEP.findall(text.partition("## Before it becomes part")[0])
    assert len(steps) > 4
    for name, language, block in steps:
        if name:
            (place / name).write_text(block, encoding="utf-8")
        else:
            assert language == "sh"
            typed(block, place)
    return place


def typed(words: str, place: Path, *, status: int = 0) -> str:
    """Have bash do what a person typed, with hpcbert on the path, and return stdout."""
    program = f'#!/bin/bash\nexec {shlex.quote(sys.executable)} -m hpcbert "$@"\n'
    tool(place / "bin", "hpcbert", program)
    path = f"{place / 'bin'}:{os.environ['PATH']}"
    strange = ("FORCE_COLOR", "HPCBERT_", "SLURM_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(strange)}
    env = {**inherited, "PATH": path, "XDG_STATE_HOME": str(place / "state")}
    outcome = run(["bash", "-e", "-c", words], cwd=place, env=env, timeout=CEILING)
    assert outcome.returncode == status, outcome.stdout + outcome.stderr
    return outcome.stdout


def campaigns(place: Path) -> list[Path]:
    return sorted(path.parent for path in place.glob("runs/*/manifest.json"))


def documented(page: str, heading: str) -> set[str]:
    """Return the keys in the tables below a heading of a page, as far as the next one."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    body = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in body.splitlines() if line.startswith("| `")]
    return {code for cell in cells for code in re.findall(r"`([^`]+)`", cell)}


def table(place: Path) -> dict[str, Any]:
    words = f"hpcbert collect {campaigns(place)[0].name} --json"
    document: dict[str, Any] = json.loads(typed(words, place))
    (first_table,) = document["data"]["tables"]
    return dict(first_table)


def test_five_runs_of_each_shape_count(followed: Path) -> None:
    rows = table(followed)["rows"]
    assert [row["shape"] for row in rows] == ["1n1g", "1n2g"]
    assert [row["repeats"] for row in rows] == [{"ok": 5, "asked": 5}] * 2


def test_the_rehearsal_gives_no_table(followed: Path) -> None:
    rehearsal = campaigns(followed)[1]
    assert json.loads((rehearsal / "manifest.json").read_text())["rehearse"]
    typed(f"hpcbert collect {rehearsal.name}", followed, status=4)


def test_no_file_of_hpcbert_was_touched(followed: Path) -> None:
    names = {path.name for path in (followed / "templates" / "sleeper").iterdir()}
    assert names == {"recipe.toml", "run.sh.j2", "train.sh", "sample.log"}
    assert not (REPOSITORY / "templates" / "sleeper").exists()


def test_the_json_page_has_the_keys_of_collect(followed: Path) -> None:
    document = table(followed)
    keys = {f"tables[].{key}" for key in document}
    for row in document["rows"]:
        keys |= {"repeats.ok", "repeats.asked"} | (set(row) - {"repeats"})
        keys |= set(row["metrics"])
        keys |= {key for run in row["runs"] for key in run}
    keys |= {"left_out", "beside", *(f"made.{key}" for key in ("hpcbert", "date", "command"))}
    sometimes = {"reasons", "tables[].largest", "rates"}
    assert documented("json.md", "collect") - sometimes == keys - sometimes


def test_the_json_page_has_the_keys_of_monitor(followed: Path) -> None:
    words = f"hpcbert monitor --once --json {campaigns(followed)[0].name}"
    *events, document = map(json.loads, typed(words, followed).splitlines())
    assert len(events) == 10
    keys = {key for event in events for key in event}
    sometimes = {"rate", "unit", "flags"}
    data = documented("json.md", "monitor") - keys - sometimes
    assert keys <= documented("json.md", "monitor")
    assert {key.partition("[")[0].partition(".")[0] for key in data} == set(document["data"])


def test_the_campaign_page_has_the_keys_of_the_measurements(followed: Path) -> None:
    path = campaigns(followed)[0] / "measurements.json"
    measurements = json.loads(path.read_text())
    keys = set(measurements) - {"runs"}
    keys |= {f"runs[].{key}" for run in measurements["runs"] for key in run}
    assert documented("campaign-directory.md", "measurements.json") == keys
