from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hpcbert.scheduler.base import Pace, SchedulerContext
from hpcbert.scheduler.slurm.poller import Watcher
from hpcbert.scheduler.tracker import Tracker
from tests.kit.campaigns import Build, Built
from tests.kit.cases import cases
from tests.kit.slurm import NAME, Answer, Slurm, T, failed, sacct, squeue
from tests.kit.waiting import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


def words(tracker: Tracker) -> list[str]:
    return [state.word for state in tracker.states.values()]


@pytest.fixture
def slurm() -> Slurm:
    """A scripted Slurm in this process."""
    return Slurm()


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
    tracked: Build,
    slurm: Slurm,
    *,
    repeats: int | None,
    options: dict[str, Any] | None,
    after: float | None,
    sacct_rows: Sequence[Any] | None,
    squeue_rows: Sequence[Any] | None,
    expected: dict[str, Any],
) -> None:
    """In `expected`: attributes of the states of all repeats; of `detail`, a part of the first."""
    built = tracked("12", repeats=repeats or 1, **(options or {}))
    built.mark("1n1g", 1, *(({"event": "start", "time": T},) if "marks" in expected else ()))
    slurm.sacct = print_rows(partial(sacct, place=built.directory), sacct_rows)
    slurm.squeue = print_rows(squeue, squeue_rows)
    clock = Clock(built.repeats[0].accepted + (after or 0.0))
    tracker = Tracker([built], run=slurm, environ={}, clock=clock, chance=lambda: 0.0)
    tracker.poll()
    states = list(tracker.states.values())
    for name, values in expected.items():
        if name == "detail":
            assert values in states[0].detail
        elif name != "marks":
            assert tuple(getattr(state, name) for state in states) == values


def test_all_campaigns_share_one_query(tracked: Build, slurm: Slurm) -> None:
    several = [tracked("12", "13", name="one"), tracked("14", name="two")]
    tracker = Tracker(several, run=slurm)
    tracker.poll()
    assert slurm.count("sacct") == 1
    assert slurm.count("squeue") == 1
    argv = slurm.calls[0]
    assert argv[argv.index("-j") + 1] == "12,13,14"
    assert len(tracker.states) == 15
    assert slurm.environments[0]["SLURM_TIME_FORMAT"] == "%s"


@pytest.mark.parametrize(
    "complaint",
    ["Slurm accounting storage is disabled", "fatal: Could not establish a configuration source"],
)
def test_without_accounting_squeue_and_the_jobs_themselves_are_asked(
    tracked: Build, slurm: Slurm, complaint: str
) -> None:
    built = tracked("12", repeats=3)
    slurm.sacct = failed(complaint)
    slurm.squeue = squeue("12_3", "RUNNING")
    start = {"event": "start", "time": T, "nodelist": "n[1-2]"}
    built.mark("1n1g", 1, start, {"event": "end", "time": T + 5, "exit": 0})
    built.mark("1n1g", 2, start, {"event": "end", "time": T + 5, "exit": 1})
    clock = Clock()
    tracker = Tracker([built], run=slurm, clock=clock)
    tracker.poll()
    observed = [(state.word, state.source) for state in tracker.states.values()]
    assert observed == [
        ("COMPLETED", "status-file"),
        ("FAILED", "status-file"),
        ("RUNNING", "squeue"),
    ]
    assert not tracker.is_over()
    clock.pause(3600)
    tracker.poll()
    assert slurm.count("squeue") == 2
    assert slurm.count("sacct") == 1, "what is not there is not asked again"


def test_a_refused_array_is_over_and_an_intended_one_is_looked_for_by_name(
    tracked: Build, slurm: Slurm
) -> None:
    refused = tracked("", repeats=1, name="refused", state="refused", error="Invalid partition")
    intended = tracked("", repeats=2, name="camp")
    slurm.squeue = squeue("77_[1-2%1]", "PENDING")
    tracker = Tracker([refused, intended], run=slurm)
    tracker.poll()
    assert words(tracker) == ["REFUSED", "PENDING", "PENDING"]
    assert "Invalid partition" in next(iter(tracker.states.values())).detail
    assert slurm.count("sacct") == 0


def test_output_that_makes_no_sense_changes_nothing(tracked: Build, slurm: Slurm) -> None:
    built = tracked("12", repeats=1)
    slurm.sacct = "\x00\xff|||\nCOMPLETED\n12_1|nobody|COMPLETED\n"
    slurm.squeue = "12_1 COMPLETED"
    tracker = Tracker([built], run=slurm)
    tracker.poll()
    assert words(tracker) == ["UNKNOWN"]
    assert tracker.garbage[-2:] == ("12_1|nobody|COMPLETED", "12_1 COMPLETED")


