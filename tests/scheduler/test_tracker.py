import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from hpcbert.scheduler.base import Pace
from hpcbert.scheduler.tracker import Tracker
from hpcbert.system.runner import run
from tests.kit.campaigns import Built
from tests.kit.cases import cases
from tests.kit.slurm import NAME, Answer, Slurm, T, failed, sacct, squeue
from tests.kit.waiting import Clock

START = {"event": "start", "time": T}


def end(code: int = 0) -> dict[str, Any]:
    return {"event": "end", "time": T + 5, "exit": code}


def track(slurm: Slurm, *watched: Built, clock: Callable[[], float] | None = None) -> Tracker:
    """Return a tracker that has polled once."""
    tracker = Tracker(watched, run=slurm, clock=clock or Clock(), chance=lambda: 0.0)
    tracker.poll()
    return tracker


def words(tracker: Tracker) -> list[str]:
    return [state.word for state in tracker.states.values()]


def poll_at(tracker: Tracker, clock: Clock, pause: float = 100) -> list[str]:
    clock.now += pause
    tracker.poll()
    return words(tracker)


def print_rows(command: Callable[..., str], rows: Sequence[Any] | None) -> str | Answer:
    """Return what a command prints of `[job, state, changes]`, or `[complaint]` that it fails with."""
    if rows and len(rows[0]) == 1:
        (complaint,) = rows[0]
        return failed(complaint, 127 if "no such program" in complaint else 1)
    return "".join(
        command(job, word, **(more[0] if more else {})) for job, word, *more in rows or ()
    )


@cases
def test_rows_of_slurm_become_states(
    tracked, *, repeats, options, after, sacct_rows,
    squeue_rows, expected,
):  # fmt: skip
    """In `expected`: attributes of the states of all repeats; of `detail`, a part of the first."""
    built = tracked("12", repeats=repeats or 1, **(options or {}))
    built.mark("1n1g", 1, *((START,) if "marks" in expected else ()))
    rows = partial(sacct, place=built.directory)
    slurm = Slurm(sacct=print_rows(rows, sacct_rows), squeue=print_rows(squeue, squeue_rows))
    clock = Clock(built.repeats[0].accepted + (after or 0.0))
    tracker = Tracker([built], run=slurm, environ={}, clock=clock, chance=lambda: 0.0)
    tracker.poll()
    states = list(tracker.states.values())
    for name, values in expected.items():
        if name == "detail":
            assert values in states[0].detail
        elif name != "marks":
            assert tuple(getattr(state, name) for state in states) == values
    assert tracker.garbage == ()


def test_all_campaigns_share_one_query_and_one_tracker_follows_both_schedulers(tracked):
    here = tracked("local-1-1", repeats=1, name="here", scheduler="local")
    slurm = Slurm(sacct=sacct("12_1", "RUNNING"), squeue=squeue("12_1", "RUNNING"))
    tracker = track(slurm, tracked("12", "13"), tracked("14", name="two"), here)
    assert (slurm.count("sacct"), slurm.count("squeue"), len(tracker.states)) == (1, 1, 16)
    argv = slurm.calls[0]
    assert argv[argv.index("-j") + 1] == "12,13,14"
    assert slurm.environments[0]["SLURM_TIME_FORMAT"] == "%s"
    assert tracker.states[NAME, 1].word == "RUNNING"
    assert tracker.states[NAME.replace("camp", "here"), 1].word == "UNKNOWN"
    assert tracker.pause() == 1.0


@pytest.mark.parametrize(
    "complaint",
    ["Slurm accounting storage is disabled", "fatal: Could not establish a configuration source"],
)
def test_without_accounting_squeue_and_the_jobs_themselves_are_asked(tracked, complaint):
    built, clock = tracked("12", repeats=3), Clock()
    slurm = Slurm(sacct=failed(complaint), squeue=squeue("12_3", "RUNNING"))
    built.mark("1n1g", 1, START, end(0))
    built.mark("1n1g", 2, START, end(1))
    tracker = track(slurm, built, clock=clock)
    sources = [state.source for state in tracker.states.values()]
    assert words(tracker) == ["COMPLETED", "FAILED", "RUNNING"]
    assert sources == ["status-file", "status-file", "squeue"]
    assert not tracker.is_over()
    poll_at(tracker, clock, 3600)
    assert slurm.count("squeue") == 2
    assert slurm.count("sacct") == 1, "what is not there is not asked again"


