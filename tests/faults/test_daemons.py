"""Slurm without munge, without a node's slurmd, without slurmdbd, and without accounting at all."""

import signal
import time
from dataclasses import replace

import pytest

from hpcbert.lab.lifecycle import down, up
from hpcbert.lab.record import LabPlan
from hpcbert.system.runner import run
from tests.faults.kit import GATE, HANG, Cluster
from tests.kit.lab import runner_of
from tests.kit.lab_faults import start_daemon, stop_daemon, stop_slurmdbd
from tests.kit.waiting import until

pytestmark = pytest.mark.slurm

FIRST, SECOND = "--sbatch-arg=--nodelist=n1", "--sbatch-arg=--nodelist=n2"


def test_nobody_is_believed(cluster):
    """munge is away: every command of Slurm's fails, and so do its daemons' messages."""
    campaign = cluster.submit({"*": GATE}, FIRST, repeats=2)
    campaign.wait_half_way(1)
    stop_daemon(cluster.lab, "munged")
    try:
        campaign.go()
        time.sleep(4)
    finally:
        start_daemon(cluster.lab, "munged", run=run)
    campaign.check("COMPLETED", "COMPLETED")


def test_a_nodes_daemon_is_killed(cluster):
    """Its job goes on without it until Slurm misses the node: it says so, and its name."""
    campaign = cluster.submit({"*": GATE}, SECOND, requeue=False)
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
        start_daemon(cluster.lab, "n2", run=run)
    (lost_run,) = campaign.check("NODE_FAIL").values()
    assert lost_run["nodes"] == ["n2"]
    assert "lost a node (n2)" in str(lost_run["reasons"])
    cluster.wait_for_node("n2")
    cluster.vacate("n2")


@pytest.mark.site("slurmdbd is away")
def test_accounting_is_away(cluster):
    """For a while of one campaign, and throughout another."""
    before = cluster.submit({"*": GATE}, FIRST, repeats=2)
    before.wait_half_way(1)
    stop_slurmdbd(cluster.lab)
    try:
        states, sources = ("COMPLETED", "FAILED", "COMPLETED"), {"squeue", "status-file"}
        meanwhile = cluster.submit({"2.*": "exit 3"}, FIRST, repeats=3)
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
        start_daemon(cluster.lab, "slurmdbd", run=run)
    before.check("COMPLETED", "COMPLETED")
    meanwhile.check(*states, sources=sources | {"sacct"})


@pytest.mark.site("no accounting")
def test_there_is_no_accounting(cluster, user):
    directory = cluster.lab.directory.with_name("without-accounting")
    plan = LabPlan(directory=directory, nodes=1, gpus_per_node=4, accounting=False, name="bare")
    lab = up(plan, run=run, report=lambda _: None)
    try:
        run_as = runner_of(user, lab)
        bare = Cluster(lab, run_as, replace(cluster.hpcbert, run=run_as))
        campaign = bare.submit(
            {"2.*": "kill -9 $$", "3.*": HANG}, "--concurrent-repeats=3", repeats=3
        )
        campaign.wait_half_way(3)
        bare.must("scancel", f"{campaign.job}_3")
        sources = {"squeue", "status-file"}
        campaign.check("COMPLETED", "FAILED", "CANCELLED", sources=sources)
        codes = {event["repeat"]: event["exit_code"] for event in campaign.follow()}
        assert (codes[1], codes[2]) == (0, 137)
    finally:
        removal = down(directory, run=run, report=lambda _: None)
        assert not removal.remains, removal.remains
