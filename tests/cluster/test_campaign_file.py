"""A campaign.toml, run for real."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.kit.cases import read_constant
from tests.kit.cli import Cli
from tests.kit.logs import stand_in

LOCAL = read_constant(__file__, "LOCAL")


def test_each_environment_reaches_the_ranks_and_has_a_table(tmp_path: Path) -> None:
    hpcbert = Cli(tmp_path, {"HOME": str(tmp_path), "HPCBERT_RUNS": str(tmp_path / "runs")})
    program = stand_in(tmp_path, f'echo "$NCCL_ALGO" >>{tmp_path}/seen')
    file = tmp_path / "campaign.toml"
    file.write_text(LOCAL)
    words = ("submit", file, "--python", program, "--scheduler", "local")
    result = hpcbert(*words, "--wait", "--json")
    assert result.returncode == 0, result
    assert sorted((tmp_path / "seen").read_text().split()) == ["Ring", "Tree"]
    tables = {table["variant"]: table["rows"][0] for table in result.data["tables"]}
    assert set(tables) == {
        f"vocab_size=8192,NCCL_ALGO={algorithm}" for algorithm in ("Ring", "Tree")
    }
    assert all(row["median"] for row in tables.values())
    directories = sorted((tmp_path / "runs").iterdir())
    assert [(directory / "campaign.toml").read_text() for directory in directories] == [LOCAL] * 2
    assert {(directory / "note.txt").read_text() for directory in directories} == {"here\n"}


SLURM = read_constant(__file__, "SLURM")


def test_campaigns_of_a_file_run_in_turn_on_a_cluster(hpcbert: Cli) -> None:
    """As an ordinary user; ranks of each framework have the variable, on the nodes that are named."""
    (hpcbert.cwd / "campaign.toml").write_text(SLURM)
    result = hpcbert("submit", "campaign.toml", "--rehearse", "--wait", "--force")
    assert result.returncode == 0, result
    folders = sorted((hpcbert.cwd / "runs").iterdir())
    manifests = [json.loads((folder / "manifest.json").read_text()) for folder in folders]
    first, second = sorted(manifests, key=lambda manifest: str(manifest["after"]))
    assert (first["framework"], second["framework"]) == ("pytorch", "oneflow")
    assert (first["after"], second["after"]) == ("", first["id"])
    assert not [array for manifest in manifests for array in manifest["arrays"] if array["changed"]]
    paths = [path for folder in folders for path in folder.glob("env/*.nodes.jsonl")]
    assert len(paths) == 2
    assert all(re.search('"nodes":"(n1 n2|n2 n1)"', path.read_text()) for path in paths)
    assert all("NCCL_ALGO" in path.read_text() for path in paths)
