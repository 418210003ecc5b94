"""Whose a job is: by cluster, id, time and directory of submission, whatever it is called."""

import os
from contextlib import nullcontext
from dataclasses import replace

import pytest

from hpcbert import scheduler
from hpcbert.campaign import store
from hpcbert.commands import submit
from hpcbert.commands.monitor import open_campaign
from hpcbert.errors import SchedulerError
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.scheduler.slurm.identify import find_differences, read_jobs
from hpcbert.system.runner import Outcome
from tests.kit import drafts
from tests.kit.campaigns import adopted, snapshot
from tests.kit.cases import cases
from tests.kit.drafts import curve, drafted
from tests.kit.slurm import Job, Slurm, failed, scontrol


def test_of_two_jobs_that_are_an_arrays_by_their_marks_it_has_the_first(tmp_path):
    draft = drafted(tmp_path)
    (array,) = draft.campaign.arrays
    submit.write_campaign(draft)
    called = replace(draft.campaign, arrays=(replace(array, called="2025-11-21T04:00:00Z"),))
    store.write_manifest(draft.directory, called)
    slurm = Slurm(jobs={"1001": Job(array.name), "999": Job(array.name)})
    assert drafts.submit(draft, slurm).arrays[0].job_id == "999"
    assert slurm.count("sbatch") == 0


def test_a_renamed_job_of_another_user_name_is_followed_cancelled_and_not_doubled(tmp_path):
    draft, slurm = drafted(tmp_path), Slurm()
    campaign = replace(drafts.submit(draft, slurm), user="jovyan")
    store.write_manifest(draft.directory, campaign)
    slurm.rename(lambda name: f"proj-{name[:12]}")
    watched = open_campaign(draft.directory)
    assert {state.word for state in snapshot(watched, run=slurm).values()} == {"PENDING"}
    calls = [*slurm.called("squeue"), *slurm.called("sacct")]
    assert {call[call.index("-u") + 1] for call in calls} == {str(os.geteuid())}
    assert submit.find_living(watched, run=slurm).jobs == ("100",)
    backend = scheduler.create_scheduler("slurm", SchedulerContext(slurm))
    with pytest.raises(SchedulerError, match="is not over: Slurm lists job 100_2 as PENDING"):
        backend.refuse_doubling(watched, [(campaign.arrays[0], 2)])


@cases
def test_an_id_that_is_listed_as_alive_under_any_name_and_user_is_not_submitted_again(
    tmp_path, line, refused
):
    draft = drafted(tmp_path)
    campaign = drafts.submit(draft, Slurm())
    slurm = Slurm(squeue=["\n", line.replace("//HERE", f"//{draft.directory}") + "\n"], sacct="")
    backend = scheduler.create_scheduler("slurm", SchedulerContext(slurm))
    with pytest.raises(SchedulerError, match="is not over") if refused else nullcontext():
        backend.refuse_doubling(open_campaign(draft.directory), [(campaign.arrays[0], 2)])


def test_jobs_on_another_cluster_are_asked_about_and_cancelled_there(tmp_path):
    draft, slurm = curve(tmp_path, ("fp32",)), Slurm()

    def run(argv, **more):
        """Ask a second cluster; who does not name it is answered by the first, which has nothing."""
        if argv[0] != "sbatch" and "--clusters=other" not in argv:
            complaint = "Invalid job id specified" if argv[0] == "scontrol" else ""
            return Outcome(tuple(argv), int(bool(complaint)), "", complaint)
        outcome = slurm(argv, **more)
        if argv[0] == "sbatch":
            return replace(outcome, stdout=outcome.stdout.replace("\n", ";other\n"))
        head = "CLUSTER: other\nJOBID|USER|STATE\n" if argv[0] == "squeue" else ""
        return replace(outcome, stdout=head + outcome.stdout)

    arrays = tuple(replace(array, cluster="other,third") for array in draft.campaign.arrays)
    draft = replace(draft, campaign=replace(draft.campaign, arrays=arrays))
    assert {array.cluster for array in drafts.submit(draft, run).arrays} == {"other"}
    first, second = slurm.called("sbatch")
    assert "--clusters=other,third" in first
    # A job can't wait for one of another cluster.
    assert "--clusters=other" in second
    watched = open_campaign(draft.directory)
    assert {state.word for state in snapshot(watched, run=run).values()} == {"PENDING"}
    target = submit.find_living(watched, run=run)
    assert (target.jobs, target.clusters) == (("100", "101"), ("other", "other"))
    submit.cancel(watched, target, run=run)
    assert slurm.called("scancel") == [("scancel", "--clusters=other", "100", "101")]


