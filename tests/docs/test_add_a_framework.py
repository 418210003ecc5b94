"""The page "Add a framework", followed word by word, and what comes of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.kit.paths import REFERENCE, REPOSITORY
from tests.kit.scripts import read_steps, type_commands

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which a person did what the page says; the path has a space in it."""
    place = tmp_path_factory.mktemp("add a framework")
    steps = read_steps("add-a-framework.md", end="## Before it becomes part")
    assert len(steps) > 4
    for name, language, block in steps:
        if name:
            (place / name).write_text(block, encoding="utf-8")
        else:
            assert language == "sh"
            type_commands(block, place)
    return place


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
    document: dict[str, Any] = json.loads(type_commands(words, place))
    (first_table,) = document["data"]["tables"]
    return dict(first_table)


def test_five_runs_of_each_shape_count(followed: Path) -> None:
    rows = table(followed)["rows"]
    assert [row["shape"] for row in rows] == ["1n1g", "1n2g"]
    assert [row["repeats"] for row in rows] == [{"ok": 5, "asked": 5}] * 2


def test_the_rehearsal_gives_no_table(followed: Path) -> None:
    rehearsal = campaigns(followed)[1]
    assert json.loads((rehearsal / "manifest.json").read_text())["rehearse"]
    type_commands(f"hpcbert collect {rehearsal.name}", followed, status=4)


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
    *events, document = map(json.loads, type_commands(words, followed).splitlines())
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
