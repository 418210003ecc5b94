"""The main job on the embedded default: real training, no Slurm, no root needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kit.cli import Cli, Done

pytestmark = pytest.mark.torch


@pytest.fixture
def folder(tmp_path: Path, repository: Path) -> Path:
    path = tmp_path / "with a space"
    path.mkdir()
    (path / "site.toml").write_text((repository / "site.toml").read_text())
    return path


def hpcbert(folder: Path, *words: str) -> Done:
    return Cli(folder, {"XDG_STATE_HOME": str(folder / "state")})(*words)


def test_bert_is_trained_and_reduced_to_a_speedup_table(folder: Path) -> None:
    words = ["--fw", "pytorch", "--nodes", "1", "--gpus-per-node", "2", "--scaling"]
    short = ["--repeats", "2", "--iters", "6", "--skip", "2", "--set", "vocab_size=512"]
    done = hpcbert(folder, "submit", *words, *short, "--wait", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    (table,) = json.loads(done.stdout)["data"]["tables"]
    assert [row["shape"] for row in table["rows"]] == ["1n1g", "1n2g"]
    for row in table["rows"]:
        assert row["repeats"] == {"ok": 2, "asked": 2}
        assert all(run["state"] == "COMPLETED" for run in row["runs"])
    assert table["rows"][0]["speedup"] == 1.0
    assert table["baseline"] == "1n1g"
    (campaign,) = (folder / "runs").iterdir()
    again = hpcbert(folder, "collect", "--format", "csv")
    assert again.returncode == 0
    assert len(again.stdout.splitlines()) == 3
    assert {path.name for path in campaign.iterdir()} >= {"manifest.json", "table.json"}


def test_a_loss_that_is_no_number_is_in_no_median(folder: Path) -> None:
    """An absurd learning rate makes the program stop by itself; the repeat says why."""
    short = ["--repeats", "1", "--iters", "30", "--skip", "2", "--set", "vocab_size=512"]
    absurd = ["--set", "learning_rate=1e30", "--set", "warmup_steps=1"]
    done = hpcbert(folder, "submit", "--fw", "pytorch", *short, *absurd, "--wait", "--json")
    assert done.returncode == 4, done.stdout + done.stderr
    document = json.loads(done.stdout)
    (row,) = document["data"]["tables"][0]["rows"]
    (run,) = row["runs"]
    assert (row["median"], run["valid"], run["throughput"]) == (None, False, None)
    codes = {reason["code"] for reason in run["reasons"]}
    assert {"exit", "loss"} <= codes