def test_an_sbatch_that_submits_and_then_fails_is_not_a_refusal(tmp_path):
    answers = [
        failed("sbatch: error: the wrapper's quota check failed", acts=True),
        failed("sbatch: error: Batch job submission failed: whatever", acts=True),
    ]
    slurm = Slurm(sbatch=answers)
    arrays = drafts.submit(curve(tmp_path, ("fp32",)), slurm).arrays
    submitted = [("submitted", "100"), ("submitted", "101")]
    assert [(array.state, array.job_id) for array in arrays] == submitted
    assert slurm.count("sbatch") == 2


def test_a_refused_array_is_looked_for_before_anything_is_submitted_in_its_place(tmp_path):
    refusal = failed("sbatch: error: Batch job submission failed: Invalid qos specification")
    draft, slurm = drafted(tmp_path), Slurm(sbatch=[refusal, None])
    with pytest.raises(SchedulerError, match="Invalid qos"):
        drafts.submit(draft, slurm)
    (array,) = store.read_manifest(draft.directory).arrays
    assert (array.state, array.job_id) == ("refused", "")
    slurm.away = {"squeue", "sacct"}
    with pytest.raises(SchedulerError, match="is unknown whether"):
        adopted(open_campaign(draft.directory), run=slurm, strict=True)
    slurm.away = set()
    slurm.jobs["77"] = Job(array.name)
    campaign = adopted(open_campaign(draft.directory), run=slurm, strict=True).campaign
    assert (campaign.arrays[0].state, campaign.arrays[0].job_id) == ("submitted", "77")
    assert store.read_manifest(draft.directory) == campaign
    drafts.submit(draft, slurm)
    assert slurm.count("sbatch") == 1


def test_what_the_controller_has_otherwise_is_on_record(tmp_path):
    draft, slurm = drafted(tmp_path), Slurm()
    (array,) = draft.campaign.arrays
    others = "   Requeue=0 TimeLimit=00:05:00 NumNodes=1-1 Partition=other\n   StdOut=/tmp/x.out\n"

    def run(argv, **more):
        outcome = slurm(argv, **more)
        for job in slurm.jobs.values():
            job.name, job.script = f"proj-{array.name}", ""
        text = outcome.stdout.replace("Dependency=(null)", "Dependency=singleton(unfulfilled)")
        return replace(outcome, stdout=text.replace("   SubmitTime", f"{others}   SubmitTime"))

    campaign = drafts.submit(draft, run)
    assert campaign.arrays[0].changed == (
        ("JobName", array.name, f"proj-{array.name}"),
        ("TimeLimit", "01:00:00", "00:05:00"),
        ("Requeue", "1", "0"),
        ("StdOut", f"{draft.directory}/slurm/%A_%a.out", "/tmp/x.out"),
        ("Dependency", "", "singleton(unfulfilled)"),
        ("WorkDir", os.path.realpath(draft.directory), "/nowhere"),
    )
    assert store.read_manifest(draft.directory) == campaign


def test_a_job_in_another_partition_than_those_requested_is_changed():
    for requested, actual in (("a,b", "b"), ("a,b", "c"), ("gpu", "gpu"), ("", "gpu")):
        ((_, fields),) = read_jobs(scontrol("7").rstrip() + f"\n   Partition={actual}\n")
        changes = [("Partition", "a,b", "c")] if actual == "c" else []
        assert find_differences({"Partition": requested}, fields) == changes, requested
