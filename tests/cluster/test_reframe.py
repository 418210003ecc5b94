"""The class for ReFrame, run by ReFrame on its local scheduler, on the local queue and on a lab."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.contract.contract import make_place
from tests.kit.cases import cases, read_constant
from tests.kit.cli import Cli
from tests.kit.logs import ITERS, SKIP, stand_in
from tests.kit.paths import REPOSITORY

pytestmark = [pytest.mark.needs("reframe"), pytest.mark.slow]

# Read before a test takes such variables away.
REFRAME = os.environ.get("HPCBERT_REFRAME", "")
TESTS = read_constant(__file__, "TESTS")


@cases
def test_a_point_is_a_test(
    tmp_path: Path, options: list[str], reference: float, status: int, keyword: str
) -> None:
    place = make_place(tmp_path)
    path = place.directory / "point.py"
    path.write_text(TESTS.format(framework="fixed", options=options, reference=reference))
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


@pytest.mark.slurm
def test_an_ordinary_user_s_point_on_a_lab(hpcbert: Cli, work: Path) -> None:
    program = str(stand_in(work, ""))
    options = ["--model", "bert-tiny", "--batch-size", "2", "--iters", str(ITERS)]
    options += ["--skip", str(SKIP), "--python", program]
    tests = TESTS.format(framework="pytorch", options=options, reference=10)
    (work / "point.py").write_text(tests)
    folder = work / "reframe"  # ReFrame can't work in the other one, whose name has a space.
    hpcbert.run(["mkdir", str(folder)])
    words = [REFRAME, "--nocolor", "-c", "../point.py", "-r"]
    result = hpcbert.run(words, env=hpcbert.env, cwd=folder)
    assert result.returncode == 0, result.stdout
    assert "throughput: 10.0 samples/s" in result.stdout
    (campaign,) = (hpcbert.cwd / "runs").iterdir()
    assert campaign.name in (folder / "perflogs/generic/default/Point.log").read_text()
