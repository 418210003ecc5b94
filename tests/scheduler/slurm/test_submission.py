"""Jobs whose submission a site or an accident obscures: one sbatch an array, and each job is found."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert import scheduler
from hpcbert.campaign import store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.commands import submit
from hpcbert.commands import submit as flow
from hpcbert.errors import SchedulerError
from hpcbert.model import Array, format_utc
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.script.draft import Draft
from hpcbert.system.runner import Outcome
from tests.kit.campaigns import adopted, snapshot, updated
from tests.kit.drafts import changed, curve, drafted, hurried, reference
from tests.kit.slurm import Answer, Job, Slurm, failed

NAME, PLACE, COMMENT = {"name": "proj"}, {"script": "/tmp/copy", "place": "/tmp"}, {"comment": "x"}
MARKED = {
    "renamed": NAME,
    "moved": PLACE,
    "commented": COMMENT,
    "renamed and moved": {**NAME, **PLACE},
    "renamed and commented": {**NAME, **COMMENT},
    "moved and commented": {**PLACE, **COMMENT},
}
UNMARKED = {**NAME, **PLACE, **COMMENT}


@dataclass
class Wrapped(Slurm):
    """A site's own sbatch, or its job_submit plugin: it changes jobs, and prints what it likes."""

    changes: dict[str, str] = field(default_factory=dict)
    form: str = "{job}\n"
    code: int = 0
    complaint: str = ""

    def do_sbatch(self, argv: tuple[str, ...], cwd: str) -> Answer:
        number = super().do_sbatch(argv, cwd).out.strip()
        self.jobs[number] = replace(self.jobs[number], **self.changes)  # type: ignore[arg-type]
        return Answer(self.form.format(job=number), self.code, self.complaint)


def submit_draft(draft: Draft, slurm: Slurm) -> tuple[Array, ...]:
    flow.write_campaign(draft)
    return flow.submit(draft.directory, hurried(slurm)).arrays


def track_draft(draft: Draft) -> TrackedCampaign:
    return TrackedCampaign(draft.directory, store.read_manifest(draft.directory))


def start_job(draft: Draft, array: Array, job: str, **event: Any) -> None:
    """Write the start of an array's second repeat, as its job does."""
    start = {"event": "start", "time": 1, "attempt": 0, "job": f"{job}_2", "array": array.name}
    (draft.directory / array.status(2)).write_text(json.dumps({**start, **event}) + "\n")


@pytest.mark.slow
@pytest.mark.parametrize("hours", [-24 * 30, -2, 0, 5], ids="{} h".format)
@pytest.mark.parametrize("changes", MARKED.values(), ids=MARKED)
def test_a_job_that_keeps_one_mark_is_the_arrays_under_any_clock(
    tmp_path: Path, changes: dict[str, str], hours: int
) -> None:
    created = format_utc(time.time())
    draft = curve(tmp_path, ("fp32",))
    draft = replace(draft, campaign=replace(draft.campaign, created=created))
    slurm = Wrapped(changes=changes, now=time.time() + hours * 3600)
    arrays = submit_draft(draft, slurm)
    assert slurm.count("sbatch") == 2
    assert [(array.job_id, bool(array.seen), array.is_doubtful) for array in arrays] == [
        ("100", True, False),
        ("101", True, False),
    ]
    states = snapshot(track_draft(draft), run=slurm)
    assert {state.word for state in states.values()} == {"PENDING"}
    assert submit.find_living(track_draft(draft), run=slurm).jobs == ("100", "101")


@pytest.mark.slow
@pytest.mark.parametrize("changes", MARKED.values(), ids=MARKED)
@pytest.mark.parametrize("resumed", [False, True])
def test_killed_before_the_answer_the_job_is_found_and_can_be_cancelled(
    tmp_path: Path, changes: dict[str, str], *, resumed: bool
) -> None:
    draft, slurm = curve(tmp_path, ("fp32",)), Wrapped(changes=changes)
    flow.write_campaign(draft)

    def kill(program: str) -> None:
        if program == "scontrol":
            raise KeyboardInterrupt

    slurm.before = kill
    with pytest.raises(KeyboardInterrupt):
        flow.submit(draft.directory, hurried(slurm))
    slurm.before = lambda _: None
    campaign = flow.submit(draft.directory, hurried(slurm)._replace(resumed=resumed))
    assert [array.job_id for array in campaign.arrays] == ["100", "101"]
    assert slurm.count("sbatch") == 2
    assert submit.find_living(track_draft(draft), run=slurm).jobs == ("100", "101")


