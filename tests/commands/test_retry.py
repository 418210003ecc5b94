"""What is submitted again, against a small Slurm whose queue and accounting are scripted."""

from dataclasses import replace

import pytest

from hpcbert.campaign import store
from hpcbert.campaign.repeats import open_campaign
from hpcbert.campaign.suspects import RetryPolicy
from hpcbert.cli.progress import Display
from hpcbert.commands import retry
from hpcbert.errors import SchedulerError, UsageError
from hpcbert.model import Shape
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.script import request
from tests.kit import campaigns, cli, drafts, logs
from tests.kit.cases import cases
from tests.kit.slurm import PROGRAMS, Slurm
from tests.kit.waiting import Clock

pytestmark = pytest.mark.slow

NOW = 1763700000


def list_numbers(repeats):
    return [repeat.number for repeat in repeats]


class Bench:
    """A campaign of one point, five repeats, submitted to a scripted Slurm."""

    def __init__(self, where, **options):
        fields = {"model": "bert-tiny", "iters": 12, "skip": 2, **options}
        self.draft = drafts.drafted(where, drafts.combined(Shape(1, 1), ("fp32",), (2,), **fields))
        self.directory, self.slurm = self.draft.directory, Slurm(first=10, now=NOW)
        drafts.submit(self.draft, self.slurm)

    @property
    def campaign(self):
        return store.read_manifest(self.directory)

    def end(self, *repeats, state="COMPLETED", node="n1", attempt=0, log=""):
        """Let repeats end on a node; only completed ones write their end, and a whole log."""
        built = campaigns.Built(self.directory, self.campaign)
        for repeat in repeats:
            array = [array for array in built.campaign.arrays if repeat in array.repeats][-1]
            self.slurm.jobs[array.job_id].end(state, repeat, node=node)
            start = {"event": "start", "job": array.element(repeat), "nodelist": node}
            built.mark("1n1g", repeat, start, {"event": "step"}, time=NOW, attempt=attempt)
            if state == "COMPLETED":
                built.ended("1n1g", repeat, time=NOW, attempt=attempt)
                log = f"this is repeat {repeat}\n{logs.log('1n1g', 10.0, batch=2)}"
            if log:
                built.log("1n1g", repeat, log, attempt)

    def look(self, *, dry=False, **policy):
        clock = Clock(NOW)
        context = SchedulerContext(self.slurm, clock, clock.pause, again="hpcbert retry")
        return retry.find_invalid(self.directory, RetryPolicy(**policy), context, dry=dry)

    def plan(self, **policy):
        return retry.plan_retry(self.look(), RetryPolicy(**policy), run=self.slurm)

    def retry(self):
        retry.write_retry(self.plan())
        return drafts.submit(self.draft, self.slurm).arrays[-1]


@pytest.fixture
def three_of_five(tmp_path):
    bench = Bench(tmp_path)
    bench.end(1, 3, 5)
    bench.end(2, state="FAILED", node="n2")
    bench.end(4, state="NODE_FAIL", node="n4")
    return bench


def test_only_what_does_not_count_is_submitted_again(three_of_five):
    (array,) = three_of_five.plan(exclude=("n7", "n4")).arrays
    assert [node for node, _ in array.excluded] == ["n7", "n4", "n2"]
    (array,) = three_of_five.plan(suspect=False).arrays
    assert array.excluded == ()
    array = three_of_five.retry()
    assert array.repeats == (2, 4)
    assert (array.retry, array.first_attempt, array.job_id) == (1, 1, "11")
    assert array.name == f"{three_of_five.campaign.arrays[0].name}.t1"
    assert [(number, word) for number, word, _ in array.why] == [(2, "FAILED"), (4, "NODE_FAIL")]
    assert "in the measured step" in array.why[0][2]
    assert [node for node, _ in array.excluded] == ["n4", "n2"]
    assert array.request.exclude == "n4,n2"
    assert "--dependency=afterany:10" in three_of_five.slurm.called("sbatch")[-1]
    # Nothing is submitted twice, and a repeat no more often than allowed.
    assert three_of_five.look().invalid == ()
    assert three_of_five.slurm.count("sbatch") == 2
    three_of_five.end(2, 4, state="TIMEOUT", attempt=1)
    three_of_five.retry()
    three_of_five.end(2, 4, state="TIMEOUT", attempt=2)
    plan = three_of_five.look()
    assert (plan.invalid, list_numbers(plan.spent)) == ((), [2, 4])
    assert list_numbers(three_of_five.look(limit=3).invalid) == [2, 4]


