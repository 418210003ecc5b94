"""Whose a job is: by cluster, id, time and directory of submission, whatever it is called."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from hpcbert import scheduler
from hpcbert.campaign import store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.commands import submit
from hpcbert.commands import submit as flow
from hpcbert.commands.monitor import open_campaign
from hpcbert.errors import SchedulerError
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.scheduler.slurm.identify import find_differences, read_jobs
from hpcbert.script.draft import Draft
from hpcbert.system.runner import Outcome
from tests.kit.campaigns import adopted, snapshot
from tests.kit.cases import cases
from tests.kit.drafts import curve, hurried
from tests.kit.slurm import Job, Slurm, failed, scontrol


def one_point(tmp_path: Path) -> Draft:
    draft = curve(tmp_path, ("fp32",))
    campaign = replace(draft.campaign, arrays=draft.campaign.arrays[:1])
    return replace(draft, campaign=campaign)


def rename(slurm: Slurm) -> None:
    numbers = itertools.count()
    slurm.rename(lambda _: f"proj-{next(numbers)}")


def prefix(slurm: Slurm) -> None:
    slurm.rename(lambda name: f"proj-{name}")
    for job in slurm.jobs.values():
        job.script = ""


def cut(slurm: Slurm) -> None:
    slurm.rename(lambda name: name[:12])


@pytest.mark.parametrize("change", [rename, prefix, cut])
def test_a_job_that_was_renamed_is_found_after_a_crash(
    tmp_path: Path, change: Callable[[Slurm], None]
) -> None:
    draft, slurm = curve(tmp_path), Slurm()
    flow.write_campaign(draft)
    for number in range(1, 5):
        slurm.dies = True
        with pytest.raises(KeyboardInterrupt):
            flow.submit(draft.directory, hurried(slurm))
        assert len(slurm.jobs) == number
        change(slurm)
    slurm.dies = False
    campaign = flow.submit(draft.directory, hurried(slurm))
    assert [array.job_id for array in campaign.arrays] == ["100", "101", "102", "103"]
    assert slurm.count("sbatch") == 4


def test_of_two_jobs_that_are_an_arrays_by_their_marks_it_has_the_first(tmp_path: Path) -> None:
    draft = one_point(tmp_path)
    (array,) = draft.campaign.arrays
    flow.write_campaign(draft)
    campaign = replace(draft.campaign, arrays=(replace(array, called="2025-11-21T04:00:00Z"),))
    store.write_manifest(draft.directory, campaign)
    slurm = Slurm(jobs={"1001": Job(array.name), "999": Job(array.name)})
    assert flow.submit(draft.directory, hurried(slurm)).arrays[0].job_id == "999"
    assert slurm.count("sbatch") == 0


def test_a_renamed_job_of_another_user_name_is_followed_cancelled_and_not_doubled(
    tmp_path: Path,
) -> None:
    draft, slurm = one_point(tmp_path), Slurm()
    flow.write_campaign(draft)
    campaign = replace(flow.submit(draft.directory, hurried(slurm)), user="jovyan")
    store.write_manifest(draft.directory, campaign)
    rename(slurm)
    watched = TrackedCampaign(draft.directory, campaign)
    states = snapshot(TrackedCampaign(draft.directory, campaign), run=slurm)
    assert {state.word for state in states.values()} == {"PENDING"}
    calls = [call for call in slurm.calls if call[0] in {"squeue", "sacct"}]
    assert calls
    assert all(call[call.index("-u") + 1] == str(os.geteuid()) for call in calls)
    assert submit.find_living(watched, run=slurm).jobs == ("100",)
    with pytest.raises(SchedulerError, match="is not over: Slurm lists job 100_2 as PENDING"):
        scheduler.create_scheduler("slurm", SchedulerContext(slurm)).refuse_doubling(
            watched, [(campaign.arrays[0], 2)]
        )


@cases
def test_an_id_that_is_listed_as_alive_under_any_name_and_user_is_not_submitted_again(
    tmp_path: Path, line: str, refused: bool
) -> None:
    draft, slurm = one_point(tmp_path), Slurm()
    flow.write_campaign(draft)
    campaign = flow.submit(draft.directory, hurried(slurm))

    def run(argv: Sequence[str], **_: object) -> Outcome:
        text = line.replace("//HERE", f"//{draft.directory}") if "-j" in argv else ""
        return Outcome(tuple(argv), 0, text + "\n")

    watched = TrackedCampaign(draft.directory, campaign)
    backend = scheduler.create_scheduler("slurm", SchedulerContext(run))
    with pytest.raises(SchedulerError, match="is not over") if refused else nullcontext():
        backend.refuse_doubling(watched, [(campaign.arrays[0], 2)])


@dataclass
class Elsewhere(Slurm):
    """A second cluster: who does not name it is answered by the first, which has nothing."""

    def __call__(self, argv: Sequence[str], **more: object) -> Outcome:
        names_cluster = "--clusters=other" in argv
        if argv[0] == "sbatch":
            outcome = super().__call__(argv, **more)  # type: ignore[arg-type]
            return replace(outcome, stdout=outcome.stdout.replace("\n", ";other\n"))
        if names_cluster:
            outcome = super().__call__(argv, **more)  # type: ignore[arg-type]
            head = "CLUSTER: other\nJOBID|USER|STATE\n" if argv[0] == "squeue" else ""
            return replace(outcome, stdout=head + outcome.stdout)
        self.calls.append(tuple(argv))
        if argv[0] == "scontrol":
            return Outcome(tuple(argv), 1, "", "Invalid job id specified")
        return Outcome(tuple(argv), 0, "")


def test_jobs_on_another_cluster_are_asked_about_and_cancelled_there(tmp_path: Path) -> None:
    draft, slurm = curve(tmp_path, ("fp32",)), Elsewhere()
    arrays = tuple(replace(array, cluster="other,third") for array in draft.campaign.arrays)
    flow.write_campaign(replace(draft, campaign=replace(draft.campaign, arrays=arrays)))
    campaign = flow.submit(draft.directory, hurried(slurm))
    assert {array.cluster for array in campaign.arrays} == {"other"}
    first, second = (call for call in slurm.calls if call[0] == "sbatch")
    assert "--clusters=other,third" in first
    # A job can't wait for one of another cluster.
    assert "--clusters=other" in second
    states = snapshot(TrackedCampaign(draft.directory, campaign), run=slurm)
    assert {state.word for state in states.values()} == {"PENDING"}
    watched = TrackedCampaign(draft.directory, campaign)
    target = submit.find_living(watched, run=slurm)
    assert (target.jobs, target.clusters) == (("100", "101"), ("other", "other"))
    cancelled: list[tuple[str, ...]] = []

    def scancel(argv: Sequence[str], **_: object) -> Outcome:
        cancelled.append(tuple(argv))
        return Outcome(tuple(argv), 0)

    submit.cancel(watched, target, run=scancel)
    assert cancelled == [("scancel", "--clusters=other", "100", "101")]


def test_an_sbatch_that_submits_and_then_fails_is_not_a_refusal(tmp_path: Path) -> None:
    answers = [
        failed("sbatch: error: the wrapper's quota check failed", acts=True),
        failed("sbatch: error: Batch job submission failed: whatever", acts=True),
    ]
    draft, slurm = curve(tmp_path, ("fp32",)), Slurm(sbatch=answers)
    flow.write_campaign(draft)
    campaign = flow.submit(draft.directory, hurried(slurm))
    assert [(array.state, array.job_id) for array in campaign.arrays] == [
        ("submitted", "100"),
        ("submitted", "101"),
    ]
    assert slurm.count("sbatch") == 2


def test_a_refused_array_is_looked_for_before_anything_is_submitted_in_its_place(
    tmp_path: Path,
) -> None:
    refusal = failed("sbatch: error: Batch job submission failed: Invalid qos specification")
    draft, slurm = one_point(tmp_path), Slurm(sbatch=[refusal, None])
    flow.write_campaign(draft)
    with pytest.raises(SchedulerError, match="Invalid qos"):
        flow.submit(draft.directory, hurried(slurm))
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
    flow.submit(draft.directory, hurried(slurm))
    assert slurm.count("sbatch") == 1


def test_what_the_controller_has_otherwise_is_on_record(tmp_path: Path) -> None:
    draft, slurm = one_point(tmp_path), Slurm()
    flow.write_campaign(draft)

    def run(argv: Sequence[str], **more: object) -> Outcome:
        outcome = slurm(argv, **more)  # type: ignore[arg-type]
        if argv[0] == "sbatch":
            prefix(slurm)
        text = outcome.stdout.replace("Dependency=(null)", "Dependency=singleton(unfulfilled)")
        more_ = (
            "   Requeue=0 TimeLimit=00:05:00 NumNodes=1-1 Partition=other\n   StdOut=/tmp/x.out\n"
        )
        return replace(outcome, stdout=text.replace("   SubmitTime", f"{more_}   SubmitTime"))

    campaign = flow.submit(draft.directory, hurried(run))
    (array,) = campaign.arrays
    name = array.name
    assert array.changed == (
        ("JobName", name, f"proj-{name}"),
        ("TimeLimit", "01:00:00", "00:05:00"),
        ("Requeue", "1", "0"),
        ("StdOut", f"{draft.directory}/slurm/%A_%a.out", "/tmp/x.out"),
        ("Dependency", "", "singleton(unfulfilled)"),
        ("WorkDir", os.path.realpath(draft.directory), "/nowhere"),
    )
    assert store.read_manifest(draft.directory) == campaign


@cases
def test_a_job_in_another_partition_than_those_requested_is_changed(
    requested: str, actual: str, *, is_change: bool
) -> None:
    ((_, fields),) = read_jobs(scontrol("7").rstrip() + f"\n   Partition={actual}\n")
    changes = [("Partition", requested, actual)] if is_change else []
    assert find_differences({"Partition": requested}, fields) == changes
