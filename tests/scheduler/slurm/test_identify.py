"""Whose a job is, whatever a site or an accident does to its submission: one sbatch an array, and
each job is found by cluster, id, time, directory and marks, whatever it is called."""

import os
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import pytest

from hpcbert import scheduler
from hpcbert.campaign import store
from hpcbert.campaign.repeats import open_campaign
from hpcbert.commands import submit
from hpcbert.errors import SchedulerError
from hpcbert.model import Shape, format_utc
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.scheduler.slurm.identify import find_differences, read_jobs
from hpcbert.system.runner import Outcome
from tests.kit import drafts
from tests.kit.campaigns import adopted, snapshot, status_file
from tests.kit.cases import cases
from tests.kit.drafts import changed, combined, curve, drafted, reference
from tests.kit.slurm import Answer, Job, Slurm, T, failed, scontrol
from tests.kit.waiting import Clock

# With all of these, a job has none of its three marks: name, place, comment.
UNMARKED = {"name": "proj", "script": "/tmp/copy", "place": "/tmp", "comment": "x"}


@dataclass
class Wrapped(Slurm):
    """A site's own sbatch, or its job_submit plugin: it changes jobs, and prints what it likes."""

    changes: Mapping[str, str] = field(default_factory=dict)
    form: str = "{job}\n"
    code: int = 0
    complaint: str = "Socket timed out"

    def do_sbatch(self, argv, cwd):
        number = super().do_sbatch(argv, cwd).out.strip()
        job = self.jobs[number]
        vars(job).update({key: text.format(name=job.name) for key, text in self.changes.items()})
        return Answer(self.form.format(job=number), self.code, self.complaint if self.code else "")


def assert_waiting(draft, slurm, *jobs):
    """Each array was submitted once, and its job is followed and can be cancelled."""
    assert slurm.count("sbatch") == len(jobs)
    watched = open_campaign(draft.directory)
    assert {state.word for state in snapshot(watched, run=slurm).values()} == {"PENDING"}
    assert submit.find_living(watched, run=slurm).jobs == jobs


def start_job(draft, array, job, **event):
    """Write the start of an array's second repeat, as its job does."""
    start = {"event": "start", "time": 1, "job": f"{job}_2", "array": array.name, **event}
    status_file(draft.directory / array.status(2), start)


@cases
def test_a_job_that_keeps_one_mark_is_the_arrays_under_any_clock(
    tmp_path, changes, hours, *, killed
):
    draft = curve(tmp_path, ("fp32",))
    created = format_utc(time.time())
    draft = replace(draft, campaign=replace(draft.campaign, created=created))
    slurm = Wrapped(changes=changes, now=time.time() + hours * 3600)

    def kill(program):
        if program == "scontrol":
            raise KeyboardInterrupt

    if killed:  # before the answer is recorded
        slurm.before = kill
        with pytest.raises(KeyboardInterrupt):
            drafts.submit(draft, slurm)
        slurm.before = lambda _: None
    arrays = drafts.submit(draft, slurm, resumed=killed).arrays
    assert [array.job_id for array in arrays] == ["100", "101"]
    assert not any(array.is_doubtful for array in arrays)
    assert_waiting(draft, slurm, "100", "101")


@pytest.mark.parametrize("form", ["Welcome\n{job}\nYou have 12 hours.\n", "{job}\n34\n"])
def test_an_id_without_any_mark_is_kept_in_doubt_until_the_job_begins(tmp_path, form):
    draft, slurm = curve(tmp_path, ("fp32",)), Wrapped(changes=UNMARKED, form=form)
    slurm.jobs["34"] = Job("of mine", "/home/x", "/home")
    arrays = drafts.submit(draft, slurm).arrays
    assert all(array.is_doubtful and array.state == "submitted" for array in arrays)
    assert ("JobName", arrays[0].name, "proj") in arrays[0].changed
    assert [entry[2] for entry in arrays[0].changed if entry[0] == "WorkDir"] == ["/tmp"]
    assert_waiting(draft, slurm, "101", "102")
    backend = scheduler.create_scheduler("slurm", SchedulerContext(slurm))
    with pytest.raises(SchedulerError, match="is not over"):
        backend.refuse_doubling(open_campaign(draft.directory), [(arrays[0], 2)])
    start_job(draft, arrays[0], "101")
    first, second = adopted(open_campaign(draft.directory), run=slurm).campaign.arrays
    assert (first.job_id, bool(first.seen), first.is_doubtful) == ("101", True, False)
    assert second.is_doubtful
    assert drafts.submit(draft, slurm, resumed=True).arrays == (first, second)
    assert slurm.count("sbatch") == 2


