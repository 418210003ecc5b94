"""What breaks on a cluster, each with what must come of it: no number is wrong, and no job lost.

Faults of one lane happen one after another, lanes beside each other; those of the lane "last" when
all others are over: see rounds.py.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from hpcbert.lab.lifecycle import down, up
from hpcbert.lab.record import LabPlan, load
from hpcbert.system.processes import Process
from hpcbert.system.runner import Outcome, run
from tests.faults.kit import GATE, HANG, PATIENCE, Campaign, Cluster, Expected, stopped, wait_for
from tests.faults.rounds import fault
from tests.kit.lab_faults import cut_link, restore_link, start_daemon, stop_daemon, stop_slurmdbd
from tests.kit.waiting import CEILING, until

pytestmark = pytest.mark.slurm

FIRST = "--sbatch-arg=--nodelist=n1"
CONTESTED = "--sbatch-arg=--nodelist=n3"
CUT = "--sbatch-arg=--nodelist=n4"
BOTH = Expected({1: "COMPLETED", 2: "COMPLETED"}, frozenset({1, 2}))
SECOND_ATTEMPT = Expected({1: "COMPLETED"}, frozenset({1}), {1: 1})


# --- People ---------------------------------------------------------------------------------------


@fault("people")
def test_an_element_is_cancelled(cluster: Cluster) -> None:
    campaign = cluster.submit({"*": GATE}, FIRST, "--concurrent-repeats=3", repeats=3)
    campaign.in_step(1, 2, 3)
    cluster.must("scancel", f"{campaign.job}_2")
    campaign.go()
    states = {1: "COMPLETED", 2: "CANCELLED", 3: "COMPLETED"}
    campaign.check(Expected(states, frozenset({1, 3})))


@fault("people")
def test_the_array_is_cancelled(cluster: Cluster) -> None:
    campaign = cluster.submit({"*": HANG}, FIRST, repeats=3)
    campaign.in_step(1)
    cluster.must("scancel", campaign.job)
    campaign.check(Expected({1: "CANCELLED", 2: "CANCELLED", 3: "CANCELLED"}))


@fault("people")
def test_the_step_is_cancelled(cluster: Cluster) -> None:
    campaign = cluster.submit({"*": HANG}, FIRST)
    campaign.in_step(1)
    words = ["squeue", "-h", "-s", "-j", f"{campaign.job}_1", "-o", "%i"]
    steps = [step for step in cluster.must(*words).split() if not step.endswith(("batch", "n"))]
    # The step that described the nodes may still be listed.
    cluster.must("scancel", max(steps, key=lambda step: int(step.rpartition(".")[2])))
    campaign.check(Expected({1: "FAILED"}))


@fault("queue")
def test_a_job_is_held_and_released(cluster: Cluster) -> None:
    campaign = cluster.submit({}, FIRST, "--sbatch-arg=--hold")
    campaign.waits(1, "JobHeldUser")
    now = campaign.look(1)
    assert (now["kind"], now["reason"]) == ("waiting", "JobHeldUser")
    assert "scontrol release" in now["advice"]
    cluster.must("scontrol", "release", campaign.job)
    campaign.check(Expected({1: "COMPLETED"}, frozenset({1})))


@fault("queue")
def test_a_job_is_sent_back_and_held(cluster: Cluster) -> None:
    campaign = cluster.submit({"*.0": HANG}, FIRST)
    campaign.in_step(1)
    cluster.must("scontrol", "requeuehold", f"{campaign.job}_1")
    campaign.waits(1)
    assert campaign.look(1)["kind"] in {"waiting", "requeued"}
    wait_until_requeued(cluster, f"{campaign.job}_1")
    cluster.must("scontrol", "release", f"{campaign.job}_1")
    campaign.start_now(1)
    campaign.check(SECOND_ATTEMPT)


@fault("queue")
def test_a_job_is_suspended(cluster: Cluster) -> None:
    campaign = cluster.submit({"1.*": GATE}, FIRST, "--concurrent-repeats=2", repeats=2)
    campaign.in_step(1)
    job = f"{campaign.job}_1"
    wait_for(f"{job} can be suspended", lambda: cluster.root("scontrol", "suspend", job).ok)
    wait_for(f"{job} is stopped", lambda: stopped(campaign.folder))
    time.sleep(4)
    wait_for(f"{job} can be resumed", lambda: cluster.root("scontrol", "resume", job).ok)
    campaign.go()
    campaign.check(Expected({1: "COMPLETED", 2: "COMPLETED"}, frozenset({2})))
    _, runs = campaign.collect()
    assert "suspended for" in runs[0]["reasons"][0]["detail"]


# --- Limits ---------------------------------------------------------------------------------------


@fault("clock")
def test_time_is_up(cluster: Cluster) -> None:
    campaign = cluster.submit({"*": HANG}, FIRST, "--time=00:01:00")
    campaign.check(Expected({1: "TIMEOUT"}))


@fault("queue")
def test_memory_is_up(cluster: Cluster) -> None:
    # Slurm 22.05 kills for memory without cgroups, and then says FAILED.
    eat = "(head -c 200M /dev/zero; sleep 600) | tail -c 200M"
    campaign = cluster.submit({"*": eat}, FIRST, "--sbatch-arg=--mem=100M")
    campaign.check(Expected({1: "FAILED"}))
    log = "".join(path.read_text() for path in campaign.directory.glob("slurm/*.out"))
    assert "memory limit" in log + campaign.log(1).read_text()


@fault("drain")
def test_the_directory_is_full(cluster: Cluster) -> None:
    runs = cluster.folder(cluster.narrow)
    # More than is left of the last block that a file has already.
    noise = "head -c 16384 /dev/zero | tr '\\0' x; echo"
    campaign = cluster.submit({"1.*": f"{GATE}; {noise}"}, FIRST, repeats=2, runs=runs)
    campaign.in_step(1)
    ballast = cluster.narrow / f"ballast-{runs.name}"
    manifest = (campaign.directory / "manifest.json").read_bytes()
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    campaign.go()
    queue = ["squeue", "-h", "-j", campaign.job, "-o", "%i"]
    wait_for("both repeats are over", lambda: not cluster.must(*queue).split())
    refused = cluster.hpcbert(*cluster.submission({}, repeats=1, runs=runs)[1])
    assert refused.returncode != 0
    assert "No space left" in refused.stdout
    code, runs_found = campaign.collect()
    assert code == 4
    assert not any(run["valid"] for run in runs_found)
    ballast.unlink()
    assert (campaign.directory / "manifest.json").read_bytes() == manifest
    code, runs_found = campaign.collect()
    assert code == 4
    assert not any(run["valid"] for run in runs_found)
    assert all(run["reasons"] for run in runs_found)


def wait_until_requeued(cluster: Cluster, job: str) -> None:
    """Wait until the last run of a job that was sent back has left its node."""
    words = ["scontrol", "show", "job", job]
    wait_for(f"{job} has left", lambda: "JobState=PENDING" in cluster.user(*words).stdout)


# --- Other jobs, and nodes ------------------------------------------------------------------------


@pytest.mark.site("preemption")
@fault("third node")
def test_another_job_comes_first(cluster: Cluster) -> None:
    campaign = cluster.submit({"*.0": HANG}, CONTESTED, "--partition=low")
    campaign.in_step(1)
    urgent(cluster)
    campaign.waits(1)
    wait_until_requeued(cluster, f"{campaign.job}_1")
    campaign.start_now(1)
    campaign.check(SECOND_ATTEMPT)


@pytest.mark.site("preemption")
@fault("third node")
def test_another_job_comes_for_good(cluster: Cluster) -> None:
    campaign = cluster.submit({"*": HANG}, CONTESTED, "--partition=low", cluster.without_requeue())
    campaign.in_step(1)
    urgent(cluster)
    campaign.check(Expected({1: "PREEMPTED"}))


def urgent(cluster: Cluster) -> None:
    """Submit a job for the whole of the contested node, and wait for its end."""
    words = ["--partition=gpu", "--nodelist=n3", "--exclusive", "--output=/dev/null"]
    cluster.must("sbatch", "--wait", *words, "--wrap=true")


@pytest.mark.site("a node is drained")
@fault("drain")
def test_a_node_is_drained(cluster: Cluster) -> None:
    campaign = cluster.submit({"1.*": GATE}, "--sbatch-arg=--nodelist=n2", repeats=2)
    campaign.in_step(1)
    node(cluster, "n2", "drain")
    campaign.go()
    campaign.waits(2, "ReqNodeNotAvail")
    # squeue's default view of an array is another moment's than its view of the elements. Slurm
    # 24.11 says that the node "may be reserved for other job".
    wait_for("monitor says why it waits", lambda: "drained" in campaign.look(2)["detail"])
    assert "sinfo -R" in campaign.look(2)["advice"]
    node(cluster, "n2", "resume")
    campaign.check(BOTH)


def node(cluster: Cluster, name: str, state: str) -> None:
    words = ["scontrol", "update", f"nodename={name}", f"state={state}", "reason=test"]
    wait_for(f"{name} can be made {state}", lambda: cluster.root(*words).ok)


@pytest.mark.site("a node is out of reach")
@fault("drain")
def test_a_link_is_cut(cluster: Cluster) -> None:
    second = "--sbatch-arg=--nodelist=n2"
    campaign = cluster.submit({"*": GATE}, second, cluster.without_requeue())
    campaign.in_step(1)
    cut_link(cluster.lab, "n2", run=run)
    try:
        # On the other side of the cut it goes on to its end.
        campaign.go()
        campaign.told()
    finally:
        restore_link(cluster.lab, "n2", run=run)
    campaign.check(Expected({1: "NODE_FAIL"}))
    usable(cluster, "n2")
    cluster.vacate("n2")


@pytest.mark.site("a node is out of reach")
@fault("fourth node")
def test_a_link_is_cut_and_the_job_sent_back(cluster: Cluster) -> None:
    campaign = cluster.submit({"*.0": HANG}, CUT)
    campaign.in_step(1)
    cut_link(cluster.lab, "n4", run=run)
    try:
        campaign.waits(1)
        # Slurm would start it at once on a node that does not know yet that it lost the job.
        node(cluster, "n4", "drain")
    finally:
        restore_link(cluster.lab, "n4", run=run)
    drained(cluster, "n4")
    cluster.vacate("n4")
    node(cluster, "n4", "resume")
    campaign.start_now(1)
    campaign.check(SECOND_ATTEMPT)


@fault("fourth node")
def test_a_nodes_daemon_is_killed(cluster: Cluster) -> None:
    """Its job goes on without it until Slurm misses the node: it says so, and its name."""
    campaign = cluster.submit({"*": GATE}, CUT, cluster.without_requeue())
    campaign.in_step(1)
    stop_daemon(cluster.lab, "n4", number=signal.SIGKILL)
    try:
        last = campaign.told()[-1]
        assert (last["state"], last["nodes"]) == ("NODE_FAIL", ["n4"])
        assert "(n4)" in last["detail"]
        for words in (("monitor", "--once"), ("collect",)):
            stdout = cluster.hpcbert(*words, str(campaign.directory)).stdout
            assert "lost a node (n4)" in " ".join(stdout.split()), stdout
        (lost_run,) = campaign.collect()[1]
        assert (lost_run["state"], lost_run["nodes"]) == ("NODE_FAIL", ["n4"])
        assert any("lost a node (n4)" in reason["detail"] for reason in lost_run["reasons"])
    finally:
        campaign.go()
        start_daemon(cluster.lab, "n4", run=run)
    campaign.check(Expected({1: "NODE_FAIL"}))
    usable(cluster, "n4")
    cluster.vacate("n4")


def drained(cluster: Cluster, name: str) -> None:
    """Wait until a node answers again, drained as it is."""
    words = ["sinfo", "-h", "-n", name, "-p", "gpu", "-o", "%T"]
    wait_for(f"{name} answers", lambda: cluster.user(*words).stdout.strip() == "drained")


def usable(cluster: Cluster, name: str) -> None:
    """Wait until a node that was lost takes jobs again.

    Slurm may drain one by itself that is slow to end what was left on it, or leave it down: an
    administrator who has seen to it resumes it.
    """
    words = ["sinfo", "-h", "-n", name, "-p", "gpu", "-o", "%T %E"]
    states: dict[str, None] = {}

    def ready() -> bool:
        state = cluster.user(*words).stdout.strip()
        states[state] = None
        if state.startswith(("down", "drained")):
            cluster.root("scontrol", "update", f"nodename={name}", "state=resume")
        # Mixed: another lane's job may run there by now. A star: Slurm doesn't hear of the node yet.
        return state.startswith(("idle ", "mixed ", "allocated "))

    until(ready, lambda: f"{name} takes jobs, after {', '.join(states)}")


# --- The controller -------------------------------------------------------------------------------


@fault("last")
def test_the_controller_dies_before_sbatch(cluster: Cluster) -> None:
    stop_daemon(cluster.lab, "slurmctld", number=signal.SIGKILL)
    try:
        folder, argv = cluster.submission({}, FIRST, repeats=2)
        refused = cluster.hpcbert(*argv)
        assert refused.returncode == 3, refused.stdout
        assert "--resume" in json.loads(refused.stdout)["errors"][0]["hint"]
    finally:
        start_daemon(cluster.lab, "slurmctld", run=run)
    resumed(cluster, folder).check(BOTH)


@fault("last")
def test_the_controller_dies_during_sbatch(cluster: Cluster) -> None:
    """It has the request, or not; it answers, or not: stopped first, killed while sbatch waits."""
    process = controller(cluster)
    outcomes: list[Outcome] = []
    folder, argv = cluster.submission({}, FIRST, repeats=2)
    os.kill(process.pid, signal.SIGSTOP)
    thread = threading.Thread(target=lambda: outcomes.append(cluster.hpcbert(*argv)))
    thread.start()
    wait_for("the intent is on disk", lambda: list(folder.glob("runs/*/manifest.json")))
    time.sleep(1)
    stop_daemon(cluster.lab, "slurmctld", number=signal.SIGKILL)
    start_daemon(cluster.lab, "slurmctld", run=run)
    thread.join(2 * CEILING)
    (outcome,) = outcomes
    assert outcome.returncode in {0, 3}, outcome.stdout
    campaign = resumed(cluster, folder)
    campaign.check(BOTH)


@fault("last")
def test_the_controller_answers_late_and_then_dies(cluster: Cluster) -> None:
    """Slower than a client waits, then with everything that was asked meanwhile; then it is killed.

    A job whose end it missed is COMPLETING for a minute: two campaigns wait for that together.
    """
    late = cluster.submit({"*": GATE}, FIRST, repeats=2)
    dead = cluster.submit({"*": GATE}, "--sbatch-arg=--nodelist=n2", repeats=2)
    late.in_step(1)
    dead.in_step(1)
    process = controller(cluster)
    os.kill(process.pid, signal.SIGSTOP)
    try:
        late.go()
        time.sleep(PATIENCE + 2)
    finally:
        os.kill(process.pid, signal.SIGCONT)
    # Wait until the controller has written down which jobs run: killed before, it would start them
    # a second time, and drain the node that refuses to (SchedMD/slurm@slurm-22-05-8-1,
    # src/slurmctld/state_save.c, SAVE_MAX_WAIT: five seconds).
    time.sleep(6)
    stop_daemon(cluster.lab, "slurmctld", number=signal.SIGKILL)
    dead.go()
    time.sleep(2)
    start_daemon(cluster.lab, "slurmctld", run=run)
    for campaign in (late, dead):
        campaign.check(BOTH)


@fault("last")
def test_nobody_is_believed(cluster: Cluster) -> None:
    """munge is away: every command of Slurm's fails, and so do its daemons' messages."""
    campaign = cluster.submit({"*": GATE}, FIRST, repeats=2)
    campaign.in_step(1)
    stop_daemon(cluster.lab, "munged")
    try:
        campaign.go()
        time.sleep(4)
    finally:
        start_daemon(cluster.lab, "munged", run=run)
    campaign.check(BOTH)


def controller(cluster: Cluster) -> Process:
    lab = load(cluster.lab.directory)
    assert lab is not None
    process = lab.daemons["slurmctld"]
    assert process is not None
    return process


def resumed(cluster: Cluster, folder: Path) -> Campaign:
    """Take the one campaign in a folder up again."""
    (manifest,) = folder.glob("runs/*/manifest.json")
    name = manifest.parent.name
    words = ["submit", "--resume", name, "--runs", str(folder / "runs"), "--json"]
    outcome = cluster.hpcbert(*words)
    assert outcome.returncode == 0, outcome.stdout
    return cluster.campaign(folder, manifest.parent)


# --- Accounting -----------------------------------------------------------------------------------


@pytest.mark.site("slurmdbd is away")
@fault("last")
def test_accounting_is_away_throughout(cluster: Cluster) -> None:
    stop_slurmdbd(cluster.lab)
    try:
        campaign = cluster.submit({"2.*": "exit 3"}, FIRST, repeats=3)
        sources = frozenset({"squeue", "status-file"})
        states = {1: "COMPLETED", 2: "FAILED", 3: "COMPLETED"}
        campaign.told()
        code, runs = campaign.collect()
        assert code == 4
        assert {run["repeat"]: run["state"] for run in runs} == states
        assert {run["state_source"] for run in runs} <= sources
        assert {run["repeat"] for run in runs if run["valid"]} == {1, 3}
    finally:
        start_daemon(cluster.lab, "slurmdbd", run=run)
    campaign.check(Expected(states, frozenset({1, 3}), sources=sources | {"sacct"}))


@pytest.mark.site("slurmdbd is away")
@fault("last")
def test_accounting_is_away_for_a_while(cluster: Cluster) -> None:
    campaign = cluster.submit({"*": GATE}, FIRST, repeats=2)
    campaign.in_step(1)
    stop_slurmdbd(cluster.lab)
    try:
        time.sleep(2)
        campaign.go()
        wait_for("the second one runs", lambda: campaign.log(2).exists())
    finally:
        start_daemon(cluster.lab, "slurmdbd", run=run)
    campaign.check(BOTH)


@pytest.mark.site("no accounting")
@fault("bare")
def test_there_is_no_accounting(cluster: Cluster) -> None:
    directory = cluster.lab.directory.with_name("without-accounting")
    plan = LabPlan(directory=directory, nodes=1, gpus_per_node=4, accounting=False, name="bare")
    lab = up(plan, run=run, report=lambda _: None)
    bare = type(cluster)(**{**vars(cluster), "lab": lab})
    try:
        campaign = bare.submit({"2.*": "exit 3", "3.*": HANG}, "--concurrent-repeats=3", repeats=3)
        campaign.in_step(3)
        bare.must("scancel", f"{campaign.job}_3")
        states = {1: "COMPLETED", 2: "FAILED", 3: "CANCELLED"}
        campaign.check(
            Expected(states, frozenset({1}), sources=frozenset({"squeue", "status-file"}))
        )
    finally:
        removal = down(directory, run=run, report=lambda _: None)
        assert not removal.remains, removal.remains
