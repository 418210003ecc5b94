import os
import sys
from dataclasses import replace
from functools import partial

import pytest

from hpcbert.scheduler.base import Pace, SchedulerContext
from hpcbert.scheduler.tracker import Tracker
from hpcbert.system.runner import run
from tests.kit.campaigns import Built, ended
from tests.kit.cases import cases
from tests.kit.slurm import NAME, Slurm, T, failed, sacct, squeue
from tests.kit.waiting import Clock

START = {"event": "start"}


def track(slurm, *watched, clock=None, chance=0.0, **options):
    """Return a tracker that has polled once."""
    context = SchedulerContext(slurm, clock or Clock(), chance=lambda: chance, environ={})
    tracker = Tracker(watched, context, **options)
    tracker.poll()
    return tracker


def words(tracker):
    return [state.word for state in tracker.states.values()]


def poll_at(tracker, clock, pause=100):
    clock.now += pause
    return [state.word for state in tracker.poll().values()]


@cases
def test_rows_of_slurm_become_states(
    watched, *, repeats, options, after, sacct_rows, squeue_rows, expected
):
    """In `expected`: attributes of the states of all repeats; of `detail`, a part of the first."""

    def print_rows(command, rows):
        """Return what prints `[job, state, changes]`, or `[complaint]` that it fails with."""
        if rows and len(rows[0]) == 1:
            return failed(rows[0][0], 127 if "no such program" in rows[0][0] else 1)
        calls = (command(job, word, **(more[0] if more else {})) for job, word, *more in rows or ())
        return "".join(calls)

    built = watched("camp", repeats=repeats or 1, **(options or {}))
    built.mark("1n1g", 1, *((START,) if "marks" in expected else ()), time=T)
    rows = partial(sacct, place=built.directory)
    slurm = Slurm(sacct=print_rows(rows, sacct_rows), squeue=print_rows(squeue, squeue_rows))
    tracker = track(slurm, built, clock=Clock(built.repeats[0].accepted + (after or 0.0)))
    states = list(tracker.states.values())
    for name, values in expected.items():
        if name == "detail":
            assert values in states[0].detail
        elif name != "marks":
            assert tuple(getattr(state, name) for state in states) == values
    assert tracker.garbage == ()


def test_all_campaigns_share_one_query_and_one_tracker_follows_both_schedulers(watched):
    here = watched("here", job_id="local-1-1", repeats=1, scheduler="local")
    slurm = Slurm(sacct=sacct("12_1", "RUNNING"), squeue=squeue("12_1", "RUNNING"))
    tracker = track(slurm, watched("camp", jobs=("12", "13")), watched("two", job_id="14"), here)
    assert (slurm.count("sacct"), slurm.count("squeue"), len(tracker.states)) == (1, 1, 7)
    argv = slurm.calls[0]
    assert argv[argv.index("-j") + 1] == "12,13,14"
    assert slurm.environments[0]["SLURM_TIME_FORMAT"] == "%s"
    assert tracker.states[NAME, 1].word == "RUNNING"
    assert tracker.states[NAME.replace("camp", "here"), 1].word == "UNKNOWN"
    assert tracker.pause() == 1.0


@cases
def test_without_accounting_squeue_and_the_jobs_themselves_are_asked(watched, complaint):
    built, clock = watched("camp", repeats=3), Clock()
    slurm = Slurm(sacct=failed(complaint), squeue=squeue("12_3", "RUNNING"))
    for repeat, code in ((1, 0), (2, 1)):
        built.mark("1n1g", repeat, START, *ended(code), time=T)
    tracker = track(slurm, built, clock=clock)
    sources = [state.source for state in tracker.states.values()]
    assert words(tracker) == ["COMPLETED", "FAILED", "RUNNING"]
    assert sources == ["status-file", "status-file", "squeue"]
    assert not tracker.is_over()
    poll_at(tracker, clock, 3600)
    assert slurm.count("squeue") == 2
    assert slurm.count("sacct") == 1, "what is not there is not asked again"