@cases
def test_what_a_sites_wrapper_prints_is_neither_the_id_nor_a_refusal(tmp_path, form, complaint):
    code = 1 if complaint else 0
    draft, slurm = curve(tmp_path, ("fp32",)), Wrapped(form=form, code=code, complaint=complaint)
    slurm.jobs["34"] = Job("somebody else's")
    for array in drafts.submit(draft, slurm).arrays:
        assert (slurm.jobs[array.job_id].name, bool(array.seen)) == (array.name, True)
    assert slurm.count("sbatch") == 2


@pytest.mark.parametrize("away", [set(), {"squeue"}], ids=["squeue answers", "it does not"])
@pytest.mark.parametrize("fourth", ["{job}", "34", "102"])
def test_believed_ids_are_confirmed_together_in_the_end_or_later(tmp_path, fourth, away):
    draft = drafted(tmp_path, combined(Shape(1, 1), ("fp32",), (1, 2, 3, 4, 5)))
    slurm = Wrapped(jobs={"34": Job("somebody else's")}, away=away)

    def change_the_fourth_answer(_):
        slurm.form = f"{fourth}\n" if slurm.count("sbatch") == 4 else "{job}\n"

    slurm.before = change_the_fourth_answer
    arrays = drafts.submit(draft, slurm).arrays
    assert [bool(array.seen) for array in arrays] == [True, True, *[not away] * 3]
    # The fifth waits for the wrong job.
    wrong = () if "{" in fourth or away else (("Dependency", "afterany:104", f"afterany:{fourth}"),)
    assert [array.changed for array in arrays] == [(), (), (), (), wrong]
    slurm.away = set()
    arrays = adopted(open_campaign(draft.directory), run=slurm).campaign.arrays
    assert [slurm.jobs[array.job_id].name for array in arrays] == [array.name for array in arrays]
    assert (all(array.seen for array in arrays), slurm.count("sbatch")) == (True, 5)


def test_an_id_that_nobody_confirms_now_is_confirmed_later(tmp_path):
    draft = curve(tmp_path, ("fp32",))
    slurm = Wrapped(form="34\n{job}\n", away={"scontrol", "squeue", "sacct"})
    with pytest.raises(SchedulerError):
        drafts.submit(draft, slurm)
    assert {array.state for array in store.read_manifest(draft.directory).arrays} == {"intended"}
    slurm.away = set()
    arrays = drafts.submit(draft, slurm).arrays
    assert [slurm.jobs[array.job_id].name for array in arrays] == [array.name for array in arrays]
    assert slurm.count("sbatch") == 2
    # A plain answer stands while the controller is silent.
    draft = drafted(tmp_path / "other")
    slurm = Wrapped(form="34\n", away={"scontrol"}, jobs={"34": Job("somebody else's")})
    (array,) = drafts.submit(draft, slurm).arrays
    assert (array.job_id, array.seen) == ("34", "")
    (array,) = adopted(open_campaign(draft.directory), run=slurm).campaign.arrays
    assert (array.job_id, bool(array.seen)) == ("101", True)
    assert store.read_manifest(draft.directory).arrays == (array,)


def test_the_jobs_own_start_corrects_a_wrong_id_and_another_arrays_settles_nothing(tmp_path):
    draft, slurm = curve(tmp_path, ("fp32",)), Wrapped(changes=UNMARKED, form="34\n")
    slurm.jobs["34"] = Job("of mine", "/home/x", "/home")
    with pytest.raises(SchedulerError, match="Slurm does not show which job"):
        drafts.submit(draft, slurm)  # 34 is the first array's: the second has none.
    arrays = store.read_manifest(draft.directory).arrays
    assert [(array.job_id, array.is_doubtful) for array in arrays] == [("34", True), ("", False)]
    start_job(draft, arrays[0], "101")
    first, _ = adopted(open_campaign(draft.directory), run=slurm).campaign.arrays
    assert (first.job_id, first.changed) == ("101", ())
    assert snapshot(open_campaign(draft.directory), run=slurm)[first.name, 1].word == "PENDING"
    assert slurm.count("sbatch") == 2
    draft = curve(tmp_path / "other", ("fp32",))
    first, *_ = drafts.submit(draft, Slurm()).arrays
    retry = replace(first, name=f"{first.name}.t1", first_attempt=1, job_id="", submit_time=None)
    # The user requeued the first job.
    start_job(draft, first, "100", attempt=1)
    candidates = (first, retry, replace(first, name=f"{first.name}.p4"))
    begun = [open_campaign(draft.directory).find_begun_job(array) for array in candidates]
    assert begun == ["100", "", "100"]


