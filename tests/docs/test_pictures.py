"""The pictures of the documents: as they are drawn, in the program's words, and with room for them."""

from __future__ import annotations

import re
import runpy
from typing import Any, get_args

import pytest

from hpcbert.cli.main import COMMANDS
from hpcbert.config.options import Runtime
from hpcbert.slurm.states import Kind, Source
from tests.kit.paths import REPOSITORY

FOLDER = REPOSITORY / "docs" / "pictures"


@pytest.fixture(scope="module")
def draw() -> dict[str, Any]:
    return runpy.run_path(str(FOLDER / "draw.py"))


def boxes(draw: dict[str, Any], name: str) -> list[Any]:
    return [part for part in draw[name]() if isinstance(part, draw["Box"])]


def test_the_files_are_what_is_drawn(draw: dict[str, Any]) -> None:
    texts = {name: (FOLDER / name).read_text(encoding="utf-8") for name in draw["drawn"]()}
    assert texts == draw["drawn"](), "run: python docs/pictures/draw.py"


def test_words_of_the_program_are_the_program_s(draw: dict[str, Any]) -> None:
    life = boxes(draw, "campaign")
    assert {box.title for box in life if box.code} <= set(COMMANDS)
    assert {box.title.split()[-1] for box in life} >= {*Kind} - {Kind.UNKNOWN, Kind.UNNEEDED}
    assert {*draw["SOURCES"], "none"} == {*get_args(Source)}
    assert {*draw["RUNTIMES"]} == {*get_args(Runtime)}


def test_the_events_of_a_job_are_those_that_its_script_writes(draw: dict[str, Any]) -> None:
    folder = REPOSITORY / "hpcbert" / "shell"
    parts = ("job", "watch", "pyxis", "enough")
    library = "\n".join((folder / f"{part}.bash").read_text(encoding="utf-8") for part in parts)
    written = set(re.findall(r"\bmark ([a-z-]+)", library))
    assert {event for *_, event in draw["PHASES"]} - {""} | dict(draw["OTHERS"]).keys() == written
