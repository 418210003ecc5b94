"""Ranks on the CPU of a real cluster: no GPU is asked for, given or seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cluster.test_main_job import logs_under
from tests.kit.cli import Cli


def test_ranks_train_on_the_cpu_and_the_table_says_so(
    hpcbert: Cli, as_user: Any, checkout: Any, work: Path
) -> None:
    words = ("--fw", "pytorch", "--device", "cpu", "--model", "bert-tiny", "--batch-size", "2")
    result = hpcbert(
        *("submit", *words, "--gpus-per-node", "2", "--iters", "12", "--skip", "2"),
        *("--repeats", "1", "--python", checkout.python, "--wait", "--json"),
    )
    assert result.returncode == 0, result.stderr + logs_under(work)
    (table,) = result.data["tables"]
    assert table["device"] == "cpu"
    (run,) = table["rows"][0]["runs"]
    assert run["state"] == "COMPLETED"
    (path,) = work.rglob("manifest.json")
    (array,) = json.loads(path.read_text())["arrays"]
    assert array["point"]["device"] == "cpu"
    stdout = as_user(
        ["sacct", "-X", "-P", "-n", "-j", array["job_id"], "-o", "AllocTRES%80"]
    ).stdout
    assert "gpu" not in stdout
    shown = hpcbert("collect", str(path.parent)).stdout
    assert "ranks (CPU)" in shown
    assert "GPU" not in shown
    (log,) = work.rglob("bert_b2_fp32_1.log")
    assert '"device": "cpu"' in log.read_text()
    audited = hpcbert("audit", str(path.parent))
    assert audited.returncode == 0, audited
    assert "· CPU ·" in audited.stdout