def test_changes_are_told_once(tracked: Build, slurm: Slurm, clock: Clock) -> None:
    built = tracked("12", repeats=1)
    slurm.squeue = squeue("12_1", "RUNNING")
    slurm.sacct = sacct("12_1", "RUNNING")
    tracker = Tracker([built], run=slurm, clock=clock, chance=lambda: 0.0)
    assert list(tracker.poll()) == [(NAME, 1)]
    clock.now += 100
    assert tracker.poll() == {}
    assert words(tracker) == ["RUNNING"]
    slurm.sacct = sacct("12_1", "COMPLETED")
    clock.now += 100
    assert [state.word for state in tracker.poll().values()] == ["COMPLETED"]
    assert tracker.is_over()
    clock.now += 100
    count = slurm.count("sacct")
    assert tracker.poll() == {}
    assert slurm.count("sacct") == count, "what is over is not asked about"


def test_slurm_is_not_asked_before_it_is_time(tracked: Build, slurm: Slurm, clock: Clock) -> None:
    built = tracked("12", repeats=1)
    slurm.squeue = squeue("12_1", "RUNNING")
    slurm.sacct = sacct("12_1", "RUNNING")
    tracker = Tracker([built], run=slurm, clock=clock, chance=lambda: 0.5, floor=10)
    tracker.poll()
    assert tracker.pause() == pytest.approx(11)
    clock.now += 10.9
    tracker.poll()
    assert slurm.count("sacct") == 1
    clock.now += 0.2
    tracker.poll()
    assert slurm.count("sacct") == 2
    assert tracker.pause() == pytest.approx(15 * 1.1)


def test_the_pace_slows_down_and_takes_up_again() -> None:
    pace, intervals = Pace(floor=10), []
    for _ in range(8):
        pace = pace.after(changed=False, failed=False)
        intervals.append(pace.interval)
    assert intervals[:3] == [10, 15, 22.5]
    assert intervals[-1] == 60
    assert pace.after(changed=True, failed=False).interval == 10
    assert Pace(floor=10).after(changed=False, failed=True).interval == 20
    assert pace.after(changed=True, failed=True).interval == 60
    assert 60 <= pace.seconds(0.99) < 72
    assert Pace(floor=90).after(changed=False, failed=False).interval == 90


def test_failures_are_counted_until_somebody_answers(
    tracked: Build, slurm: Slurm, clock: Clock
) -> None:
    limit = 10
    built = tracked("12", repeats=1)
    slurm.sacct = failed("sacct: error: Problem talking to the database: Connection refused")
    slurm.squeue = failed("slurm_load_jobs error: Unable to contact slurm controller")
    tracker = Tracker([built], run=slurm, clock=clock)
    for _ in range(20):
        tracker.poll()
        clock.now += limit * 60
    assert tracker.failures == 20
    assert not tracker.absent
    assert not tracker.is_over()
    assert "Unable to contact" in tracker.complaint
    slurm.squeue = squeue("12_1", "RUNNING")
    tracker.poll()
    assert tracker.failures == 0
    assert [(state.word, state.source) for state in tracker.states.values()] == [
        ("RUNNING", "squeue")
    ]


def test_a_lost_node_is_no_end_until_squeue_agrees(
    tracked: Build, slurm: Slurm, clock: Clock
) -> None:
    """As seen with 22.05.8: for seconds sacct has NODE_FAIL alone, squeue already PENDING."""
    built = tracked("15", repeats=1)
    tracker = Tracker([built], run=slurm, clock=clock)
    slurm.sacct = sacct("15_1", "NODE_FAIL")
    slurm.squeue = squeue("15_1", "PENDING", submit=T + 5)
    tracker.poll()
    assert (words(tracker), tracker.is_over()) == (["PENDING"], False)
    slurm.sacct += sacct("15_1", "RUNNING", submit=T + 5)
    slurm.squeue = squeue("15_1", "RUNNING", submit=T + 5)
    clock.now += 100
    tracker.poll()
    assert (words(tracker), tracker.is_over()) == (["RUNNING"], False)
    slurm.sacct = sacct("15_1", "NODE_FAIL") + sacct("15_1", "NODE_FAIL", submit=T + 5)
    slurm.squeue = squeue("15_1", "NODE_FAIL", submit=T + 5)
    over = []
    for _ in range(3):
        clock.now += 100
        tracker.poll()
        over.append(tracker.is_over())
    assert (words(tracker), over) == (["NODE_FAIL"], [False, False, True])


def test_an_element_that_left_the_queue_unrecorded_is_given_up_after_a_while(
    tracked: Build, slurm: Slurm, clock: Clock
) -> None:
    """As seen with 22.05.8: an element cancelled before it started never gets a row."""
    built = tracked("1", repeats=2)
    slurm.sacct = sacct("1_1", "COMPLETED")
    tracker = Tracker([built], run=slurm, clock=clock)
    polls = 0
    while not tracker.is_over():
        tracker.poll()
        clock.now += 100
        polls += 1
    assert words(tracker) == ["COMPLETED", "UNKNOWN"]
    assert polls == 3
    assert "never started" in list(tracker.states.values())[1].detail