def test_attempts_go_on_where_slurms_own_ended_and_no_two_jobs_run_one(three_of_five):
    three_of_five.end(2, state="FAILED", node="n2", attempt=1)
    array = three_of_five.retry()
    assert array.first_attempt == 2
    assert "\nfirst_attempt=2 " in (three_of_five.directory / array.script).read_text()
    # Two jobs that ran one attempt spoil its number.
    path = three_of_five.directory / three_of_five.campaign.arrays[0].status(1)
    start = '{"event": "start", "time": 1, "attempt": 0, "job": "99_1", "nodelist": "n5"}'
    path.write_text(f"{start}\n{path.read_text()}")
    (invalid,) = three_of_five.look().invalid
    assert invalid.number == 1
    assert "the jobs 99_1 and 10_1 ran it at the same time" in invalid.why


@pytest.mark.parametrize("last", ["FAILED", "NODE_FAIL"])
def test_only_a_dry_retry_asks_nothing_about_ends_on_record(tmp_path, last):
    bench = Bench(tmp_path)
    bench.end(1, 2, 3, 4)
    bench.end(5, state=last)
    states = campaigns.report_states(*["COMPLETED"] * 4, last)
    campaigns.collect_campaigns(bench.directory, states=states)
    for dry in (True, False):
        count = len(bench.slurm.calls)
        plan = bench.look(dry=dry)
        assert [(repeat.number, repeat.state) for repeat in plan.invalid] == [(5, last)]
        # Slurm may have put a job that lost its node back into the queue.
        assert (len(bench.slurm.calls) == count) == (dry and last == "FAILED")


def test_nodes_that_the_script_names_are_not_kept_away_from(tmp_path):
    """sbatch refuses a job that has to run on a node and must not."""
    site = drafts.changed(drafts.reference(tmp_path), slurm={"nodelist": "n2"})
    bench = Bench(site)
    bench.end(1, 2, 3, 4)
    bench.end(5, state="FAILED", node="n2")
    assert [node for node, _ in bench.plan().spared] == ["n2"]
    array = bench.retry()
    assert (array.request.nodelist, array.request.exclude) == ("n2", "")


def test_what_waits_or_runs_or_was_cancelled_is_left_alone(tmp_path):
    bench = Bench(tmp_path)
    slurm = bench.slurm
    bench.end(1, state="FAILED")
    plan = bench.look()
    assert (list_numbers(plan.invalid), plan.open) == ([1], 4)
    bench.end(2, 3)
    # For a moment a job that Slurm puts back stands as NODE_FAIL, and squeue shows nothing.
    bench.end(4, state="NODE_FAIL")
    (job,) = slurm.jobs.values()
    count = slurm.count("squeue") + 2

    def requeue(program):
        if (program, slurm.count("squeue")) == ("squeue", count):
            job.end("PENDING", 4, node="")

    slurm.before = requeue
    plan = bench.look()
    assert (list_numbers(plan.invalid), plan.open) == ([1], 2)
    bench.end(4, state="CANCELLED by 1000")
    bench.end(5, state="FAILED")
    slurm.forgets.add("CANCELLED")
    assert list_numbers(bench.look().invalid) == [1, 4, 5]
    assert list_numbers(bench.look(cancelled=False).invalid) == [1, 5]
    slurm.away = set(PROGRAMS)
    with pytest.raises(SchedulerError, match="does not say what waits or runs") as refused:
        bench.look()
    assert f"hpcbert retry {bench.campaign.id}" in refused.value.hint
    assert slurm.count("sbatch") == 1


def test_a_crash_while_retrying_loses_and_doubles_nothing(three_of_five):
    slurm = three_of_five.slurm
    retry.write_retry(three_of_five.plan())
    slurm.dies = True
    with pytest.raises(KeyboardInterrupt):
        drafts.submit(three_of_five.draft, slurm)
    slurm.dies = False
    assert three_of_five.campaign.arrays[-1].state == "intended"
    # Who watches finds the job; while Slurm is silent, nobody knows.
    watched = open_campaign(three_of_five.directory)
    assert campaigns.adopted(watched, run=Slurm(away=set(PROGRAMS))) == watched
    campaign = drafts.submit(three_of_five.draft, slurm)
    assert [array.job_id for array in campaign.arrays] == ["10", "11"]
    assert list(slurm.jobs) == ["10", "11"]
    assert three_of_five.look().invalid == ()


