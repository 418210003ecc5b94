"""A daemon is slow, dead or away, or dies over a submission: no job is lost or doubled, no number wrong.

slurmctld; munge; a node's slurmd; slurmdbd; and a cluster without accounting at all.
"""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from hpcbert.lab.record import LabPlan
from tests.kit.lab import read_daemon, runner_of, start_daemon, started, stop_daemon
from tests.kit.waiting import until

pytestmark = pytest.mark.slurm


def test_a_controller_answers_late_and_then_dies(cluster):
    """Slower than a client waits, then with everything that was asked meanwhile; then it is killed.

    A job whose end it missed is COMPLETING for a minute.
    """
    late = cluster.submit({"*": "gate"}, repeats=2)
    dead = cluster.submit({"*": "gate"}, node="n2", repeats=2)
    late.wait_half_way(1)
    dead.wait_half_way(1)
    os.kill(read_daemon(cluster.lab, "slurmctld").pid, signal.SIGSTOP)
    try:
        late.go()
        time.sleep(7)
    finally:
        os.kill(read_daemon(cluster.lab, "slurmctld").pid, signal.SIGCONT)
    # Wait until the controller has written down which jobs run: killed before, it would start them
    # a second time, and drain the node that refuses to (SchedMD/slurm@slurm-22-05-8-1,
    # src/slurmctld/state_save.c, SAVE_MAX_WAIT: five seconds).
    time.sleep(6)
    stop_daemon(cluster.lab, "slurmctld", number=signal.SIGKILL)
    try:
        dead.go()
        folder = cluster.folder()
        refused = cluster.hpcbert(*cluster.words(folder, {}, repeats=2), status=3)
        assert "--resume" in refused.error["hint"]
    finally:
        start_daemon(cluster.lab, "slurmctld")
    for campaign in (cluster.resume(folder), late, dead):
        campaign.check("COMPLETED", "COMPLETED")


def test_a_controller_dies_during_sbatch(cluster):
    """It has the request, or not; it answers, or not: stopped first, killed while sbatch waits."""
    folder = cluster.folder()
    words = cluster.words(folder, {}, repeats=2)
    os.kill(read_daemon(cluster.lab, "slurmctld").pid, signal.SIGSTOP)
    with ThreadPoolExecutor() as pool:
        submission = pool.submit(cluster.hpcbert, *words)
        until(lambda: list(folder.glob("runs/*/manifest.json")), "the intent is on disk")
        time.sleep(1)
        stop_daemon(cluster.lab, "slurmctld", number=signal.SIGKILL)
        start_daemon(cluster.lab, "slurmctld")
        assert submission.result().returncode in {0, 3}
    cluster.resume(folder).check("COMPLETED", "COMPLETED")


def test_nobody_is_believed(cluster):
    """munge is away: every command of Slurm's fails, and so do its daemons' messages."""
    campaign = cluster.submit({"*": "gate"}, repeats=2)
    campaign.wait_half_way(1)
    stop_daemon(cluster.lab, "munged")
    try:
        campaign.go()
        time.sleep(4)
    finally:
        start_daemon(cluster.lab, "munged")
    campaign.check("COMPLETED", "COMPLETED")


def test_a_nodes_daemon_is_killed(cluster):
    """Its job goes on without it until Slurm misses the node: it says so, and its name."""
    campaign = cluster.submit({"*": "gate"}, node="n2", requeue=False)
    campaign.wait_half_way(1)
    stop_daemon(cluster.lab, "n2", number=signal.SIGKILL)
    try:
        last = campaign.follow()[-1]
        assert (last["state"], last["nodes"]) == ("NODE_FAIL", ["n2"])
        assert "(n2)" in last["detail"]
        for words in (("monitor", "--once"), ("collect",)):
            stdout = cluster.hpcbert(*words, campaign.directory).stdout
            assert "lost a node (n2)" in " ".join(stdout.split()), stdout
    finally:
        campaign.go()
        start_daemon(cluster.lab, "n2")
    (lost_run,) = campaign.check("NODE_FAIL").values()
    assert lost_run["nodes"] == ["n2"]
    assert "lost a node (n2)" in str(lost_run["reasons"])
    cluster.wait_for_node("n2")
    cluster.vacate("n2")


@pytest.mark.site("slurmdbd is away")
def test_accounting_is_away(cluster):
    """For a while of one campaign, and throughout another."""
    before = cluster.submit({"*": "gate"}, repeats=2)
    before.wait_half_way(1)
    lab, network = cluster.lab, cluster.lab.network
    stop_daemon(lab, "slurmdbd")

    def has_noticed():
        # slurmctld looks at its connection when it has something to report, such as this.
        for state in ("drain", "resume"):
            cluster.root("scontrol", "update", "nodename=n1", f"state={state}", "reason=test")
        address = f"{network.controller}:{network.accounting_port}"
        query = ("ss", "-Htn", "state", "established", "state", "close-wait", "dst", address)
        return not cluster.must(*query, as_root=True)

    def takes_jobs():
        # One of 22.05 that finds an answer and the end of its connection at once ends itself, maybe
        # between the two orders: `fatal: _conn_readable: poll returned unexpected revents`
        # (src/common/slurm_persist_conn.c). A service manager starts it again.
        if not read_daemon(lab, "slurmctld").alive:
            start_daemon(lab, "slurmctld")
        cluster.root("scontrol", "update", "nodename=n1", "state=resume")
        return cluster.root("sbatch", "--test-only", "--nodelist=n1", "--wrap=true").ok

    try:
        until(has_noticed, "slurmctld still holds its connection to slurmdbd", pause=0.5)
        until(takes_jobs, "n1 takes no jobs")
        states, sources = ("COMPLETED", "FAILED", "COMPLETED"), {"squeue", "status-file"}
        meanwhile = cluster.submit({"2.*": "exit 3"}, repeats=3)
        before.go()
        assert before.look()["state"] in {"RUNNING", "COMPLETED"}
        codes = {event["repeat"]: event["exit_code"] for event in meanwhile.follow()}
        assert codes == {1: 0, 2: 3, 3: 0}
        code, runs = meanwhile.collect()
        assert code == 4
        assert tuple(run["state"] for run in runs.values()) == states
        assert {run["state_source"] for run in runs.values()} <= sources
        assert {repeat for repeat, run in runs.items() if run["valid"]} == {1, 3}
        until(before.log(2).exists, "the second one runs")
    finally:
        start_daemon(lab, "slurmdbd")
    before.check("COMPLETED", "COMPLETED")
    meanwhile.check(*states, sources=sources | {"sacct"})


@pytest.mark.site("no accounting")
def test_there_is_no_accounting(cluster, user):
    directory = cluster.lab.directory.with_name("without-accounting")
    plan = LabPlan(directory=directory, nodes=1, gpus_per_node=4, accounting=False, name="bare")
    with started(plan) as lab:
        run_as = runner_of(user, lab)
        hpcbert = replace(cluster.hpcbert, run=run_as)
        bare = replace(cluster, lab=lab, user=run_as, hpcbert=hpcbert)
        actions = {"2.*": "kill -9 $$", "3.*": "hang"}
        campaign = bare.submit(actions, "--concurrent-repeats=3", repeats=3)
        campaign.wait_half_way(3)
        bare.must("scancel", f"{campaign.job}_3")
        sources = {"squeue", "status-file"}
        campaign.check("COMPLETED", "FAILED", "CANCELLED", sources=sources)
        codes = {event["repeat"]: event["exit_code"] for event in campaign.follow()}
        assert (codes[1], codes[2]) == (0, 137)