@cases
def test_what_can_not_be_recognized_is_not_submitted_again(tmp_path, form, code):
    draft = curve(tmp_path, ("fp32",))
    slurm = Wrapped(changes=UNMARKED, form=form, code=code)
    with pytest.raises(SchedulerError, match=r"ended with status \d+ and printed"):
        drafts.submit(draft, slurm)
    for resumed in (False, True):
        with pytest.raises(SchedulerError, match="Slurm does not show which job") as caught:
            drafts.submit(draft, slurm, resumed=resumed)
        assert f"submit --like {draft.campaign.id}" in caught.value.hint
        assert slurm.count("sbatch") == 1
    start_job(draft, draft.campaign.arrays[0], "100")
    with pytest.raises(SchedulerError):
        drafts.submit(draft, slurm)
    assert store.read_manifest(draft.directory).arrays[0].job_id == "100"
    assert slurm.count("sbatch") == 2


@cases
def test_a_restored_campaign_finds_its_jobs_by_one_question_each(
    tmp_path, changes, questions, *, begins, fate
):
    draft, slurm = curve(tmp_path, ("fp32",)), Wrapped(changes=changes)
    arrays = drafts.submit(draft, slurm).arrays
    store.write_manifest(draft.directory, draft.campaign)
    for array, (number, job) in zip(arrays, list(slurm.jobs.items()), strict=True):
        if begins:
            start_job(draft, array, number)
        if fate == "forgotten":
            del slurm.jobs[number]
        elif fate:
            job.end(fate)
    slurm.calls.clear()
    again = drafts.submit(draft, slurm, resumed=True).arrays
    assert [array.job_id for array in again] == ["100", "101"]
    assert tuple(call[0] for call in slurm.calls) == questions
    assert store.read_manifest(draft.directory).arrays == again


def test_a_campaign_restored_in_the_middle_submits_what_is_left_once_squeue_answers(tmp_path):
    draft, slurm = curve(tmp_path), Slurm()
    arrays = drafts.submit(draft, slurm).arrays
    earlier = replace(draft.campaign, arrays=(arrays[0], *draft.campaign.arrays[1:]))
    store.write_manifest(draft.directory, earlier)
    slurm.jobs = {number: slurm.jobs[number] for number in ("100", "101")}
    slurm.first, slurm.away = 200, {"squeue", "sacct"}
    with pytest.raises(SchedulerError, match="is unknown whether"):
        drafts.submit(draft, slurm, resumed=True)
    assert slurm.count("sbatch") == 4
    slurm.away = set()
    again = drafts.submit(draft, slurm, resumed=True).arrays
    assert [array.job_id for array in again] == ["100", "101", "202", "203"]
    assert slurm.called("sbatch")[4][2] == "--dependency=afterany:101"


@pytest.mark.parametrize("away", [set(), {"scontrol"}], ids=["scontrol answers", "it does not"])
@cases
def test_an_empty_answer_from_a_cache_is_no_proof(tmp_path, away, step):
    """A site's squeue, and its accounting, show the queue as it was a minute ago."""
    draft, clock = curve(tmp_path, ("fp32",)), Clock(1_763_700_000.0)
    slurm = Slurm(now=clock.now, away=away)
    context = SchedulerContext(slurm, clock, clock.pause)
    submit.write_campaign(draft)
    if step is None:
        lost = failed("sbatch: error: Batch job submission failed: Socket timed out", acts=True)
        slurm.sbatch = [lost, None]
    else:
        slurm.dies = True
        with pytest.raises(KeyboardInterrupt):
            submit.submit(draft.directory, context)
        slurm.dies = False
    slurm.squeue = slurm.sacct = ""
    shown = clock.now + 60 + min(step or 0, 0)
    clock.at(shown - T, lambda: vars(slurm).update(squeue=None, sacct=None))
    clock.now += step or 0
    campaign = submit.submit(draft.directory, context)
    assert sorted(slurm.jobs) == [array.job_id for array in campaign.arrays] == ["100", "101"]


