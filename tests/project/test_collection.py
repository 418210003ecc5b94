"""Collecting the tests: the same ones under the same names, whenever and wherever that is done."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import group_of
from tests.kit.waiting import CEILING

pytestmark = pytest.mark.slow


def test_two_collections_give_the_same_names(
    repository: Path, request: pytest.FixtureRequest
) -> None:
    """One is this run's own: of another moment, and of a process with another hash seed."""
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"],
        cwd=repository,
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        timeout=CEILING,
        check=False,
    )
    lines = [line for line in result.stdout.splitlines() if "::" in line]
    assert len(lines) > 1000, result.stdout[-2000:] + result.stderr[-2000:]
    # xdist adds a test's group.
    texts = [item.nodeid.removesuffix(f"@{group_of(item)}") for item in request.session.items]
    assert set(texts) <= set(lines)
    assert len(texts) < len(lines) or texts == lines
    assert max(lines, key=len).isprintable()
    assert len(max(lines, key=len)) < 300