def test_a_refused_array_is_over_and_an_intended_one_is_looked_for_by_name(watched):
    refused = watched("refused", job_id="", repeats=1, state="refused", error="Invalid partition")
    slurm = Slurm(squeue=f"12_1 COMPLETED\n{squeue('77_[1-2%1]', 'PENDING')}")
    tracker = track(slurm, refused, watched("camp", job_id=""))
    assert words(tracker) == ["REFUSED", "PENDING", "PENDING"]
    assert "Invalid partition" in next(iter(tracker.states.values())).detail
    assert slurm.count("sacct") == 0
    assert tracker.garbage == ("12_1 COMPLETED",), "what makes no sense changes nothing"


def test_slurm_is_asked_in_a_pace_that_slows_down_and_takes_up_again(watched):
    slurm = Slurm(squeue=squeue("12_1", "RUNNING"), sacct=sacct("12_1", "RUNNING"))
    clock, built = Clock(), watched("camp", repeats=1)
    tracker = track(slurm, built, clock=clock, chance=0.5, floor=10)
    assert tracker.pause() == pytest.approx(11)
    for seconds, count in ((10.9, 1), (0.2, 2)):
        poll_at(tracker, clock, seconds)
        assert slurm.count("sacct") == count, "not before it is time"
    assert tracker.pause() == pytest.approx(15 * 1.1)
    pace, intervals = Pace(floor=10), []
    for _ in range(8):
        pace = pace.after(changed=False, failed=False)
        intervals.append(pace.interval)
    assert (intervals[:3], intervals[-1]) == ([10, 15, 22.5], 60)
    assert pace.after(changed=True, failed=False).interval == 10
    assert Pace(floor=10).after(changed=False, failed=True).interval == 20
    assert pace.after(changed=True, failed=True).interval == 60
    assert 60 <= pace.seconds(0.99) < 72
    assert Pace(floor=90).after(changed=False, failed=False).interval == 90
    # Changes are told once.
    tracker = Tracker([built], SchedulerContext(slurm, clock, chance=lambda: 0.0))
    assert list(tracker.poll()) == [(NAME, 1)]
    assert poll_at(tracker, clock) == []
    slurm.sacct = sacct("12_1", "COMPLETED")
    assert poll_at(tracker, clock) == ["COMPLETED"]
    assert tracker.is_over()
    count = slurm.count("sacct")
    assert poll_at(tracker, clock) == []
    assert slurm.count("sacct") == count, "what is over is not asked about"


def test_a_controller_that_fails_is_asked_seldom_and_its_failures_are_counted(watched):
    slurm, clock, lost = Slurm(), Clock(), "Unable to contact slurm controller"
    slurm.sacct = failed("sacct: error: Problem talking to the database: Connection refused")
    slurm.squeue = failed(f"slurm_load_jobs error: {lost}")
    tracker = track(slurm, watched("camp", repeats=1), clock=clock)
    for _ in range(19):
        poll_at(tracker, clock, 600)
    assert (tracker.failures, tracker.absent, tracker.is_over()) == (20, False, False)
    assert lost in tracker.complaint
    slurm.squeue = squeue("12_1", "RUNNING")
    assert poll_at(tracker, clock, 600) == ["RUNNING"]
    assert tracker.failures == 0
    # Ends that jobs wrote are asked about.
    for answer, repeats in ((sacct("12_[1-5]", "RUNNING"), 1), (failed("Connection refused"), 5)):
        built, clock = watched(f"camp{repeats}", repeats=repeats), Clock()
        built.mark("1n1g", 1, START, *ended(), time=T)
        slurm = Slurm(sacct=answer, squeue=failed(lost))
        tracker = Tracker([built], SchedulerContext(slurm, clock, chance=lambda: 0.0), floor=10)
        while clock.now < T + 3600:
            tracker.poll()
            clock.pause(max(0.1, min(tracker.pause(), tracker.seconds_to_news())))
        assert slurm.count("squeue") <= slurm.count("sacct") <= 70