FORMS = {
    "the id": "{job}\n",
    "a banner around it": "Welcome\n{job}\nYou have 12 hours.\n",
    "without --parsable": "Submitted batch job {job}\n",
    "twice": "{job}\n{job}\n",
    "a quota after it": "{job}\n34\n",
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_an_id_without_any_mark_is_kept_in_doubt_until_the_job_begins(
    tmp_path: Path, form: str
) -> None:
    draft, slurm = curve(tmp_path, ("fp32",)), Wrapped(changes=UNMARKED, form=form)
    slurm.jobs["34"] = Job("of mine", "/home/x", "/home")
    arrays = submit_draft(draft, slurm)
    assert slurm.count("sbatch") == 2
    assert [array.job_id for array in arrays] == ["101", "102"]
    assert all(array.is_doubtful and array.state == "submitted" for array in arrays)
    assert ("JobName", arrays[0].name, "proj") in arrays[0].changed
    assert [entry[2] for entry in arrays[0].changed if entry[0] == "WorkDir"] == ["/tmp"]
    states = snapshot(track_draft(draft), run=slurm)
    assert {state.word for state in states.values()} == {"PENDING"}
    assert submit.find_living(track_draft(draft), run=slurm).jobs == ("101", "102")
    with pytest.raises(SchedulerError, match="is not over"):
        scheduler.create_scheduler("slurm", SchedulerContext(slurm)).refuse_doubling(
            track_draft(draft), [(arrays[0], 2)]
        )
    start_job(draft, arrays[0], "101")
    first, second = adopted(track_draft(draft), run=slurm).campaign.arrays
    assert (first.job_id, bool(first.seen), first.is_doubtful) == ("101", True, False)
    assert second.is_doubtful
    again = flow.submit(draft.directory, hurried(slurm)._replace(resumed=True))
    assert (slurm.count("sbatch"), again.arrays) == (2, (first, second))


PRINTED = [
    "{job}\n34\n",
    "34\n{job}\n",
    "Welcome\n\n{job}\nYou have 34 hours.\n",
    "34\n",
    "queued\n",
    "",
]


@pytest.mark.parametrize("form", PRINTED)
def test_a_number_of_a_sites_wrapper_is_not_taken_for_the_id(tmp_path: Path, form: str) -> None:
    draft, slurm = curve(tmp_path, ("fp32",)), Wrapped(form=form)
    slurm.jobs["34"] = Job("somebody else's")
    for array in submit_draft(draft, slurm):
        assert slurm.names[array.job_id] == array.name
        assert array.seen
    assert slurm.count("sbatch") == 2


@pytest.mark.parametrize("form", PRINTED[:2])
def test_an_id_that_nobody_confirms_now_is_confirmed_later(tmp_path: Path, form: str) -> None:
    draft = curve(tmp_path, ("fp32",))
    slurm = Wrapped(form=form, away={"scontrol", "squeue", "sacct"})
    with pytest.raises(SchedulerError):
        submit_draft(draft, slurm)
    assert [array.state for array in track_draft(draft).campaign.arrays] == ["intended"] * 2
    slurm.away = set()
    arrays = flow.submit(draft.directory, hurried(slurm)).arrays
    assert [slurm.names[array.job_id] for array in arrays] == [array.name for array in arrays]
    assert slurm.count("sbatch") == 2


def test_a_plain_answer_stands_while_the_controller_is_silent_and_is_settled_later(
    tmp_path: Path,
) -> None:
    draft = curve(tmp_path, ("fp32",))
    draft = replace(draft, campaign=replace(draft.campaign, arrays=draft.campaign.arrays[:1]))
    slurm = Wrapped(form="34\n", away={"scontrol"})
    slurm.jobs["34"] = Job("somebody else's")
    (array,) = submit_draft(draft, slurm)
    assert (array.job_id, array.seen) == ("34", "")
    (array,) = adopted(track_draft(draft), run=slurm).campaign.arrays
    assert (array.job_id, bool(array.seen)) == ("101", True)
    assert store.read_manifest(draft.directory).arrays == (array,)


def test_the_jobs_own_start_corrects_a_wrong_id(tmp_path: Path) -> None:
    draft = curve(tmp_path, ("fp32",))
    slurm = Wrapped(changes=UNMARKED, form="34\n")
    slurm.jobs["34"] = Job("of mine", "/home/x", "/home")
    flow.write_campaign(draft)
    with pytest.raises(SchedulerError, match="Slurm does not show which job"):
        flow.submit(
            draft.directory, hurried(slurm)
        )  # 34 is the first array's: the second has none.
    arrays = store.read_manifest(draft.directory).arrays
    assert [(array.job_id, array.is_doubtful) for array in arrays] == [("34", True), ("", False)]
    start_job(draft, arrays[0], "101")
    (first, _) = adopted(track_draft(draft), run=slurm).campaign.arrays
    assert (first.job_id, first.changed) == ("101", ())
    states = snapshot(track_draft(draft), run=slurm)
    assert states[first.name, 1].word == "PENDING"
    assert slurm.count("sbatch") == 2


ANSWERS = {
    "status 0 and nothing": ("", 0, ""),
    "status 0 and words": ("queued\n", 0, ""),
    "a failure after the id": ("{job}\n", 1, "the quota check timed out"),
    "a time-out after the id": ("{job}\n", 124, "sbatch gave no answer within 60 s"),
    "a lost answer after the id": ("{job}\n", 1, "Socket timed out"),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_what_can_not_be_recognized_is_not_submitted_again(
    tmp_path: Path, answer: tuple[str, int, str]
) -> None:
    form, code, complaint = answer
    draft = curve(tmp_path, ("fp32",))
    slurm = Wrapped(changes=UNMARKED, form=form, code=code, complaint=complaint)
    flow.write_campaign(draft)
    with pytest.raises(SchedulerError, match=r"ended with status \d+ and printed"):
        flow.submit(draft.directory, hurried(slurm))
    for resumed in (False, True):
        with pytest.raises(SchedulerError, match="Slurm does not show which job") as caught:
            flow.submit(draft.directory, hurried(slurm)._replace(resumed=resumed))
        assert f"submit --like {draft.campaign.id}" in caught.value.hint
        assert slurm.count("sbatch") == 1
    start_job(draft, draft.campaign.arrays[0], "100")
    with pytest.raises(SchedulerError):
        flow.submit(draft.directory, hurried(slurm))
    assert store.read_manifest(draft.directory).arrays[0].job_id == "100"
    assert slurm.count("sbatch") == 2


def test_a_start_of_another_arrays_job_settles_nothing(tmp_path: Path) -> None:
    draft, slurm = curve(tmp_path, ("fp32",)), Slurm()
    first, *_ = submit_draft(draft, slurm)
    retry = replace(first, name=f"{first.name}.t1", first_attempt=1, job_id="", submit_time=None)
    # The user requeued the first job.
    start_job(draft, first, "100", attempt=1)
    assert track_draft(draft).find_begun_job(first) == "100"
    assert track_draft(draft).find_begun_job(retry) == ""
    assert track_draft(draft).find_begun_job(replace(first, name=f"{first.name}.p4")) == "100"


OVER = {"waiting": "", "over": "COMPLETED", "forgotten": "gone"}


@pytest.mark.parametrize("change", OVER.values(), ids=OVER)
@pytest.mark.parametrize("changes", [{}, {**NAME, **PLACE}], ids=["as submitted", "changed"])
def test_a_restored_campaign_finds_its_jobs_by_one_question_each(
    tmp_path: Path, change: str, changes: dict[str, str]
) -> None:
    draft, slurm = curve(tmp_path), Wrapped(changes=changes)
    arrays = submit_draft(draft, slurm)
    store.write_manifest(draft.directory, draft.campaign)
    for number, job in list(slurm.jobs.items()):
        if change == "gone" or (change and changes):  # Accounting has no comment.
            start_job(draft, arrays[int(number) - 100], number)
        if change == "gone":
            del slurm.jobs[number]
        elif change:
            job.end(change)
    slurm.calls.clear()
    campaign = flow.submit(draft.directory, hurried(slurm)._replace(resumed=True))
    assert [array.job_id for array in campaign.arrays] == ["100", "101", "102", "103"]
    questions = {"": ["squeue"], "gone": [], "COMPLETED": [] if changes else ["squeue", "sacct"]}
    assert [call[0] for call in slurm.calls] == questions[change]
    assert store.read_manifest(draft.directory) == campaign


def test_a_campaign_restored_in_the_middle_submits_what_is_left(tmp_path: Path) -> None:
    draft, slurm = curve(tmp_path), Slurm()
    arrays = submit_draft(draft, slurm)
    store.write_manifest(draft.directory, updated(draft.campaign, arrays[0]))
    for number in ("102", "103"):
        del slurm.jobs[number]
    slurm.first = 200
    campaign = flow.submit(draft.directory, hurried(slurm)._replace(resumed=True))
    assert [array.job_id for array in campaign.arrays] == ["100", "101", "202", "203"]
    assert slurm.called("sbatch")[4][2] == "--dependency=afterany:101"


def test_a_restored_campaign_submits_nothing_while_squeue_is_silent(tmp_path: Path) -> None:
    draft, slurm = curve(tmp_path), Slurm()
    submit_draft(draft, slurm)
    store.write_manifest(draft.directory, draft.campaign)
    slurm.away = {"squeue", "sacct"}
    with pytest.raises(SchedulerError, match="is unknown whether"):
        flow.submit(draft.directory, hurried(slurm)._replace(resumed=True))
    assert slurm.count("sbatch") == 4


@dataclass
class Cached(Slurm):
    """A site whose squeue, and whose accounting, show the queue as it was a minute ago."""

    clock: float = 1_763_700_000.0
    fresh: float = 0.0

    def do_squeue(self, argv: tuple[str, ...], cwd: str) -> Answer:
        return super().do_squeue(argv, cwd) if self.clock >= self.fresh else Answer()

    def do_sacct(self, argv: tuple[str, ...], cwd: str) -> Answer:
        return super().do_sacct(argv, cwd) if self.clock >= self.fresh else Answer()

    def pause(self, seconds: float) -> None:
        self.clock += seconds


@pytest.mark.parametrize("away", [set(), {"scontrol"}], ids=["scontrol answers", "it does not"])
@pytest.mark.parametrize("step", [0, 30, -7200], ids=["at once", "later", "clock set back"])
@pytest.mark.parametrize("answer", ["killed", "lost"])
def test_an_empty_answer_from_a_cache_is_no_proof(
    tmp_path: Path, away: set[str], step: float, answer: str
) -> None:
    draft = curve(tmp_path, ("fp32",))
    slurm = Cached(now=1_763_700_000.0, away=away)
    context = SchedulerContext(slurm, lambda: slurm.clock, slurm.pause)
    flow.write_campaign(draft)
    if answer == "lost":
        lost = failed("sbatch: error: Batch job submission failed: Socket timed out", acts=True)
        slurm.sbatch = [lost, None]
        slurm.fresh = slurm.clock + 60
    else:
        slurm.dies = True
        with pytest.raises(KeyboardInterrupt):
            flow.submit(draft.directory, context)
        slurm.dies, slurm.fresh = False, slurm.clock + 60 + min(step, 0)
        slurm.clock += step
    campaign = flow.submit(draft.directory, context)
    assert sorted(slurm.jobs) == [array.job_id for array in campaign.arrays] == ["100", "101"]


def test_each_script_has_its_mark_and_the_users_own_comment_stays(tmp_path: Path) -> None:
    site = reference(tmp_path)
    for words in (), ("--comment=mine",), ("--comm", "my own"):
        draft = drafted(changed(site, slurm={"sbatch_args": words}))
        (array,) = draft.campaign.arrays
        (text,) = draft.scripts.values()
        assert (f"\n#SBATCH --comment={array.name}\n" in text) == (not words)
        assert f"\narray_name={array.name} " in text


def test_nobody_elses_job_is_kept_in_doubt(tmp_path: Path) -> None:
    draft, slurm = curve(tmp_path, ("fp32",)), Wrapped(changes=UNMARKED)

    def run_as_other(argv: Sequence[str], **more: Any) -> Outcome:
        outcome = slurm(argv, **more)
        return replace(outcome, stdout=re.sub(r"\(\d+\)", "(4321)", outcome.stdout))

    flow.write_campaign(draft)
    with pytest.raises(SchedulerError, match="printed 100, 'proj' of nobody in /tmp"):
        flow.submit(draft.directory, hurried(run_as_other))
    assert slurm.count("sbatch") == 1
