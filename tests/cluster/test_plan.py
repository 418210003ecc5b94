"""A plan as an ordinary user on a real cluster: what Slurm itself says of a submission."""

from __future__ import annotations

import time
from typing import Any

from hpcbert.lab.record import Lab
from hpcbert.model import parse_utc
from tests.kit.cli import Cli

POINT = ("--fw", "pytorch", "--device", "gpu", "--gpus-per-node", 8, "--rehearse", "--json")


def test_a_plan_has_slurms_own_start_and_what_is_free_and_submits_nothing(
    hpcbert: Cli, as_user: Any, lab: Lab
) -> None:
    answer = hpcbert("plan", "--nodes", 2, *POINT, "--time", "00:30:00", status=0).document["data"]
    (campaign,) = answer["campaigns"]
    (point,) = campaign["points"]
    began = parse_utc(point["start"])
    assert began is not None
    assert abs(began - time.time()) < 3600
    assert point["start_nodes"].startswith("n")
    assert (point["node_hours"], point["gpu_hours"]) == (5.0, 40.0)
    (partition,) = campaign["partitions"]
    assert (partition["nodes"], partition["fitting"], partition["usable"]) == (4, 4, 4)
    assert campaign["missing"] == []
    answer = hpcbert("plan", "--nodes", 5, *POINT)
    assert answer.returncode == 5
    text = " ".join(error["message"] for error in answer.document["errors"])
    assert "has 4 nodes" in text
    assert "sbatch --test-only: " in text
    queue = as_user(["squeue", "--noheader", "--states=all", "--format=%Z"]).stdout
    assert str(hpcbert.cwd) not in queue