def test_what_left_the_queue_unrecorded_is_given_up_after_a_while(watched):
    """As seen with 22.05.8: an element cancelled before it started never gets a row."""
    slurm, clock = Slurm(sacct=sacct("1_1", "COMPLETED")), Clock()
    tracker = track(slurm, watched("camp", job_id="1"), clock=clock)
    for is_over in (False, False, True):
        assert tracker.is_over() == is_over
        poll_at(tracker, clock)
    assert words(tracker) == ["COMPLETED", "UNKNOWN"]
    assert "never started" in list(tracker.states.values())[1].detail
    # slurmctld 22.05.8 killed before it saved its state: neither command has a trace of the job.
    built = watched("lost")
    clock.now = built.repeats[0].accepted + 5
    tracker = track(Slurm(), built, clock=clock)
    assert words(tracker) == ["UNKNOWN", "UNKNOWN"], "both commands may lag"
    assert poll_at(tracker, clock, 120) == ["LOST", "LOST"]
    state = tracker.states[built.repeats[0].key]
    assert state.detail.startswith("Slurm accepted job 12 but no longer knows it")
    for _ in range(5):
        poll_at(tracker, clock, 600)
    assert tracker.is_over()


def test_repeats_that_share_a_job_follow_its_status_files(watched):
    built, clock = watched("camp", job_id="9", repeats=3, together=True), Clock()
    slurm = Slurm(sacct=sacct("9", "RUNNING"), squeue=squeue("9", "RUNNING"))
    built.mark("1n1g", 1, START, *ended(), time=T)
    built.mark("1n1g", 2, START, time=T)
    tracker = track(slurm, built, clock=clock)
    assert words(tracker) == ["COMPLETED", "RUNNING", "PENDING"]
    assert not tracker.is_over()
    slurm.sacct = sacct("9", "COMPLETED")
    assert poll_at(tracker, clock) == ["COMPLETED"] * 2
    assert words(tracker) == ["COMPLETED"] * 3
    assert tracker.is_over()


def test_importing_submitit_leaves_logging_and_the_environment_alone(tmp_path):
    code = (
        "import logging, os; before = dict(os.environ); import hpcbert.scheduler.slurm.poller\n"
        "assert dict(os.environ) == before and not logging.getLogger('submitit').handlers\n"
    )
    env = {**os.environ, "SUBMITIT_LOG_LEVEL": "DEBUG"}
    outcome = run([sys.executable, "-W", "error", "-c", code], env=env, cwd=tmp_path)
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "", "")


def test_a_job_that_was_requeued_after_a_retry_replaced_it_is_told_of_and_is_no_attempt(watched):
    def retry(*jobs, name="camp", **changes):
        """Return a campaign whose only array a retry replaced."""
        built = watched(name, jobs=jobs, repeats=1, **changes)
        first = built.campaign.arrays[0]
        again = replace(first, name=f"{first.name}.t1", job_id=jobs[1], retry=1, first_attempt=1)
        return Built(built.directory, replace(built.campaign, arrays=(first, again)))

    for word in ("PENDING", "RUNNING", "FAILED"):
        built = retry("12", "20", name=f"camp{word}")
        first, again = (array.name for array in built.campaign.arrays)
        built.mark("1n1g", 1, START, *ended(), attempt=1, time=T)
        slurm = Slurm(
            sacct=sacct("12_1", "FAILED", exit_code="3:0", name=first)
            + sacct("20_1", "COMPLETED", name=again, submit=T + 60)
            + sacct("12_1", word, submit=T + 90, name=first)
        )
        (state,) = track(slurm, built, clock=lambda: T + 500.0).states.values()
        assert (state.word, state.attempt) == ("COMPLETED", 1)
        assert [(early.word, early.attempt) for early in state.earlier] == [("FAILED", 0)]
        assert f"job 12_1, which a retry replaced, was requeued and is {word}" in state.detail
        assert "its results are ignored" in state.detail
        assert "scancel 12_1" in state.detail
    # Where its states were asked about too, a second retry of a local campaign took 16 s.
    tracker = track(Slurm(), retry("local-1-1", "local-2-2", scheduler="local"))
    assert list(tracker.states) == [(f"{NAME}.t1", 1)]
    assert tracker.is_over()
    assert all(map(tracker.is_final, tracker.states))
