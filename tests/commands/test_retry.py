"""What is submitted again, against a small Slurm whose queue and accounting are scripted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from hpcbert.campaign import judge, measurements, store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.campaign.suspects import RetryPolicy
from hpcbert.cli.retry import _make_result
from hpcbert.commands import retry, submit
from hpcbert.errors import SchedulerError, UsageError
from hpcbert.logs.setting import Window
from hpcbert.model import Array, Campaign, Shape
from hpcbert.scheduler import create_scheduler
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.script.request import read_request, refuse_pointless
from tests.kit import campaigns
from tests.kit.campaigns import adopted, status_file
from tests.kit.drafts import changed, combined, drafted, reference
from tests.kit.logs import stand_in_log
from tests.kit.scripts import sbatch_options
from tests.kit.slurm import PROGRAMS, Slurm
from tests.kit.waiting import Clock

pytestmark = pytest.mark.slow

NOW = 1763700000


def _refuse_pointless(findings: retry.RetryPlan, limit: str) -> None:
    ended = [(repeat.array, repeat.number, repeat.state) for repeat in findings.invalid]
    refuse_pointless(findings.watched, ended, limit)


def numbers(repeats: Sequence[retry.InvalidRepeat]) -> list[int]:
    return [repeat.number for repeat in repeats]


@dataclass
class Bench:
    """A campaign of one point, five repeats, submitted to the scripted Slurm."""

    directory: Path
    slurm: Slurm

    @property
    def campaign(self) -> Campaign:
        return store.read_manifest(self.directory)

    @property
    def means(self) -> SchedulerContext:
        return SchedulerContext(self.slurm, lambda: float(NOW), lambda _: None)

    def ended(
        self, repeat: int, state: str = "COMPLETED", *, node: str = "n1", attempt: int = 0
    ) -> None:
        """Let a repeat end; only a completed one leaves a log and writes its end."""
        array = [array for array in self.campaign.arrays if repeat in array.repeats][-1]
        self.slurm.jobs[array.job_id].end(state, repeat, node=node)
        start = {"event": "start", "job": array.element(repeat), "nodelist": node}
        events = [start, {"event": "step"}]
        if state == "COMPLETED":
            events += campaigns.ended()
            self.said(repeat, f"this is repeat {repeat}\n{stand_in_log()}", attempt=attempt)
        path = self.directory / array.status(repeat)
        status_file(path, *events, time=NOW, attempt=attempt)

    def said(self, repeat: int, text: str, *, attempt: int = 0) -> None:
        """Leave a log."""
        array = [array for array in self.campaign.arrays if repeat in array.repeats][-1]
        path = store.log_path(self.directory, array, repeat, attempt)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def look(self, policy: RetryPolicy | None = None) -> retry.RetryPlan:
        clock = Clock(NOW)
        return retry.find_invalid(
            self.directory, policy or RetryPolicy(), run=self.slurm, clock=clock, pause=clock.pause
        )

    def plan(self, policy: RetryPolicy | None = None) -> retry.RetryPlan:
        return retry.plan_retry(self.look(), policy or RetryPolicy(), run=self.slurm)

    def retry(self) -> Array:
        """Submit what is missing again, and return the new array."""
        (array,) = retry.write_retry(self.plan()).arrays[-1:]
        campaign = submit.submit(self.directory, self.means)
        return next(candidate for candidate in campaign.arrays if candidate.name == array.name)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    request = combined(
        Shape(1, 1), ("fp32",), batch_sizes=(2,), model="bert-tiny", iters=12, skip=2
    )
    draft = drafted(tmp_path, request)
    submit.write_campaign(draft)
    workbench = Bench(draft.directory, Slurm(first=10, now=NOW))
    submit.submit(workbench.directory, workbench.means)
    return workbench


@pytest.fixture
def three_of_five(bench: Bench) -> Bench:
    for repeat in (1, 3, 5):
        bench.ended(repeat)
    bench.ended(2, "FAILED", node="n2")
    bench.ended(4, "NODE_FAIL", node="n3")
    return bench


def test_only_what_does_not_count_is_submitted_again(three_of_five: Bench) -> None:
    array = three_of_five.retry()
    assert array.repeats == (2, 4)
    assert (array.retry, array.first_attempt, array.job_id) == (1, 1, "11")
    assert array.name == f"{three_of_five.campaign.arrays[0].name}.t1"
    assert [(number, word) for number, word, _ in array.why] == [(2, "FAILED"), (4, "NODE_FAIL")]
    assert "in the measured step" in array.why[0][2]
    assert [node for node, _ in array.excluded] == ["n3", "n2"]
    text = (three_of_five.directory / array.script).read_text()
    assert array.request.exclude == "n3,n2"
    assert read_request(sbatch_options(text)) == array.request


@pytest.mark.parametrize("last", ["FAILED", "NODE_FAIL"])
@pytest.mark.parametrize("dry", [True, False], ids=["dry", "submits"])
def test_only_a_dry_retry_asks_nothing_about_ends_on_record(
    bench: Bench, last: str, dry: bool
) -> None:
    for repeat in (1, 2, 3, 4):
        bench.ended(repeat)
    bench.ended(5, last)
    watched = TrackedCampaign(bench.directory, bench.campaign)
    states = create_scheduler("slurm", bench.means).states
    gathered = judge.gather(watched, rule="", window=Window(), states=states)
    measurements.record_results(watched, gathered, now=NOW)
    asked = len(bench.slurm.calls)
    clock = Clock(NOW)
    findings = retry.find_invalid(
        bench.directory, RetryPolicy(), run=bench.slurm, dry=dry, clock=clock, pause=clock.pause
    )
    assert [(repeat.number, repeat.state) for repeat in findings.invalid] == [(5, last)]
    # Slurm may have put a job that lost its node back into the queue.
    assert (len(bench.slurm.calls) == asked) == (dry and last == "FAILED")
    if last == "FAILED":
        judge.gather(watched, rule="", window=Window(), states=lambda _: pytest.fail("asked"))


def test_nodes_that_the_script_names_are_not_kept_away_from(tmp_path: Path) -> None:
    """sbatch refuses a job that has to run on a node and must not."""
    request = combined(Shape(1, 1), ("fp32",), batch_sizes=(2,), iters=12, skip=2, model="bert-tiny",
                      env=(("NCCL_ALGO", "Ring"),))  # fmt: skip
    draft = drafted(changed(reference(tmp_path), slurm={"nodelist": "n2"}), request)
    submit.write_campaign(draft)
    bench = Bench(draft.directory, Slurm(first=10, now=NOW))
    submit.submit(bench.directory, bench.means)
    for repeat in (1, 2, 3, 4):
        bench.ended(repeat)
    bench.ended(5, "FAILED", node="n2")
    assert [node for node, _ in bench.plan().spared] == ["n2"]
    array = bench.retry()
    text = (bench.directory / array.script).read_text()
    assert (array.request.nodelist, array.request.exclude) == ("n2", "")
    assert array.point.env == (("NCCL_ALGO", "Ring"),)
    (line,) = [line for line in text.splitlines() if "environment=(" in line]
    assert "NCCL_ALGO=Ring" in line


def test_what_waits_or_runs_is_left_alone(bench: Bench) -> None:
    bench.ended(1, "FAILED")
    findings = bench.look()
    assert numbers(findings.invalid) == [1]
    assert findings.open == 4
    bench.retry()
    assert bench.look().invalid == ()
    assert bench.slurm.count("sbatch") == 2


def test_a_job_that_slurm_puts_back_is_not_submitted_again(three_of_five: Bench) -> None:
    """For a moment a job that lost its node stands as NODE_FAIL, and squeue shows nothing."""
    slurm = three_of_five.slurm
    (job,) = slurm.jobs.values()
    count_before = slurm.count("squeue")

    def requeued(program: str) -> None:
        if program == "squeue" and slurm.count("squeue") == count_before + 2:
            job.end("PENDING", 4, node="")

    slurm.before = requeued
    findings = three_of_five.look()
    assert numbers(findings.invalid) == [2]
    assert findings.open == 1


def test_while_slurm_is_silent_nothing_is_submitted(three_of_five: Bench) -> None:
    three_of_five.slurm.away = set(PROGRAMS)
    with pytest.raises(SchedulerError, match="does not say what waits or runs"):
        three_of_five.look()
    assert three_of_five.slurm.count("sbatch") == 1


def test_no_repeat_is_submitted_more_often_than_allowed(three_of_five: Bench) -> None:
    for attempt in (1, 2):
        three_of_five.retry()
        for repeat in (2, 4):
            three_of_five.ended(repeat, "TIMEOUT", attempt=attempt)
    findings = three_of_five.look()
    assert (findings.invalid, numbers(findings.spent)) == (
        (),
        [2, 4],
    )
    more = three_of_five.look(RetryPolicy(limit=3))
    assert numbers(more.invalid) == [2, 4]


def test_what_somebody_cancelled_is_submitted_again_only_if_asked_for(bench: Bench) -> None:
    for repeat in (1, 2, 3):
        bench.ended(repeat)
    bench.ended(4, "CANCELLED by 1000")
    bench.ended(5, "FAILED")
    bench.slurm.forgets.add("CANCELLED")
    assert numbers(bench.look().invalid) == [4, 5]
    assert numbers(bench.look(RetryPolicy(cancelled=False)).invalid) == [5]


def test_attempts_go_on_where_slurms_own_ended(three_of_five: Bench) -> None:
    three_of_five.ended(2, "FAILED", node="n2", attempt=1)
    array = three_of_five.retry()
    assert array.first_attempt == 2
    text = (three_of_five.directory / array.script).read_text()
    assert "\nfirst_attempt=2 " in text


def test_nodes_can_be_chosen_and_suspicion_be_turned_off(three_of_five: Bench) -> None:
    (array,) = three_of_five.plan(RetryPolicy(exclude=("n7", "n3"))).arrays
    assert [node for node, _ in array.excluded] == ["n7", "n3", "n2"]
    (array,) = three_of_five.plan(RetryPolicy(suspect=False)).arrays
    assert array.excluded == ()


@pytest.mark.parametrize("queued", [False, True])
def test_a_crash_while_retrying_loses_and_doubles_nothing(
    three_of_five: Bench, queued: bool
) -> None:
    retry.write_retry(three_of_five.plan())
    if queued:
        three_of_five.slurm.dies = True
        with pytest.raises(KeyboardInterrupt):
            submit.submit(three_of_five.directory, three_of_five.means)
        three_of_five.slurm.dies = False
    assert three_of_five.campaign.arrays[-1].state == "intended"
    campaign = submit.submit(three_of_five.directory, three_of_five.means)
    assert [array.job_id for array in campaign.arrays] == ["10", "11"]
    assert list(three_of_five.slurm.jobs) == ["10", "11"]
    assert three_of_five.look().invalid == ()


def test_who_watches_finds_what_an_interrupted_submission_left(three_of_five: Bench) -> None:
    retry.write_retry(three_of_five.plan())
    three_of_five.slurm.dies = True
    with pytest.raises(KeyboardInterrupt):
        submit.submit(three_of_five.directory, three_of_five.means)
    watched = TrackedCampaign(three_of_five.directory, three_of_five.campaign)
    campaign = adopted(watched, run=three_of_five.slurm).campaign
    assert campaign == three_of_five.campaign
    assert campaign.arrays[-1].job_id == "11"
    silent = Slurm(away=set(PROGRAMS))
    assert adopted(watched, run=silent) == watched


def test_of_two_retries_at_once_one_wins(three_of_five: Bench) -> None:
    first, second = three_of_five.plan(), three_of_five.plan()
    retry.write_retry(first)
    with pytest.raises(UsageError, match="Another process changed the campaign"):
        retry.write_retry(second)
    assert len(three_of_five.campaign.arrays) == 2


def test_a_changed_script_and_a_rehearsal_are_not_submitted_again(three_of_five: Bench) -> None:
    script = three_of_five.directory / three_of_five.campaign.arrays[0].script
    script.write_text(script.read_text() + "# changed\n")
    with pytest.raises(UsageError, match="differs from the one that was rendered"):
        three_of_five.plan()
    campaign = replace(three_of_five.campaign, rehearse=True)
    store.write_manifest(three_of_five.directory, campaign)
    with pytest.raises(UsageError, match="rehearsal"):
        three_of_five.look()


def test_two_jobs_that_ran_one_attempt_spoil_its_number(three_of_five: Bench) -> None:
    array = three_of_five.campaign.arrays[0]
    path = three_of_five.directory / array.status(1)
    start = {"event": "start", "time": NOW, "attempt": 0, "job": "99_1", "nodelist": "n5"}
    path.write_text(f"{json.dumps(start)}\n{path.read_text()}")
    (lack,) = [
        invalid_repeat
        for invalid_repeat in three_of_five.look().invalid
        if invalid_repeat.number == 1
    ]
    assert "the jobs 99_1 and 10_1 ran it at the same time" in lack.why


@pytest.fixture
def late(bench: Bench) -> Bench:
    """Two repeats reached their time limit of an hour, one failed."""
    for repeat, state in enumerate(("COMPLETED", "TIMEOUT", "FAILED", "TIMEOUT", "COMPLETED"), 1):
        bench.ended(repeat, state)
    return bench


@pytest.mark.parametrize("limit", ["", "1:00:00", "60", "0-1", "30"])
def test_what_reached_its_time_limit_is_not_repeated_with_no_longer_one(
    late: Bench, limit: str
) -> None:
    with pytest.raises(UsageError, match=r"repeat 2.*repeat 4 reached the time limit") as refused:
        _refuse_pointless(late.look(), limit)
    assert refused.value.hint.endswith(f"hpcbert retry '{late.directory}' --time 02:00:00")
    assert late.slurm.count("sbatch") == 1


@pytest.mark.parametrize("limit", ["61", "1-12", "UNLIMITED", "0"])
def test_a_longer_time_limit_is_the_new_scripts_own(late: Bench, limit: str) -> None:
    _refuse_pointless(late.look(), limit)
    retry_plan = late.plan(RetryPolicy(time_limit=limit))
    (array,) = retry_plan.arrays
    assert array.repeats == (2, 3, 4)
    assert array.request.time_limit == limit


def test_a_longer_time_limit_stays_for_the_next_retry(late: Bench) -> None:
    retry.write_retry(late.plan(RetryPolicy(time_limit="2:00:00")))
    submit.submit(late.directory, late.means)
    for repeat in (2, 3, 4):
        late.ended(repeat, "FAILED" if repeat < 4 else "COMPLETED", attempt=1)
    retry_plan = late.plan()
    (array,) = retry_plan.arrays
    assert array.request.time_limit == "2:00:00"
    late.ended(2, "TIMEOUT", attempt=1)
    with pytest.raises(UsageError, match="02:00:00") as refused:
        _refuse_pointless(late.look(), "")
    assert "--time 04:00:00" in refused.value.hint


def test_unattended_what_reached_its_time_limit_is_left_alone(late: Bench) -> None:
    unattended = RetryPolicy(cancelled=False)
    assert numbers(late.look(unattended).invalid) == [3]
    longer = RetryPolicy(cancelled=False, time_limit="2:00:00")
    assert numbers(late.look(longer).invalid) == [2, 3, 4]


TOO_LARGE = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.\n"


@pytest.mark.parametrize("cancelled", [True, False], ids=["attended", "unattended"])
@pytest.mark.parametrize(
    ("state", "fails", "killed", "exclude", "too_large"),
    [
        ("FAILED", 5, 1, (), [1, 2, 3, 4]),
        # Away from the nodes where somebody else may have had it.
        ("FAILED", 5, 1, ("n1",), []),
        # Where the batch fits, another repeat may have had it.
        ("FAILED", 1, 0, (), []),
        ("OUT_OF_MEMORY", 5, 0, (), []),
    ],
    ids=["too large", "elsewhere", "it fits", "the host's memory"],
)
def test_what_ran_out_of_the_devices_memory_would_again(
    bench: Bench,
    *,
    cancelled: bool,
    state: str,
    fails: int,
    killed: int,
    exclude: tuple[str, ...],
    too_large: list[int],
) -> None:
    for repeat in range(1, 6):
        bench.ended(repeat, state if repeat > 5 - fails else "COMPLETED")
        if repeat > 5 - fails:
            bench.said(repeat, TOO_LARGE if repeat <= 5 - killed else "Killed\n")
    findings = bench.look(RetryPolicy(cancelled=cancelled, exclude=exclude))
    assert numbers(findings.too_large) == too_large
    expected = [repeat for repeat in range(6 - fails, 6) if repeat not in too_large]
    assert numbers(findings.invalid) == expected
    details = [repeat.why for repeat in findings.too_large]
    assert all("device-oom: the device ran out of memory" in detail for detail in details)


def test_the_command_says_what_would_not_fit_again(bench: Bench) -> None:
    for repeat in range(1, 6):
        bench.ended(repeat, "FAILED")
        bench.said(repeat, TOO_LARGE)
    result = _make_result([bench.plan()], dry=False)
    data: Any = result.data
    (campaign,) = data["campaigns"]
    assert campaign["arrays"] == []
    assert [entry["repeat"] for entry in campaign["too_large"]] == [1, 2, 3, 4, 5]
    assert len(result.errors) == 5
    assert "repeat 1 ran out of device memory, and would do so again." in str(result.errors[0])
    assert "--batch-size" in result.errors[0].hint
    assert "--exclude NODE" in result.errors[0].hint
