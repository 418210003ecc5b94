"""What Slurm does to attempts, and what is known and remembered of it: on a real cluster."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.kit import GATE, HANG, Cluster, stopped, wait_for
from tests.kit.lab_faults import start_requeued
from tests.kit.waiting import unqueued


@pytest.fixture
def cluster(lab: Any, as_user: Any, checkout: Any, narrow: Path, work: Path) -> Iterator[Cluster]:
    new_cluster = Cluster(lab, as_user, checkout.python, checkout.path, narrow, work)
    yield new_cluster
    new_cluster.user("scancel", "--me")


class Submitted:
    """A campaign on the lab that nobody follows."""

    def __init__(self, cluster: Cluster, plan: dict[str, str], *words: str, repeats: int) -> None:
        self.cluster = cluster
        self.folder, argv = cluster.submission(plan, *words, repeats=repeats)
        outcome = cluster.hpcbert(*argv)
        assert outcome.ok, outcome.stdout + outcome.stderr
        data = json.loads(outcome.stdout)["data"]
        self.directory = Path(data["directory"])
        (array,) = data["arrays"]
        self.job = array["job_id"]

    def half_way(self) -> None:
        log = self.directory / "logs/pytorch/bert/bz2/1n1g/bert_b2_fp32_1.log"
        wait_for("half way", lambda: log.exists() and "iteration: 6/" in log.read_text())

    def over(self) -> None:
        words = ["squeue", "-h", "-t", "pending,running,suspended,completing", "-j", self.job]
        wait_for("it is over", lambda: unqueued(self.cluster.user(*words)))

    def collect(self, directory: Path | None = None, *before: str) -> dict[int, dict[str, Any]]:
        """Return its runs by their numbers, as `BEFORE hpcbert collect` has them."""
        cluster = self.cluster
        words = ["-m", "hpcbert", "collect", str(directory or self.directory), "--json"]
        outcome = cluster.as_user(
            [*before, cluster.python, *words],
            env={**cluster.lab.environment, "PYTHONPATH": str(cluster.checkout)},
            cwd=cluster.work,
        )
        (table,) = json.loads(outcome.stdout)["data"]["tables"]
        return {run["repeat"]: run for run in table["rows"][0]["runs"]}


def change_jobs(cluster: Cluster, action: str, *jobs: str) -> None:
    def is_done() -> bool:
        return cluster.root("scontrol", action, ",".join(jobs)).ok

    wait_for(action, is_done)


def reasons(run: dict[str, Any]) -> str:
    return "; ".join(f"{reason['code']}: {reason['detail']}" for reason in run["reasons"])


def test_a_suspended_run_is_refused_by_whoever_is_asked_and_not_revived_by_a_retry(
    cluster: Cluster,
) -> None:
    """A job with a repeat of its own, and one of two repeats, of which the first is suspended."""
    gate = "if [[ ${SLURM_STEP_ID} -le 2 ]]; then until [[ -e FOLDER/go ]]; do sleep 0.1; done; fi"
    together = ("--repeats-in", "one-job", "--sbatch-arg=--nodelist=n2")
    single = Submitted(cluster, {"*.*": GATE}, "--sbatch-arg=--nodelist=n1", repeats=1)
    shared = Submitted(cluster, {"*": gate}, *together, repeats=2)
    jobs = {f"{single.job}_1": single, shared.job: shared}
    for submitted in jobs.values():
        submitted.half_way()
    # Slurm sends TSTP first, and STOP two seconds later.
    change_jobs(cluster, "suspend", *jobs)
    wait_for("all are stopped", lambda: all(stopped(sub.folder) for sub in jobs.values()))
    time.sleep(4)
    change_jobs(cluster, "resume", *jobs)
    for submitted in jobs.values():
        (submitted.folder / "go").touch()
        submitted.over()
    # Nobody there but the job's own files.
    copy = single.folder / "copy"
    shutil.copytree(single.directory, copy)
    cluster.root("chown", "-R", f"--reference={single.directory}", str(copy))
    alone = single.collect(copy, "env", "PATH=/nowhere")[1]
    assert (alone["valid"], alone["state_source"]) == (False, "status-file")
    assert "it was suspended for" in reasons(alone)
    retry = cluster.hpcbert("retry", str(single.directory), "--json")
    assert retry.ok, retry.stdout + retry.stderr
    (again,) = json.loads(retry.stdout)["data"]["campaigns"][0]["arrays"]
    assert "suspended" in again["repeats"][0]["why"]
    cluster.must("scancel", again["job_id"])
    run = single.collect()[1]
    assert (run["valid"], run["throughput"]) == (False, None)
    assert run["attempts"][0]["state"] == "COMPLETED"
    # collect remembers what it is told first.
    query = ("sacct", "-X", "-n", "-P", "-o", "State", "-j", shared.job)
    wait_for("accounting knows", lambda: cluster.user(*query).stdout.strip() == "COMPLETED")
    runs = shared.collect()
    assert "it was suspended for" in reasons(runs[1])
    assert runs[2]["valid"], reasons(runs[2])


def test_an_attempt_that_lost_its_node_is_told_by_slurms_word_and_the_nodes_name(
    cluster: Cluster,
) -> None:
    """Although the job's own file says that it ended after signal TERM, if it says anything."""
    submitted = Submitted(cluster, {"*.0": HANG}, "--sbatch-arg=--nodelist=n4", repeats=1)
    submitted.half_way()
    try:
        assert cluster.root("scontrol", "update", "nodename=n4", "state=down", "reason=test").ok

        def sent_back() -> list[dict[str, Any]]:
            outcome = cluster.hpcbert("monitor", str(submitted.directory), "--once", "--json")
            attempts: list[dict[str, Any]] = json.loads(outcome.stdout.splitlines()[0])["attempts"]
            return attempts

        (before,) = wait_for("monitor tells of it", sent_back)
        assert (before["state"], before["nodes"], before["attempt"]) == ("NODE_FAIL", ["n4"], 0)
        assert "n4" in cluster.hpcbert("monitor", str(submitted.directory), "--once").stdout
        lost, waits = submitted.collect()[1]["attempts"]
        assert (lost["state"], lost["nodes"], lost["state_source"]) == (
            "NODE_FAIL",
            ["n4"],
            "sacct",
        )
        assert waits["attempt"] == 1
        text = cluster.hpcbert("collect", str(submitted.directory)).stdout
        assert "attempt 0 on n4 was NODE_FAIL: lost a node (n4)" in text
    finally:
        cluster.user("scancel", submitted.job)
        cluster.root("scontrol", "update", "nodename=n4", "state=resume")
        cluster.vacate("n4")


