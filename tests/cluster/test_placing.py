"""Where ranks are on a real cluster: which GPU each takes, and which CPUs, whatever it is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.cases import read_constant
from tests.kit.cli import Cli

pytestmark = pytest.mark.slurm

# Stands in for the ranks' Python: it says where it is.
PROGRAM = """#!/bin/bash
while read -r name value; do
  if [[ $name == Cpus_allowed_list: ]]; then cpus=$value; fi
done </proc/self/status
echo "at $SLURM_PROCID $SLURM_NODEID $SLURM_LOCALID ${CUDA_VISIBLE_DEVICES:-none} $LOCAL_RANK $cpus $OMP_NUM_THREADS $MASTER_PORT"
"""
SITE = read_constant(__file__, "SITE")


@pytest.mark.needs("cpus")
@pytest.mark.parametrize(
    ("args", "shown"),
    [
        ([], {"0,1"}),
        (["--gpus-per-task=1"], {"0", "1"}),
        (["--gpu-bind=single:1"], {"0", "1"}),
    ],
    ids=["all", "gpus-per-task", "gpu-bind"],
)
@pytest.mark.site("a GPU and CPUs for each rank")
def test_each_rank_has_a_gpu_and_cpus_of_its_own(
    args: list[str], shown: set[str], hpcbert: Cli, work: Path
) -> None:
    folder = work / "with a space"
    program = folder / "python stand-in"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    site = folder / "site.toml"
    site.write_text(SITE.format(args=str(args).replace("'", '"')))
    result = hpcbert(
        *("submit", "--site", str(site), "--fw", "pytorch", "--nodes", "2", "--gpus-per-node", "2"),
        *("--repeats", "1", "--python", str(program), "--wait", "--json"),
    )
    (log,) = (folder / "runs").rglob("logs/**/*.log")
    ranks = [line.split()[1:] for line in log.read_text().splitlines() if line.startswith("at ")]
    ranks.sort()
    output: Any = (result.stderr, log.read_text())
    # One node after another is filled with ranks.
    assert [rank[:3] for rank in ranks] == [
        ["0", "0", "0"],
        ["1", "0", "1"],
        ["2", "1", "0"],
        ["3", "1", "1"],
    ], output
    assert {rank[3] for rank in ranks} == shown, output
    for _, _, local, visible, device, cpus, threads, _ in ranks:
        assert device == (local if "," in visible else "0")
        assert (cpus, threads) == (local, "1")
    assert len({rank[7] for rank in ranks}) == 1
    assert ("NCCL may have to copy" in log.read_text()) == bool(args)
    (status,) = (folder / "runs").rglob("status/*.jsonl")
    assert ('"apart":true' in status.read_text()) == bool(args)
