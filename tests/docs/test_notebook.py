"""The page about notebooks, run from its first line to its last."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.paths import REPOSITORY

_CELLS = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_page_runs(build: Callable[..., Any], empty_directory: None) -> None:
    build("1n1g", "1n2g", repeats=3, scheduler="local").finish()
    text = (REPOSITORY / "docs/how-to/notebook.md").read_text(encoding="utf-8")
    place: dict[str, Any] = {}
    for cell in _CELLS.findall(text):
        exec(compile(cell, "notebook.md", "exec"), place)
    assert list(place["result"].rows["median"]) == pytest.approx([11.0, 22.0])
    assert {path.name for path in Path().glob("*.png")} == {"scaling.png"}
    assert len(list(Path("frames").glob("*.parquet"))) == 4


def test_the_tutorial_s_picture_is_of_its_table() -> None:
    folder = REPOSITORY / "docs/tutorial"
    script = runpy.run_path(str(REPOSITORY / "benchmarks/picture.py"))
    rows = script["table"]().rows
    assert [row.median for row in rows] == [77.30, 96.55]
    committed = (folder / "first-table.svg").read_text(encoding="utf-8")
    # Another matplotlib draws with other bytes; what is written in it stays.
    texts = re.compile(r"<text[^>]*>(.*?)</text>")
    assert texts.findall(committed) == texts.findall(script["picture"]())
    assert f"{rows[0].median:.2f} samples/s on one rank, {rows[1].median:.2f} on two" in (
        folder / "first-table.md"
    ).read_text(encoding="utf-8")