def test_a_refused_array_is_over_and_an_intended_one_is_looked_for_by_name(tracked):
    refused = tracked("", repeats=1, name="refused", state="refused", error="Invalid partition")
    slurm = Slurm(squeue=f"12_1 COMPLETED\n{squeue('77_[1-2%1]', 'PENDING')}")
    tracker = track(slurm, refused, tracked("", repeats=2, name="camp"))
    assert words(tracker) == ["REFUSED", "PENDING", "PENDING"]
    assert "Invalid partition" in next(iter(tracker.states.values())).detail
    assert slurm.count("sacct") == 0
    assert tracker.garbage == ("12_1 COMPLETED",), "what makes no sense changes nothing"


def test_changes_are_told_once(tracked):
    slurm = Slurm(squeue=squeue("12_1", "RUNNING"), sacct=sacct("12_1", "RUNNING"))
    clock = Clock()
    tracker = Tracker([tracked("12", repeats=1)], run=slurm, clock=clock, chance=lambda: 0.0)
    assert list(tracker.poll()) == [(NAME, 1)]
    clock.now += 100
    assert tracker.poll() == {}
    slurm.sacct = sacct("12_1", "COMPLETED")
    clock.now += 100
    assert [state.word for state in tracker.poll().values()] == ["COMPLETED"]
    assert tracker.is_over()
    count = slurm.count("sacct")
    clock.now += 100
    assert tracker.poll() == {}
    assert slurm.count("sacct") == count, "what is over is not asked about"


def test_slurm_is_asked_in_a_pace_that_slows_down_and_takes_up_again(tracked):
    slurm = Slurm(squeue=squeue("12_1", "RUNNING"), sacct=sacct("12_1", "RUNNING"))
    clock, built = Clock(), tracked("12", repeats=1)
    tracker = Tracker([built], run=slurm, clock=clock, chance=lambda: 0.5, floor=10)
    tracker.poll()
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


def test_failures_are_counted_until_somebody_answers(tracked):
    slurm, clock = Slurm(), Clock()
    slurm.sacct = failed("sacct: error: Problem talking to the database: Connection refused")
    slurm.squeue = failed("slurm_load_jobs error: Unable to contact slurm controller")
    tracker = track(slurm, tracked("12", repeats=1), clock=clock)
    for _ in range(19):
        poll_at(tracker, clock, 600)
    assert (tracker.failures, tracker.absent, tracker.is_over()) == (20, False, False)
    assert "Unable to contact" in tracker.complaint
    slurm.squeue = squeue("12_1", "RUNNING")
    assert poll_at(tracker, clock, 600) == ["RUNNING"]
    assert tracker.failures == 0


def test_an_element_that_left_the_queue_unrecorded_is_given_up_after_a_while(tracked):
    """As seen with 22.05.8: an element cancelled before it started never gets a row."""
    slurm, clock = Slurm(sacct=sacct("1_1", "COMPLETED")), Clock()
    tracker = track(slurm, tracked("1", repeats=2), clock=clock)
    over = [tracker.is_over(), *((poll_at(tracker, clock), tracker.is_over())[1] for _ in "ab")]
    assert over == [False, False, True]
    assert words(tracker) == ["COMPLETED", "UNKNOWN"]
    assert "never started" in list(tracker.states.values())[1].detail


def test_repeats_that_share_a_job_follow_its_status_files(tracked):
    built, clock = tracked("9", repeats=3, together=True), Clock()
    slurm = Slurm(sacct=sacct("9", "RUNNING"), squeue=squeue("9", "RUNNING"))
    built.mark("1n1g", 1, START, end())
    built.mark("1n1g", 2, START)
    tracker = track(slurm, built, clock=clock)
    assert words(tracker) == ["COMPLETED", "RUNNING", "PENDING"]
    assert not tracker.is_over()
    slurm.sacct = sacct("9", "COMPLETED")
    assert poll_at(tracker, clock) == ["COMPLETED"] * 3
    assert tracker.is_over()