def test_repeats_that_share_a_job_follow_its_status_files(
    tracked: Build, slurm: Slurm, clock: Clock
) -> None:
    built = tracked("9", repeats=3, together=True)
    slurm.sacct = sacct("9", "RUNNING")
    slurm.squeue = squeue("9", "RUNNING")
    start = {"event": "start", "time": T}
    built.mark("1n1g", 1, start, {"event": "end", "time": T + 5, "exit": 0})
    built.mark("1n1g", 2, start)
    tracker = Tracker([built], run=slurm, clock=clock)
    tracker.poll()
    assert words(tracker) == ["COMPLETED", "RUNNING", "PENDING"]
    assert not tracker.is_over()
    slurm.sacct = sacct("9", "COMPLETED")
    clock.now += 100
    tracker.poll()
    assert words(tracker) == ["COMPLETED"] * 3
    assert tracker.is_over()


def test_submitits_view_of_a_job_goes_by_our_table(tracked: Build, slurm: Slurm) -> None:
    built = tracked("12", repeats=4)
    slurm.sacct = (
        sacct("12_1", "CANCELLED by 1000")
        + sacct("12_2", "SUSPENDED")
        + sacct("12_3", "REQUEUE_HOLD")
        + sacct("12_4", "NODE_FAIL")
    )
    watcher = Watcher(built.repeats, SchedulerContext(slurm, environ={}))
    watcher.update()
    jobs = [f"12_{number}" for number in range(1, 5)]
    states = [watcher.get_state(job, mode="cache") for job in jobs]
    assert states == ["CANCELLED", "SUSPENDED", "REQUEUE_HOLD", "NODE_FAIL"]
    assert [watcher.is_done(job, mode="cache") for job in jobs] == [True, False, False, False]
    assert watcher.get_info("12_1", mode="cache")["NodeList"] == "n1"
    assert slurm.count("sacct") == 1
    assert not list(built.directory.rglob("*.pkl"))


@pytest.mark.slow
def test_importing_submitit_leaves_logging_and_the_environment_alone(tmp_path: Path) -> None:
    code = (
        "import logging, os\n"
        "before = dict(os.environ)\n"
        "import hpcbert.scheduler.slurm.poller\n"
        "assert dict(os.environ) == before\n"
        "assert logging.getLogger('submitit').handlers == []\n"
    )
    for level in (None, "DEBUG"):
        env = {**os.environ, **({"SUBMITIT_LOG_LEVEL": level} if level else {})}
        result = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            env=env, cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert logging.getLogger("submitit").handlers == []


def test_one_tracker_follows_both_schedulers(tracked: Build, slurm: Slurm, clock: Clock) -> None:
    built = tracked("local-1-1", repeats=1, name="here", scheduler="local")
    slurm_campaign = tracked("12", repeats=1)
    slurm.sacct = sacct("12_1", "RUNNING")
    slurm.squeue = squeue("12_1", "RUNNING")
    tracker = Tracker([built, slurm_campaign], run=slurm, clock=clock)
    tracker.poll()
    assert tracker.states[NAME, 1].word == "RUNNING"
    assert tracker.states[NAME.replace("camp", "here"), 1].word == "UNKNOWN"
    assert tracker.pause() == 1.0


def test_an_array_that_slurm_accepted_and_forgot_is_said_to_be_lost(
    tracked: Build, slurm: Slurm, clock: Clock
) -> None:
    """slurmctld 22.05.8 killed before it saved its state: neither command has a trace of the job."""
    built = tracked("12", repeats=2)
    clock.now = built.repeats[0].accepted + 5
    tracker = Tracker([built], run=slurm, environ={}, clock=clock, chance=lambda: 0.0)
    tracker.poll()
    assert words(tracker) == ["UNKNOWN", "UNKNOWN"], "both commands may lag"
    clock.now += 120
    tracker.poll()
    assert words(tracker) == ["LOST", "LOST"]
    state = tracker.states[built.repeats[0].key]
    assert state.detail.startswith("Slurm accepted job 12 but no longer knows it")
    for _ in range(5):
        clock.now += 600
        tracker.poll()
    assert tracker.is_over()