def test_who_watches_submits_again_only_within_the_limit_and_no_rehearsal(three_of_five):
    directory, slurm = three_of_five.directory, three_of_five.slurm
    three_of_five.end(4, state="CANCELLED")

    def watch(limit, *, once=False):
        retry.watch_and_retry(
            [open_campaign(directory)], RetryPolicy(limit), Display(err=True), run=slurm,
            floor=1.0, once=once, pause=lambda _: three_of_five.end(2, attempt=1),
        )  # fmt: skip

    campaign = three_of_five.campaign
    watch(0)
    watch(3, once=True)
    store.write_manifest(directory, replace(campaign, rehearse=True))
    watch(3)
    assert slurm.count("sbatch") == 1
    store.write_manifest(directory, campaign)
    watch(3)
    assert slurm.count("sbatch") == 2
    assert three_of_five.campaign.arrays[-1].repeats == (2,)


def test_a_second_retry_and_a_changed_script_are_refused(three_of_five):
    campaign, first, second = three_of_five.campaign, three_of_five.plan(), three_of_five.plan()
    retry.write_retry(first)
    with pytest.raises(UsageError, match="Another process changed the campaign"):
        retry.write_retry(second)
    assert len(three_of_five.campaign.arrays) == 2
    store.write_manifest(three_of_five.directory, campaign)
    script = three_of_five.directory / campaign.arrays[0].script
    script.write_text(script.read_text() + "# changed\n")
    with pytest.raises(UsageError, match="differs from the one that was rendered"):
        three_of_five.plan()


def test_what_reached_its_time_limit_is_repeated_with_a_longer_one_only(tmp_path):
    bench = Bench(tmp_path)
    bench.end(1, 5)
    bench.end(2, 4, state="TIMEOUT")
    bench.end(3, state="FAILED")

    def refuse(limit):
        plan = bench.look()
        ends = [(repeat.array, repeat.number, repeat.state) for repeat in plan.invalid]
        request.refuse_pointless(plan.watched, ends, limit)

    for limit in ("", "1:00:00", "60", "0-1", "30"):
        with pytest.raises(UsageError, match=r"repeat 2.*repeat 4 reached the time") as refused:
            refuse(limit)
        hint = refused.value.hint
        assert hint.endswith(f"hpcbert retry '{bench.directory}' --time 02:00:00")
    for limit in ("61", "1-12", "UNLIMITED", "0"):
        refuse(limit)
        (array,) = bench.plan(time_limit=limit).arrays
        assert (array.repeats, array.request.time_limit) == ((2, 3, 4), limit)
    # Unattended, it is left alone.
    assert list_numbers(bench.look(cancelled=False).invalid) == [3]
    assert list_numbers(bench.look(cancelled=False, time_limit="2:00:00").invalid) == [2, 3, 4]
    # A longer limit stays for the next retry.
    retry.write_retry(bench.plan(time_limit="2:00:00"))
    drafts.submit(bench.draft, bench.slurm)
    bench.end(2, 3, state="FAILED", attempt=1)
    bench.end(4, attempt=1)
    (array,) = bench.plan().arrays
    assert array.request.time_limit == "2:00:00"
    bench.end(2, state="TIMEOUT", attempt=1)
    with pytest.raises(UsageError, match="02:00:00") as refused:
        refuse("")
    assert "--time 04:00:00" in refused.value.hint


@cases
def test_what_ran_out_of_the_devices_memory_would_again(
    tmp_path, monkeypatch, *, state, fails, killed, exclude, too_large: list[int]
):
    bench = Bench(tmp_path)
    shortage = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.\n"
    bench.end(*range(1, 6 - fails))
    bench.end(*range(6 - fails, 6 - killed), state=state, log=shortage)
    bench.end(*range(6 - killed, 6), state=state, log="Killed\n")
    for cancelled in (True, False):
        plan = bench.look(cancelled=cancelled, exclude=exclude)
        assert list_numbers(plan.too_large) == too_large
        expected = [repeat for repeat in range(6 - fails, 6) if repeat not in too_large]
        assert list_numbers(plan.invalid) == expected
        details = [repeat.why for repeat in plan.too_large]
        assert all("device-oom: the device ran out of memory" in detail for detail in details)
    if too_large:
        monkeypatch.setattr("hpcbert.cli.retry.resubmit", lambda *_, **__: bench.plan())
        result = cli.run("retry", bench.directory, "--json")
        (campaign,) = result.data["campaigns"]
        assert [entry["repeat"] for entry in campaign["too_large"]] == too_large
        assert [array["repeats"][0]["repeat"] for array in campaign["arrays"]] == [5]
        for number, error in zip(too_large, result.document["errors"], strict=True):
            text = f"repeat {number} ran out of device memory, and would do so again."
            assert text in error["message"]
            assert "--batch-size" in error["hint"]
            assert "--exclude NODE" in error["hint"]
