"""Collecting the tests: the same ones under the same names, whenever and wherever that is done."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.kit.waiting import CEILING

pytestmark = pytest.mark.slow


def begin(repository: Path, seed: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "-p", "no:cacheprovider"],
        cwd=repository,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONDONTWRITEBYTECODE": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_two_collections_give_the_same_names(repository: Path) -> None:
    with begin(repository, "1") as first:
        # A zip file's time of day has a resolution of two seconds.
        time.sleep(2.1)
        with begin(repository, "2") as second:
            outputs = [one.communicate(timeout=CEILING)[0] for one in (first, second)]
    collected = [[line for line in text.splitlines() if "::" in line] for text in outputs]
    assert len(collected[0]) > 1000, outputs[0][-2000:]
    assert collected[0] == collected[1]
    assert max(collected[0], key=len).isprintable()
    assert len(max(collected[0], key=len)) < 300
