"""retry on a real cluster: the node that failed is kept away from, the new attempt counts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from hpcbert.campaign import record, store
from tests.kit.cli import Cli
from tests.kit.logs import WORDS, stand_in


def test_a_failed_repeat_runs_again_on_another_node(hpcbert: Cli, as_user: Any, work: Path) -> None:
    flag = work / "flag"
    flag.touch()
    # All repeats at once, each on a node of its own; the second fails as long as a file is there.
    text = f"{work}/began"
    together = f"[[ -e {text}.1 && -e {text}.2 && -e {text}.3 ]]"
    meet = f"touch {text}.$SLURM_ARRAY_TASK_ID; until {together}; do sleep 0.1; done"
    bad = f"{meet}; if [[ $SLURM_ARRAY_TASK_ID == 2 && -e {flag} ]]; then exit 7; fi"
    program = stand_in(work, f"{bad}\nif [[ $SLURM_PROCID != 0 ]]; then exit 0; fi", gpus=8)
    result = hpcbert(
        *(*WORDS, "--nodes", "1", "--gpus-per-node", "8", "--repeats", "3"),
        *("--concurrent-repeats", "3", "--python", program, "--wait", "--json"),
    )
    assert result.returncode == 4, result.stderr
    (row,) = result.data["tables"][0]["rows"]
    assert row["repeats"] == {"ok": 2, "asked": 3}
    first = {run["repeat"]: run for run in row["runs"]}
    (bad_node,) = first[2]["nodes"]
    assert bad_node not in {node for repeat in (1, 3) for node in first[repeat]["nodes"]}
    (directory,) = (hpcbert.cwd / "runs").iterdir()
    flag.unlink()
    again = hpcbert("retry", "--json")
    assert again.returncode == 0, again.stderr
    (array,) = again.data["campaigns"][0]["arrays"]
    assert [(repeat["repeat"], repeat["state"]) for repeat in array["repeats"]] == [(2, "FAILED")]
    assert [exclusion["node"] for exclusion in array["excluded"]] == [bad_node]
    assert "all successful repeats ran elsewhere" in array["excluded"][0]["why"]
    shown = as_user(["scontrol", "show", "job", array["job_id"]]).stdout
    assert f"ExcNodeList={bad_node}" in shown
    # While it waits or runs, and when it is good, there is nothing more to submit.
    twice = hpcbert("retry", "--json")
    assert twice.data["campaigns"][0]["arrays"] == []
    healed = hpcbert("retry", "--wait", "--json")
    assert healed.returncode == 0, healed.stderr
    (row,) = healed.data["tables"][0]["rows"]
    run = {run["repeat"]: run for run in row["runs"]}[2]
    assert (run["valid"], run["attempt"]) == (True, 1)
    assert run["state_source"] in {"sacct", "squeue"}
    assert run["nodes"] != [bad_node]
    assert [attempt["state"] for attempt in run["attempts"]] == ["FAILED", "COMPLETED"]
    # The job says itself what the queue gave it, once for each attempt.
    first_array, *_ = store.read_manifest(directory).arrays
    events = record.read_record(directory / first_array.status(2)).events
    starts = [event for event in events if event["event"] == "start"]
    assert [event["attempt"] for event in starts] == [0, 1]
    assert len({event["job"] for event in starts}) == 2
    for event in starts:
        assert event["partition"]
        assert event["restarts"] == 0
        assert abs(event["time"] - time.time()) < 3600
