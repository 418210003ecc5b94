"""What people, limits and other jobs do to repeats: no number is wrong, and none is lost."""

import shutil
import time

import pytest

from hpcbert.system.processes import list_processes, read_proc_file
from tests.kit.waiting import unqueued, until

pytestmark = pytest.mark.slurm


def test_what_did_not_end_well_is_in_no_median(cluster):
    """Of six repeats, five lose their job, their step, their time, memory, or half of their log.

    Another campaign loses its whole array, of which one repeat has not begun.
    """
    cancelled = cluster.submit({"*": "hang"}, node="n2", repeats=2)
    cancelled.wait_half_way(1)
    cluster.must("scancel", cancelled.job)
    # Slurm 22.05 kills for memory without cgroups, and then says FAILED.
    eat = "(head -c 400M /dev/zero; sleep 600) | tail -c 400M; exit 1"
    words = ("--concurrent-repeats=6", "--sbatch-arg=--mem=200M", "--time=01:00:00")
    plan = {"1.*": "gate", "5.*": eat, "6.*": "exit 0", "*": "hang"}
    campaign = cluster.submit(plan, *words, repeats=6)
    campaign.wait_half_way(1, 2, 3, 4)
    cluster.must("scancel", f"{campaign.job}_2")
    listed = cluster.must("squeue", "-hs", "-j", f"{campaign.job}_3", "-o", "%i").split()
    steps = [step for step in listed if not step.endswith(("batch", "n"))]
    # The step that described the nodes may still be listed.
    cluster.must("scancel", max(steps, key=lambda step: int(step.rpartition(".")[2])))
    # A time limit is of minutes at least; the end that follows from it may come sooner.
    cluster.must("scontrol", "update", f"JobId={campaign.job}_4", "EndTime=now+2")
    campaign.go()
    cancelled.check("CANCELLED", "CANCELLED")
    states = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "FAILED", "COMPLETED")
    campaign.check(*states, valid={1})
    events = {event["repeat"]: event for event in campaign.follow()}
    assert [events[repeat]["exit_code"] for repeat in (1, 6)] == [0, 0]
    assert all(event["nodes"] == ["n1"] for event in events.values())
    collected = cluster.hpcbert("collect", campaign.directory, "--json")
    (row,) = collected.data["tables"][0]["rows"]
    assert row["repeats"] == {"ok": 1, "asked": 6}
    assert row["median"] == row["runs"][0]["throughput"]
    assert "incomplete" in row["flags"]
    text = cluster.hpcbert("collect", campaign.directory, status=4).stdout
    assert all(word in text for word in ("CANCELLED", "FAILED", "TIMEOUT", "1/6"))
    output = "".join(path.read_text() for path in campaign.directory.glob("slurm/*.out"))
    assert "memory limit" in output + campaign.log(5).read_text()


def test_a_job_is_held_and_sent_back(cluster):
    """And its other repeat leaves the queue before it starts: Slurm 22.05 keeps no record of it."""
    campaign = cluster.submit({"*.0": "hang"}, "--sbatch-arg=--hold", repeats=2)
    campaign.wait_pending(1, "JobHeldUser")
    waiting = campaign.look()
    assert (waiting["kind"], waiting["reason"]) == ("waiting", "JobHeldUser")
    assert "scontrol release" in waiting["advice"]
    cluster.must("scancel", f"{campaign.job}_2")
    cluster.must("scontrol", "release", campaign.job)
    campaign.wait_half_way(1)
    cluster.must("scontrol", "requeuehold", f"{campaign.job}_1")
    campaign.wait_pending(1)
    assert campaign.look()["kind"] in {"waiting", "requeued"}
    cluster.must("scontrol", "release", f"{campaign.job}_1")
    campaign.start_again(1)
    followed = cluster.hpcbert("logs", "-f", campaign.directory, "--repeat", "1", status=0)
    assert "iteration: 12/12" in followed.stdout.splitlines()[-1]
    vanished = campaign.check("COMPLETED", "UNKNOWN", attempts={1: 1})[2]
    assert "neither waits nor runs" in str(vanished["reasons"])


@pytest.mark.site("preemption")
def test_another_job_comes_first(cluster):
    """Of two campaigns on its node, Slurm may start one again."""
    sent_back = cluster.submit({"*.0": "hang"}, "--partition=low", node="n3")
    ended = cluster.submit({"*": "hang"}, "--partition=low", node="n3", requeue=False)
    sent_back.wait_half_way(1)
    ended.wait_half_way(1)
    urgent = ["--partition=gpu", "--nodelist=n3", "--exclusive", "--output=/dev/null"]
    cluster.must("sbatch", "--wait", *urgent, "--wrap=true")
    sent_back.wait_pending(1)
    sent_back.start_again(1)
    sent_back.check("COMPLETED", attempts={1: 1})
    ended.check("PREEMPTED")


