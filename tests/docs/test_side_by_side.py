"""The benchmark of all rows runs: two cheap ones, one turn each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.kit.paths import REPOSITORY

PROGRAM = [sys.executable, str(REPOSITORY / "benchmarks" / "side_by_side.py"), "--no-peers"]


def test_two_rows_are_measured_and_judged(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    words = ["--only", "version,collect-30", "--runs", "1", "--json", str(figures)]
    done = subprocess.run(
        [*PROGRAM, *words],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    head, rule, *rows = done.stdout.splitlines()
    assert (head.count("|"), rule.count("|"), len(rows)) == (6, 6, 2)
    assert all(row.count("|") == 6 for row in rows)
    assert all("met" in row or "missed" in row for row in rows)
    found = json.loads(figures.read_text())
    assert list(found) == ["version", "collect-30"]
    assert all(one["own"] > 0 and one["floor"] > 0 and one["goals"] for one in found.values())
    # Nothing is left behind.
    assert [one.name for one in tmp_path.iterdir()] == ["figures.json"]


def test_an_unknown_row_is_refused_with_those_that_there_are() -> None:
    done = subprocess.run([*PROGRAM, "--only", "x"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("no rows x; there are: help, version, submit-help")