@pytest.mark.parametrize("later", [0, 1, 40], ids=["same-moment", "a-second", "later"])
@pytest.mark.parametrize("first", ["REVOKED", "COMPLETED"])
def test_a_sibling_of_a_federation_that_gave_a_job_up_is_no_attempt(
    tracked: Build, slurm: Slurm, first: str, later: int
) -> None:
    built = tracked("67108999", repeats=1)
    start, end = {"event": "start", "time": T + 1}, {"event": "end", "time": T + 9, "exit": 0}
    built.mark("1n1g", 1, start, end)
    words_ = (first, "COMPLETED" if first == "REVOKED" else "REVOKED")
    slurm.sacct = "".join(
        sacct("67108999_1", word, submit=T + number * later, place=built.directory, cluster=name)
        for number, (word, name) in enumerate(zip(words_, ("east", "west"), strict=True))
    )
    tracker = Tracker([built], run=slurm, clock=lambda: T + 500.0)
    tracker.poll()
    (state,) = tracker.states.values()
    assert (state.word, state.attempt, state.earlier) == ("COMPLETED", 0, ())


def test_somebodys_heterogeneous_job_keeps_no_lost_array_from_being_found(
    tracked: Build, slurm: Slurm, clock: Clock
) -> None:
    built = tracked("12", repeats=1)
    slurm.squeue = squeue("13+0", "RUNNING", name="het") + squeue("13+1", "RUNNING", name="het")
    slurm.sacct = sacct("13+0", "RUNNING", name="het")
    clock.now += 3600
    tracker = Tracker([built], run=slurm, clock=clock)
    tracker.poll()
    assert tracker.garbage == ()
    assert words(tracker) == ["LOST"]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("PENDING", "will run nothing; to end it: scancel 12_1"),
        ("RUNNING", "will run nothing; to end it: scancel 12_1"),
        ("FAILED", "its results are ignored"),
    ],
)
def test_a_job_that_was_requeued_after_a_retry_replaced_it_is_told_of_and_is_no_attempt(
    tracked: Build, slurm: Slurm, word: str, says: str
) -> None:
    built = tracked("12", "20", repeats=1)
    first = built.campaign.arrays[0]
    again = replace(first, name=f"{NAME}.t1", job_id="20", retry=1, first_attempt=1)
    built = Built(built.directory, replace(built.campaign, arrays=(first, again)))
    mark = {"attempt": 1, "time": T + 70}
    built.mark("1n1g", 1, {**mark, "event": "start"}, {**mark, "event": "step-end", "exit": 0})
    built.mark("1n1g", 1, {**mark, "event": "end", "exit": 0})
    slurm.sacct = (
        sacct("12_1", "FAILED", exit_code="3:0")
        + sacct("20_1", "COMPLETED", name=again.name, submit=T + 60)
        + sacct("12_1", word, submit=T + 90)
    )
    tracker = Tracker([built], run=slurm, clock=lambda: T + 500.0)
    tracker.poll()
    (state,) = tracker.states.values()
    assert (state.word, state.attempt) == ("COMPLETED", 1)
    assert [(early.word, early.attempt) for early in state.earlier] == [("FAILED", 0)]
    assert f"job 12_1, which a retry replaced, was requeued and is {word}" in state.detail
    assert says in state.detail


@pytest.mark.parametrize("accounting", ["", "Connection refused"], ids=["sacct answers", "neither"])
@pytest.mark.parametrize("repeats", [1, 5], ids=["the last end", "one of five"])
def test_a_controller_that_fails_is_asked_seldom_about_ends_that_jobs_wrote(
    tracked: Build, slurm: Slurm, clock: Clock, accounting: str, repeats: int
) -> None:
    built = tracked("12", repeats=repeats)
    built.mark("1n1g", 1, {"event": "start", "time": T + 1})
    built.mark("1n1g", 1, {"event": "end", "time": T + 9, "exit": 0})
    slurm.sacct = failed(accounting) if accounting else sacct("12_[1-5]", "RUNNING")
    slurm.squeue = failed("Unable to contact slurm controller")
    tracker = Tracker([built], run=slurm, clock=clock, chance=lambda: 0.0, floor=10)
    while clock.now < T + 3600:
        tracker.poll()
        clock.pause(max(0.1, min(tracker.pause(), tracker.seconds_to_news())))
    assert slurm.count("squeue") <= slurm.count("sacct") <= 70


def test_nobody_waits_for_what_a_retry_took_over(tracked: Build, slurm: Slurm) -> None:
    """Where its states were asked about too, a second retry of a local campaign took 16 s."""
    built = tracked("local-1-1", "local-2-2", repeats=1, scheduler="local")
    first = built.campaign.arrays[0]
    again = replace(first, name=f"{NAME}.t1", job_id="local-2-2", retry=1, first_attempt=1)
    built = Built(built.directory, replace(built.campaign, arrays=(first, again)))
    tracker = Tracker([built], run=slurm)
    tracker.poll()
    assert list(tracker.states) == [(again.name, 1)]
    assert tracker.is_over()
    assert all(map(tracker.is_final, tracker.states))