def test_a_suspended_run_is_refused_by_whoever_is_asked_and_not_revived_by_a_retry(cluster):
    """A job with a repeat of its own, and one of two repeats, of which the first is suspended."""
    first = "if [[ $SLURM_STEP_ID -le 2 ]]; then gate; fi"
    single = cluster.submit({"*": "gate"})
    shared = cluster.submit({"*": first}, "--repeats-in=one-job", node="n2", repeats=2)
    campaigns, jobs = (single, shared), f"{single.job}_1,{shared.job}"
    for campaign in campaigns:
        campaign.wait_half_way(1)

    def is_stopped(campaign):
        return any(
            str(campaign.folder).encode() in read_proc_file(process.pid, "cmdline")
            and b"\nState:\tT" in read_proc_file(process.pid, "status")
            for process in list_processes()
        )

    # Slurm sends TSTP first, and STOP two seconds later.
    cluster.must("scontrol", "suspend", jobs, as_root=True)
    until(lambda: all(map(is_stopped, campaigns)), "both are stopped")
    time.sleep(4)
    cluster.must("scontrol", "resume", jobs, as_root=True)
    for campaign in campaigns:
        campaign.go()
    (run,) = single.check("COMPLETED", valid=()).values()
    assert "it was suspended for" in str(run["reasons"])
    # collect remembers what it is told first.
    assert "suspended for" in str(shared.check("COMPLETED", "COMPLETED", valid={2})[1]["reasons"])
    # Nobody there but the job's own files.
    copy = shutil.copytree(single.directory, single.folder / "copy")
    (copy / "measurements.json").unlink(missing_ok=True)
    cluster.root("chown", "-R", f"--reference={single.directory}", str(copy))
    alone = cluster.hpcbert("collect", copy, "--json", under=("env", "PATH=/nowhere"))
    (run,) = alone.data["tables"][0]["rows"][0]["runs"]
    assert (run["valid"], run["state_source"]) == (False, "status-file")
    assert "it was suspended for" in str(run["reasons"])
    retry = cluster.hpcbert("retry", single.directory, "--json", status=0)
    (array,) = retry.data["campaigns"][0]["arrays"]
    assert "suspended" in array["repeats"][0]["why"]
    cluster.must("scancel", array["job_id"])
    run = single.collect()[1][1]
    assert (run["valid"], run["throughput"]) == (False, None)
    assert run["attempts"][0]["state"] == "COMPLETED"


def test_a_job_that_root_sends_back_after_a_retry_completed_runs_nothing_and_changes_nothing(
    cluster,
):
    campaign = cluster.submit({"*": "[[ -e FOLDER/go ]] || exit 3"})
    campaign.check("FAILED")
    campaign.go()
    retry = cluster.hpcbert("retry", campaign.directory, "--json", status=0)
    (array,) = retry.data["campaigns"][0]["arrays"]
    until(lambda: campaign.collect()[1][1]["valid"], "the retry counts")
    folders = ("logs", "status")
    files = [path for name in folders for path in (campaign.directory / name).rglob("*.*l*")]
    before = {path: path.read_bytes() for path in files}
    job = f"{campaign.job}_1"
    cluster.must("scontrol", "requeue", job, as_root=True)
    campaign.start_again(1)
    words = ("-t", "pending,running,suspended,completing", "-j", campaign.job)
    until(lambda: unqueued(cluster.user, "", *words), "it is still queued", pause=0.2)

    def knows():
        detail = campaign.look()["detail"] or ""
        return job in detail and "its results are ignored" in detail

    until(knows, "accounting knows how it ended")
    assert (campaign.look()["state"], campaign.look()["attempt"]) == ("COMPLETED", 1)
    assert {path: path.read_bytes() for path in files} == before
    run = campaign.collect()[1][1]
    assert (run["valid"], run["attempt"]) == (True, 1)
    attempts = [(attempt["attempt"], attempt["job"]) for attempt in run["attempts"]]
    assert attempts == [(0, job), (1, f"{array['job_id']}_1")]
    output = "".join(path.read_text() for path in campaign.directory.glob("slurm/*.out"))
    assert "nothing is run" in output
