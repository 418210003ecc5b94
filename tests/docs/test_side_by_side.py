"""The benchmark of all rows runs: two cheap ones, one turn each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.paths import REPOSITORY

pytestmark = pytest.mark.slow

BENCHMARKS = REPOSITORY / "benchmarks"
PROGRAM = [sys.executable, str(BENCHMARKS / "side_by_side.py"), "--no-peers"]


def test_two_rows_are_measured_and_judged(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    words = ["--only", "version,collect-30", "--runs", "1", "--json", str(figures)]
    result = subprocess.run(
        [*PROGRAM, *words],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    head, rule, *rows, _, about = result.stdout.splitlines()
    assert (head.count("|"), rule.count("|"), len(rows)) == (7, 7, 2)
    assert all(row.count("|") == 7 for row in rows)
    assert all("met" in row or "missed" in row for row in rows)
    # Beside a goal that is missed stands where the time goes.
    assert all(("%" in row) == ("missed" in row) for row in rows)
    assert about.startswith("Medians of 1 turn")
    document = json.loads(figures.read_text())
    assert list(document) == ["version", "collect-30"]
    assert all(
        figure["own"] > 0 and figure["floor"] > 0 and figure["goals"]
        for figure in document.values()
    )
    # Nothing is left behind.
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]