@pytest.mark.slow
def test_importing_submitit_leaves_logging_and_the_environment_alone(tmp_path):
    code = (
        "import logging, os; before = dict(os.environ); import hpcbert.scheduler.slurm.poller\n"
        "assert dict(os.environ) == before and not logging.getLogger('submitit').handlers\n"
    )
    env = {**os.environ, "SUBMITIT_LOG_LEVEL": "DEBUG"}
    outcome = run([sys.executable, "-W", "error", "-c", code], env=env, cwd=tmp_path)
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "", "")
    assert logging.getLogger("submitit").handlers == []


def test_an_array_that_slurm_accepted_and_forgot_is_said_to_be_lost(tracked):
    """slurmctld 22.05.8 killed before it saved its state: neither command has a trace of the job."""
    built, clock = tracked("12", repeats=2), Clock()
    clock.now = built.repeats[0].accepted + 5
    tracker = Tracker([built], run=Slurm(), environ={}, clock=clock, chance=lambda: 0.0)
    assert poll_at(tracker, clock, 0) == ["UNKNOWN", "UNKNOWN"], "both commands may lag"
    assert poll_at(tracker, clock, 120) == ["LOST", "LOST"]
    state = tracker.states[built.repeats[0].key]
    assert state.detail.startswith("Slurm accepted job 12 but no longer knows it")
    for _ in range(5):
        poll_at(tracker, clock, 600)
    assert tracker.is_over()


def retried(built: Built, job: str) -> Built:
    """Return a campaign whose only array a retry replaced."""
    first = built.campaign.arrays[0]
    again = replace(first, name=f"{NAME}.t1", job_id=job, retry=1, first_attempt=1)
    return Built(built.directory, replace(built.campaign, arrays=(first, again)))


@pytest.mark.parametrize("word", ["PENDING", "RUNNING", "FAILED"])
def test_a_job_that_was_requeued_after_a_retry_replaced_it_is_told_of_and_is_no_attempt(
    tracked, word
):
    built = retried(tracked("12", "20", repeats=1), "20")
    step = {"event": "step-end", "exit": 0}
    built.mark("1n1g", 1, START, step, end(), attempt=1)
    slurm = Slurm(
        sacct=sacct("12_1", "FAILED", exit_code="3:0")
        + sacct("20_1", "COMPLETED", name=f"{NAME}.t1", submit=T + 60)
        + sacct("12_1", word, submit=T + 90)
    )
    (state,) = track(slurm, built, clock=lambda: T + 500.0).states.values()
    assert (state.word, state.attempt) == ("COMPLETED", 1)
    assert [(early.word, early.attempt) for early in state.earlier] == [("FAILED", 0)]
    assert f"job 12_1, which a retry replaced, was requeued and is {word}" in state.detail
    lives = "will run nothing; to end it: scancel 12_1"
    assert ("its results are ignored" if word == "FAILED" else lives) in state.detail


@pytest.mark.parametrize(
    ("accounting", "repeats"), [("", 1), ("Connection refused", 5)], ids=["sacct", "neither"]
)
def test_a_controller_that_fails_is_asked_seldom_about_ends_that_jobs_wrote(
    tracked, accounting, repeats
):
    built, clock = tracked("12", repeats=repeats), Clock()
    built.mark("1n1g", 1, START, end())
    answer = failed(accounting) if accounting else sacct("12_[1-5]", "RUNNING")
    slurm = Slurm(sacct=answer, squeue=failed("Unable to contact slurm controller"))
    tracker = Tracker([built], run=slurm, clock=clock, chance=lambda: 0.0, floor=10)
    while clock.now < T + 3600:
        tracker.poll()
        clock.pause(max(0.1, min(tracker.pause(), tracker.seconds_to_news())))
    assert slurm.count("squeue") <= slurm.count("sacct") <= 70


def test_nobody_waits_for_what_a_retry_took_over(tracked):
    """Where its states were asked about too, a second retry of a local campaign took 16 s."""
    jobs = ("local-1-1", "local-2-2")
    built = retried(tracked(*jobs, repeats=1, scheduler="local"), jobs[1])
    tracker = track(Slurm(), built)
    assert list(tracker.states) == [(f"{NAME}.t1", 1)]
    assert tracker.is_over()
    assert all(map(tracker.is_final, tracker.states))
