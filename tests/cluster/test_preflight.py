"""A preflight as an ordinary user on a real cluster of which one node is slow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcbert.lab.record import Lab
from tests.kit.cli import Cli
from tests.kit.waiting import unqueued, until

# Stands in for nccl-tests' program: an all-reduce that n2 takes part in is slow.
PROGRAM = """#!/bin/bash
rate=50.25
if scontrol show hostnames "$SLURM_STEP_NODELIST" | grep -qx n2; then rate=9.5; fi
if ((SLURM_PROCID == 0)); then
  printf '# Out of bounds values : 0 OK\\n# Avg bus bandwidth    : %s\\n' "$rate"
fi
"""


@pytest.fixture
def measured(hpcbert: Cli, lab: Lab) -> Cli:
    """hpcbert at a site whose nccl-tests is the stand-in."""
    program = hpcbert.cwd / "all_reduce_perf"
    hpcbert.run(["tee", str(program)], stdin=PROGRAM)
    hpcbert.run(["chmod", "+x", str(program)])
    text = Path(lab.environment["HPCBERT_SITE"]).read_text()
    text += f'\n[frameworks.nccl-tests]\noptions = {{ program = "{program}" }}\n'
    hpcbert.run(["tee", str(hpcbert.cwd / "site.toml")], stdin=text)
    return Cli(
        hpcbert.cwd, {**hpcbert.env, "HPCBERT_SITE": str(hpcbert.cwd)}, hpcbert.run, hpcbert.python
    )


def rehearse(hpcbert: Cli, nodes: int, *words: str) -> dict[str, Any]:
    data = hpcbert(
        *("submit", "--fw", "pytorch", "--device", "gpu", "--nodes", nodes, "--gpus-per-node", 1),
        *("--repeats", 1, "--rehearse", "--preflight", "--concurrent-points", "--json", *words),
        status=0,
    ).document["data"]  # fmt: skip
    campaign: dict[str, Any] = data

    def over() -> bool:
        queue = hpcbert.run(["squeue", "--noheader", "--format=%j"])
        return unqueued(queue, Path(data["directory"]).name)

    until(over, "jobs are still queued", pause=0.5)
    return campaign


def monitored(hpcbert: Cli, campaign: dict[str, Any]) -> dict[str, Any]:
    data = hpcbert("monitor", "--once", "--json", campaign["directory"]).document["data"]
    return dict(data)


def test_points_keep_away_from_a_slow_node_where_they_can(measured: Cli) -> None:
    campaign = rehearse(measured, 4, "--scaling")
    data = monitored(measured, campaign)
    assert data["repeats"] == {"asked": 3, "succeeded": 3}
    preflight = data["campaigns"][0]["preflight"]
    assert preflight[0].startswith("n2 is far below the others: the preflight measured 9.5 GB/s")
    jobs = {
        array["shape"]: array["job_id"]
        for array in campaign["arrays"]
        if array["model"] == "bert-base"
    }
    assert (
        f"Job {jobs['4n1g']} runs on them nevertheless: it takes 4 nodes, and 3 others"
        in preflight[-1]
    )
    for shape, job in jobs.items():
        words = ["sacct", "-X", "-P", "-n", "-j", job, "-o", "NodeList"]
        used = measured.run(words).stdout.split()[0]
        names = measured.run(["scontrol", "show", "hostnames", used]).stdout.split()
        assert ("n2" in names) == (shape == "4n1g"), (shape, names)


def test_where_nothing_can_be_measured_no_point_runs(measured: Cli) -> None:
    measured.run(["rm", str(measured.cwd / "all_reduce_perf")])
    campaign = rehearse(measured, 2)
    data = monitored(measured, campaign)
    (message,) = data["campaigns"][0]["preflight"]
    assert "failed, so no point runs" in message
    assert data["repeats"] == {"asked": 1, "failed": 1}
    assert data["over"]
    status = Path(campaign["directory"]) / "status"
    assert [path.name for path in status.iterdir()] == ["preflight_2n1g_fp32_b1.1.jsonl"]