def test_a_job_that_root_requeues_after_a_retry_completed_runs_nothing_and_changes_nothing(
    cluster: Cluster,
) -> None:
    plan = {"*": "[[ -e FOLDER/go ]] || exit 3"}
    submitted = Submitted(cluster, plan, "--sbatch-arg=--nodelist=n1", repeats=1)
    submitted.over()
    assert submitted.collect()[1]["state"] == "FAILED"
    (submitted.folder / "go").touch()
    retry = cluster.hpcbert("retry", str(submitted.directory), "--json")
    assert retry.ok, retry.stdout + retry.stderr
    (again,) = json.loads(retry.stdout)["data"]["campaigns"][0]["arrays"]
    wait_for("the retry counts", lambda: submitted.collect()[1]["valid"])
    files = [
        path for name in ("logs", "status") for path in (submitted.directory / name).rglob("*.*l*")
    ]
    before = {path: path.read_bytes() for path in files}
    assert cluster.root("scontrol", "requeue", f"{submitted.job}_1").ok
    start_requeued(cluster.root, f"{submitted.job}_1")
    submitted.over()

    def read_event() -> dict[str, Any]:
        outcome = cluster.hpcbert("monitor", str(submitted.directory), "--once", "--json")
        document: dict[str, Any] = json.loads(outcome.stdout.splitlines()[0])
        return document

    wait_for("accounting knows", lambda: f"{submitted.job}_1" in (read_event()["detail"] or ""))
    wait_for(
        "accounting knows how", lambda: "its results are ignored" in (read_event()["detail"] or "")
    )
    assert (read_event()["state"], read_event()["attempt"]) == ("COMPLETED", 1)
    assert {path: path.read_bytes() for path in files} == before
    run = submitted.collect()[1]
    assert (run["valid"], run["attempt"]) == (True, 1)
    assert [(attempt["attempt"], attempt["job"]) for attempt in run["attempts"]] == [
        (0, f"{submitted.job}_1"),
        (1, f"{again['job_id']}_1"),
    ]
    output = "".join(path.read_text() for path in submitted.directory.glob("slurm/*.out"))
    assert "nothing is run" in output
