"""slurmctld is slow, dead, or dies over a submission: no job is lost or doubled, no number wrong."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hpcbert.lab.record import load
from hpcbert.system.runner import run
from tests.faults.kit import GATE, Campaign, Cluster
from tests.kit.lab_faults import start_daemon, stop_daemon
from tests.kit.waiting import until

pytestmark = pytest.mark.slurm

FIRST, SECOND = "--sbatch-arg=--nodelist=n1", "--sbatch-arg=--nodelist=n2"


def signal_controller(cluster: Cluster, number: int) -> None:
    lab = load(cluster.lab.directory)
    process = lab.daemons["slurmctld"] if lab else None
    assert process
    os.kill(process.pid, number)


def resume(cluster: Cluster, folder: Path) -> Campaign:
    """Take up the one campaign in a folder again."""
    (manifest,) = folder.glob("runs/*/manifest.json")
    words = ("--resume", manifest.parent.name, "--runs", folder / "runs", "--json")
    cluster.hpcbert("submit", *words, status=0)
    return Campaign(cluster, folder, manifest.parent)


def test_it_answers_late_and_then_dies(cluster):
    """Slower than a client waits, then with everything that was asked meanwhile; then it is killed.

    A job whose end it missed is COMPLETING for a minute.
    """
    late = cluster.submit({"*": GATE}, FIRST, repeats=2)
    dead = cluster.submit({"*": GATE}, SECOND, repeats=2)
    late.wait_half_way(1)
    dead.wait_half_way(1)
    signal_controller(cluster, signal.SIGSTOP)
    try:
        late.go()
        time.sleep(7)
    finally:
        signal_controller(cluster, signal.SIGCONT)
    # Wait until the controller has written down which jobs run: killed before, it would start them
    # a second time, and drain the node that refuses to (SchedMD/slurm@slurm-22-05-8-1,
    # src/slurmctld/state_save.c, SAVE_MAX_WAIT: five seconds).
    time.sleep(6)
    stop_daemon(cluster.lab, "slurmctld", number=signal.SIGKILL)
    try:
        dead.go()
        folder = cluster.folder()
        refused = cluster.hpcbert(*cluster.words(folder, {}, FIRST, repeats=2), status=3)
        assert "--resume" in refused.error["hint"]
    finally:
        start_daemon(cluster.lab, "slurmctld", run=run)
    for campaign in (resume(cluster, folder), late, dead):
        campaign.check("COMPLETED", "COMPLETED")


def test_it_dies_during_sbatch(cluster):
    """It has the request, or not; it answers, or not: stopped first, killed while sbatch waits."""
    folder = cluster.folder()
    words = cluster.words(folder, {}, FIRST, repeats=2)
    signal_controller(cluster, signal.SIGSTOP)
    with ThreadPoolExecutor() as pool:
        submission = pool.submit(cluster.hpcbert, *words)
        until(lambda: list(folder.glob("runs/*/manifest.json")), "the intent is on disk")
        time.sleep(1)
        stop_daemon(cluster.lab, "slurmctld", number=signal.SIGKILL)
        start_daemon(cluster.lab, "slurmctld", run=run)
        assert submission.result().returncode in {0, 3}
    resume(cluster, folder).check("COMPLETED", "COMPLETED")
