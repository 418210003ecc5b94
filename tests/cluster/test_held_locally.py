"""--stop-on-failure with the local scheduler: what a failed baseline holds back, and what not."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbert.campaign import store
from tests.kit.cases import cases
from tests.kit.cli import Cli
from tests.kit.logs import WORDS, stand_in

pytestmark = pytest.mark.slow

CURVE = (
    *("--scheduler", "local", "--gpus-per-node", "2", "--scaling", "--repeats", "2"),
    *("--precision", "fp32", "--wait", "--json"),
)
HELD = "held back: baseline bert-tiny_1n1g_fp32_b2 failed"


@pytest.fixture
def hpcbert(tmp_path: Path) -> Cli:
    return Cli(tmp_path, {"HOME": str(tmp_path), "HPCBERT_RUNS": str(tmp_path / "runs")})


def started(directory: Path) -> list[str]:
    """The points of which a measured step was started."""
    paths = directory.glob("status/*.jsonl")
    return sorted({path.name.split("_")[1] for path in paths if '"step"' in path.read_text()})


def details(document: dict[str, object], shape: str) -> list[str]:
    (table,) = document["data"]["tables"]  # type: ignore[index]
    (row,) = [row for row in table["rows"] if row["shape"] == shape]
    return [reason["detail"] for run in row["runs"] for reason in run["reasons"]]


def test_a_baseline_that_lost_all_repeats_holds_the_others_back(
    hpcbert: Cli, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    program = stand_in(tmp_path, f"if [[ -e {flag} ]]; then exit 7; fi")
    result = hpcbert(*WORDS, *CURVE, "--python", program)
    assert result.returncode == 4, result.output
    (directory,) = (tmp_path / "runs").iterdir()
    assert started(directory) == ["1n1g"]
    messages = details(result.document, "1n2g")
    assert [HELD in message for message in messages if message.startswith("it is FAILED")] == [
        True,
        True,
    ]
    assert HELD in result.stderr
    flag.unlink()
    (tmp_path / "training.log").write_text("")
    again = hpcbert("retry", directory, "--wait", "--json")
    assert again.returncode == 4
    assert started(directory) == ["1n1g", "1n2g"]
    points = [
        array.point.shape.gpus for array in store.read_manifest(directory).arrays if array.retry
    ]
    assert points[:2] == [1, 2]


@cases
def test_a_curve_is_held_back_by_default(hpcbert: Cli, words: tuple[str, ...], holds: bool) -> None:
    gpus = () if "--shapes" in words else ("--gpus-per-node", "2")
    result = hpcbert("submit", "--dry-run", "--json", *gpus, *words)
    first, *later_arrays = result.data["arrays"]
    assert "\nbaseline=" not in first["script_text"]
    assert {"\nbaseline=" in array["script_text"] for array in later_arrays} == {holds}
