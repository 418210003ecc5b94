"""--batch-size max with the local scheduler: the real command, queue, search and table."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbert.campaign import store
from tests.kit.cli import Cli
from tests.kit.logs import ITERS, SKIP, START, log, stand_in

pytestmark = pytest.mark.slow

ROOM = 24
WORDS = (
    *("submit", "--fw", "pytorch", "--model", "bert-tiny", "--precision", "fp32", "--json"),
    *("--iters", str(ITERS), "--skip", str(SKIP), "--scheduler", "local", "--wait"),
)


@pytest.fixture
def hpcbert(tmp_path: Path) -> Cli:
    return Cli(tmp_path, {"HOME": str(tmp_path), "HPCBERT_RUNS": str(tmp_path / "runs")})


def program(folder: Path, bad: str = "") -> Path:
    """Make a program that has room for so many samples, and says what it was given."""
    path = stand_in(
        folder,
        f"""{bad}
while (($#)); do
  if [[ $1 == --batch-size ]]; then size=$2; fi
  shift
done
if ((size > {ROOM})); then
  echo "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0)"
  exit 1
fi""",
    )
    # Of the size that it has room for; a probe's is not looked at.
    (folder / "training.log").write_text(log("1n1g", 5.0 * ROOM, batch=ROOM, start=START))
    return path


def test_the_table_shows_the_size_that_was_found(hpcbert: Cli, tmp_path: Path) -> None:
    result = hpcbert(*WORDS, "--python", program(tmp_path), "--batch-size", "max", "--repeats", "2")
    assert result.returncode == 0, result.output
    (directory,) = (tmp_path / "runs").iterdir()
    (table,) = result.data["tables"]
    assert (table["batch_size_per_device"], table["largest"]) == (ROOM, True)
    assert [run["valid"] for run in table["rows"][0]["runs"]] == [True, True]
    text = hpcbert("collect", directory).stdout
    assert f"max ({ROOM}) samples per device" in text
    saved = tmp_path / "saved.json"
    saved.write_text(hpcbert("collect", directory, "--format", "json").stdout)
    assert f"bmax ({ROOM})" in hpcbert("compare", saved, directory).output
    (array,) = store.read_manifest(directory).arrays
    assert array.point.largest
    again = hpcbert("submit", "--like", directory, "--scheduler", "local", "--dry-run", "--json")
    assert again.data["arrays"][0]["name"].endswith("bmax"), again.output
    assert again.data["arrays"][0]["batch_size_per_device"] is None
    assert hpcbert("audit", directory).returncode == 0
    search = directory / array.point.search
    search.write_text(search.read_text().replace(f'"size":{ROOM}}}', f'"size":{ROOM + 8}}}'))
    spoilt = hpcbert("collect", directory, "--json")
    assert spoilt.returncode == 4
    assert f"it ran with {ROOM} samples per device" in spoilt.output
    assert hpcbert("audit", directory).returncode == 5


def test_one_size_for_the_curve_is_found_at_its_largest_shape(hpcbert: Cli, tmp_path: Path) -> None:
    """Two ranks have room for 16, one has room for 24: both rows are in one table at 16."""
    logs = {gpus: tmp_path / f"log.{gpus}" for gpus in (1, 2)}
    for gpus, path in logs.items():
        path.write_text(log(f"1n{gpus}g", 80.0 * gpus, batch=16, start=START))
    python = program(
        tmp_path,
        f"""if ((RANK)); then exit 0; fi
if ((WORLD_SIZE > 1)) && [[ $* =~ --batch-size\\ ([0-9]+) ]] && ((BASH_REMATCH[1] > 16)); then
  echo "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0)"
  exit 1
fi
cp {tmp_path}/log."$WORLD_SIZE" {tmp_path}/training.log""",
    )
    words = ("--shapes", "1n1g,1n2g", "--batch-size", "max-common", "--repeats", "1")
    result = hpcbert(*WORDS, "--python", python, *words)
    assert result.returncode == 0, result.output
    (table,) = result.data["tables"]
    assert (table["batch_size_per_device"], table["largest"]) == (16, True)
    assert [row["shape"] for row in table["rows"]] == ["1n1g", "1n2g"]
    assert table["rows"][1]["speedup"] == pytest.approx(2)
    (directory,) = (tmp_path / "runs").iterdir()
    arrays = store.read_manifest(directory).arrays
    assert [str(array.point.shape) for array in arrays] == ["1n2g", "1n1g"]
    again = hpcbert("submit", "--like", directory, "--scheduler", "local", "--dry-run", "--json")
    assert [array["shape"] for array in again.data["arrays"]] == ["1n2g", "1n1g"], again.output


@pytest.mark.parametrize(
    "words",
    [
        ("--batch-size", "max,max-common"),
        ("--batch-size", "max-common", "--concurrent-points", "--scheduler", "slurm"),
    ],
    ids=["both", "at-once"],
)
def test_what_leaves_a_common_size_unclear_is_refused(hpcbert: Cli, words: tuple[str, ...]) -> None:
    result = hpcbert("submit", "--dry-run", "--shapes", "1n1g,1n2g", *words)
    assert (result.returncode, "max-common" in result.output) == (2, True), result.output


def test_a_search_that_stops_says_why_in_the_table(hpcbert: Cli, tmp_path: Path) -> None:
    bad = "echo \"ModuleNotFoundError: No module named 'torch'\"; exit 1"
    result = hpcbert(
        *WORDS, "--python", program(tmp_path, bad), "--batch-size", "max", "--repeats", "1"
    )
    assert result.returncode == 4
    (table,) = result.data["tables"]
    assert (table["batch_size_per_device"], table["largest"]) == (0, True)
    reasons = {
        reason["code"]: reason["detail"] for reason in table["rows"][0]["runs"][0]["reasons"]
    }
    assert "No module named 'torch'" in reasons["search"]
    (directory,) = (tmp_path / "runs").iterdir()
    assert "max samples per device" in hpcbert("collect", directory).stdout


@pytest.mark.parametrize(
    ("word", "says"),
    [("mx", "Did you mean max?"), ("0", "at least 1"), ("-3", "whole numbers"), ("8,MAX", "max")],
)
def test_what_is_no_size_is_refused(hpcbert: Cli, word: str, says: str) -> None:
    result = hpcbert("submit", "--dry-run", f"--batch-size={word}")
    assert (result.returncode, says in result.output) == (2, True), result.output
