"""The page about notebooks, run from its first line to its last."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.paths import REPOSITORY

_CELLS = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_page_runs(build: Callable[..., Any], here: None) -> None:
    build("1n1g", "1n2g", repeats=3, scheduler="local").finish()
    text = (REPOSITORY / "docs/how-to/notebook.md").read_text(encoding="utf-8")
    place: dict[str, Any] = {}
    for cell in _CELLS.findall(text):
        exec(compile(cell, "notebook.md", "exec"), place)
    assert list(place["result"].rows["median"]) == pytest.approx([11.0, 22.0])
    assert {path.name for path in Path().glob("*.png")} == {"scaling.png"}
    assert len(list(Path("frames").glob("*.parquet"))) == 4