def test_each_script_has_its_mark_and_the_users_own_comment_stays(tmp_path):
    for words in (), ("--comment=mine",), ("--comm", "my own"):
        draft = drafted(changed(reference(tmp_path), slurm={"sbatch_args": words}))
        (array,), (text,) = draft.campaign.arrays, draft.scripts.values()
        assert (f"\n#SBATCH --comment={array.name}\n" in text) == (not words)
        assert f"\narray_name={array.name} " in text


def test_nobody_elses_job_is_kept_in_doubt(tmp_path):
    slurm = Wrapped(changes=UNMARKED, scontrol=scontrol("100", name="proj", place="/tmp", uid=4321))
    with pytest.raises(SchedulerError, match="printed 100, 'proj' of nobody in /tmp"):
        drafts.submit(curve(tmp_path, ("fp32",)), slurm)
    assert slurm.count("sbatch") == 1


def test_of_two_jobs_that_are_an_arrays_by_their_marks_it_has_the_first(tmp_path):
    draft = drafted(tmp_path)
    array = replace(draft.campaign.arrays[0], called="2025-11-21T04:00:00Z")
    submit.write_campaign(draft)
    store.write_manifest(draft.directory, replace(draft.campaign, arrays=(array,)))
    slurm = Slurm(jobs={"1001": Job(array.name), "999": Job(array.name)})
    assert drafts.submit(draft, slurm).arrays[0].job_id == "999"
    assert slurm.count("sbatch") == 0


def test_a_renamed_job_of_another_user_name_is_followed_cancelled_and_not_doubled(tmp_path):
    draft, slurm = drafted(tmp_path), Slurm()
    campaign = replace(drafts.submit(draft, slurm), user="jovyan")
    store.write_manifest(draft.directory, campaign)
    for job in slurm.jobs.values():
        job.name = f"proj-{job.name[:12]}"
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


def test_a_refused_array_is_looked_for_before_anything_is_submitted_in_its_place(tmp_path):
    refusal = failed("sbatch: error: Batch job submission failed: Invalid qos specification")
    draft, slurm = drafted(tmp_path), Slurm(sbatch=[refusal, None])
    with pytest.raises(SchedulerError, match="Invalid qos"):
        drafts.submit(draft, slurm)
    array = store.read_manifest(draft.directory).arrays[0]
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
    draft = drafted(tmp_path)
    (array,) = draft.campaign.arrays
    job = scontrol("100", name=f"proj-{array.name}", uid=os.geteuid()).rstrip()
    job = job.replace("Dependency=(null)", "Dependency=singleton(unfulfilled)")
    others = "   Requeue=0 TimeLimit=00:05:00 NumNodes=1-1 Partition=other\n   StdOut=/tmp/x.out\n"
    campaign = drafts.submit(draft, Slurm(scontrol=f"{job}\n{others}"))
    assert campaign.arrays[0].changed == (
        ("JobName", array.name, f"proj-{array.name}"),
        ("TimeLimit", "01:00:00", "00:05:00"),
        ("Requeue", "1", "0"),
        ("StdOut", f"{draft.directory}/slurm/%A_%a.out", "/tmp/x.out"),
        ("Dependency", "", "singleton(unfulfilled)"),
        ("WorkDir", os.path.realpath(draft.directory), "/nowhere"),
    )
    assert store.read_manifest(draft.directory) == campaign
    # A job with several partitions that has started is in one of them.
    for requested, actual in (("a,b", "b"), ("a,b", "c"), ("gpu", "gpu"), ("", "gpu")):
        ((_, fields),) = read_jobs(scontrol("7").rstrip() + f"\n   Partition={actual}\n")
        changes = [("Partition", "a,b", "c")] if actual == "c" else []
        assert find_differences({"Partition": requested}, fields) == changes, requested
