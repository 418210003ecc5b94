"""The class for ReFrame, run by ReFrame on its local scheduler and the local queue."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.contract.contract import make_place
from tests.kit.cases import cases
from tests.kit.paths import REPOSITORY

pytestmark = [pytest.mark.needs("reframe"), pytest.mark.slow]

# Read before a test takes such variables away.
REFRAME = os.environ.get("HPCBERT_REFRAME", "")
TESTS = """\
import reframe as rfm
from hpcbert.reframe import BertThroughput

@rfm.simple_test
class Point(BertThroughput):
    framework = "fixed"
    repeats = 2
    options = {options}
    reference = {{"*": {{"throughput": ({reference}, -0.01, 0.01, "samples/s")}}}}
"""


@cases
def test_a_point_is_a_test(
    tmp_path: Path, options: list[str], reference: float, status: int, keyword: str
) -> None:
    place = make_place(tmp_path)
    path = place.directory / "point.py"
    path.write_text(TESTS.format(options=options, reference=reference))
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    words = [REFRAME, "--nocolor", "-c", path, "-r"]
    result = subprocess.run(
        [*map(str, words)],
        cwd=place.directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == status, result.stdout
    assert keyword in result.stdout
