"""The main job on the embedded default: real training, no Slurm, no root needed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.kit.cli import Cli
from tests.kit.paths import SITE

pytestmark = pytest.mark.torch


@pytest.fixture
def hpcbert(tmp_path: Path) -> Cli:
    folder = tmp_path / "with a space"
    folder.mkdir()
    shutil.copy(SITE, folder)
    return Cli(folder, {"XDG_STATE_HOME": str(folder / "state")})


def test_bert_is_trained_and_reduced_to_a_speedup_table(hpcbert: Cli) -> None:
    words = ["--fw", "pytorch", "--nodes", "1", "--gpus-per-node", "2", "--scaling"]
    short = ["--repeats", "1", "--iters", "6", "--skip", "2", "--set", "vocab_size=512"]
    result = hpcbert("submit", *words, *short, "--wait", "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    (table,) = result.data["tables"]
    assert [row["shape"] for row in table["rows"]] == ["1n1g", "1n2g"]
    for row in table["rows"]:
        assert row["repeats"] == {"ok": 1, "asked": 1}
        assert all(run["state"] == "COMPLETED" for run in row["runs"])
    assert table["rows"][0]["speedup"] == 1.0
    assert table["baseline"] == "1n1g"
    (campaign,) = (hpcbert.cwd / "runs").iterdir()
    again = hpcbert("collect", "--format", "csv")
    assert again.returncode == 0
    assert len(again.stdout.splitlines()) == 3
    assert {path.name for path in campaign.iterdir()} >= {"manifest.json", "table.json"}
