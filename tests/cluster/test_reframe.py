"""The class for ReFrame, run by ReFrame on its local scheduler, on the local queue and on a lab."""

import os
import shutil

import pytest

from tests.kit.cases import cases, read_constant
from tests.kit.cli import Cli, start_process
from tests.kit.logs import WORDS, stand_in, write_file
from tests.kit.paths import REPOSITORY

pytestmark = [pytest.mark.needs("reframe"), pytest.mark.slow]

# Read before a test takes such variables away.
REFRAME = [os.environ.get("HPCBERT_REFRAME", ""), "--nocolor", "-r", "-c"]
TESTS = read_constant(__file__, "TESTS")


@cases
def test_a_point_is_a_test(tmp_path, options: list[str], reference, status, keyword):
    shutil.copytree(REPOSITORY / "tests/contract/recipes", tmp_path / "templates")
    Cli(tmp_path)("init", "--local", status=0)
    tests = TESTS.format(framework="fixed", options=options, reference=reference)
    env = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    argv = [*REFRAME, str(write_file(tmp_path, "point.py", tests))]
    result = start_process(argv, cwd=tmp_path, env=env)
    assert (result.returncode, keyword in result.stdout) == (status, True), result.stdout


@pytest.mark.slurm
def test_an_ordinary_user_s_point_on_a_lab(hpcbert, work):
    options = [*map(str, WORDS[3:]), "--python", str(stand_in(work, ""))]
    tests = TESTS.format(framework="pytorch", options=options, reference=10)
    write_file(work, "point.py", tests)
    folder = work / "reframe"  # ReFrame can't work in the other one, whose name has a space.
    hpcbert.run(["mkdir", str(folder)])
    result = hpcbert.run([*REFRAME, "../point.py"], env=hpcbert.env, cwd=folder)
    assert result.returncode == 0, result.stdout
    assert "throughput: 10.0 samples/s" in result.stdout
    (campaign,) = (hpcbert.cwd / "runs").iterdir()
    assert campaign.name in (folder / "perflogs/generic/default/Point.log").read_text()
