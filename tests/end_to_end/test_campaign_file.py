"""A campaign.toml, run for real."""

from __future__ import annotations

from pathlib import Path

from tests.kit.cli import Cli
from tests.kit.training import stand_in

LOCAL = """\
schema = 1
name = "two algorithms"
note = "here"
frameworks = "pytorch"
models = "bert-tiny"
precisions = "fp32"
device = "cpu"
repeats = 1
iters = 12
skip = 2

[batch_sizes]
fp32 = 2

[env]
NCCL_ALGO = ["Ring", "Tree"]
"""


def test_each_environment_reaches_the_ranks_and_has_a_table(tmp_path: Path) -> None:
    hpcbert = Cli(tmp_path, {"HOME": str(tmp_path), "HPCBERT_RUNS": str(tmp_path / "runs")})
    program = stand_in(tmp_path, f'echo "$NCCL_ALGO" >>{tmp_path}/seen')
    file = tmp_path / "campaign.toml"
    file.write_text(LOCAL)
    words = ("submit", file, "--python", program, "--scheduler", "local")
    done = hpcbert(*words, "--wait", "--json")
    assert done.returncode == 0, done
    assert sorted((tmp_path / "seen").read_text().split()) == ["Ring", "Tree"]
    tables = {one["variant"]: one["rows"][0] for one in done.data["tables"]}
    assert set(tables) == {f"vocab_size=8192,NCCL_ALGO={one}" for one in ("Ring", "Tree")}
    assert all(row["median"] for row in tables.values())
    directories = sorted((tmp_path / "runs").iterdir())
    assert [(one / "campaign.toml").read_text() for one in directories] == [LOCAL] * 2
    assert {(one / "note.txt").read_text() for one in directories} == {"here\n"}
