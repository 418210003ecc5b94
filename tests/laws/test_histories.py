"""Generated histories of jobs, told by a Slurm that lags, forgets and repeats itself."""

import random
from dataclasses import dataclass
from itertools import compress, cycle, islice
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbert.scheduler.base import SchedulerContext
from hpcbert.scheduler.slurm.poller import SlurmPoller
from hpcbert.scheduler.tracker import Tracker
from hpcbert.slurm.states import parse_state
from tests.kit.campaigns import status_file
from tests.kit.slurm import AWAY, Answer, Slurm, T, sacct, squeue

pytestmark = pytest.mark.slow
REPEATS = 4
COMMANDS = ["sacct", "squeue"]
WAITING = ["PENDING", "CONFIGURING", "REQUEUE_HOLD", "RESV_DEL_HOLD"]
RUNNING = ["RUNNING", "SUSPENDED", "STOPPED", "COMPLETING", "SIGNALING"]
REQUEUED = ["NODE_FAIL", "PREEMPTED"]
ENDS = ["COMPLETED", "FAILED", "TIMEOUT", "CANCELLED by 0", "OUT_OF_ME+", *REQUEUED]


class Run(NamedTuple):
    """A run of a repeat, in seconds after T: its states while it waits, runs, and has ended."""

    submit: int
    start: int
    end: int
    states: tuple[str, str, str]
    exit: int
    writes: bool  # its end: the node may be lost before

    def state_at(self, moment):
        return self.states[(moment >= self.start) + (moment >= self.end)]

    def row(self, repeat, moment):
        state = self.state_at(moment)
        job = f"5_[{repeat}%1]" if state == "PENDING" else f"5_{repeat}"
        start, end = (T + at if at <= moment else "Unknown" for at in (self.start, self.end))
        return sacct(job, state, submit=T + self.submit, start=start, end=end, elapsed=5)


@dataclass(kw_only=True)
class Truth(Slurm):
    """The runs of each repeat, and a Slurm that reports them, of which commands fail poll by poll."""

    runs: list[list[Run]]
    lag: int
    memory: int
    junk: list[str]
    failing: list[set[str]]
    chance: random.Random
    copies: int
    moment: int = 0

    def newest(self, repeat):
        return next((run for run in self.runs[repeat - 1][::-1] if run.submit <= self.moment), None)

    def do_sacct(self, argv, cwd):
        moment = self.moment - self.lag
        # Other jobs with the same id: an old one, somebody's, and one of another name.
        rows = [
            sacct("5_1", "COMPLETED", submit=1),
            sacct("5_2", "COMPLETED", submit=T + self.runs[1][0].submit, user="you"),
            sacct("5_3", "COMPLETED", submit=T + self.runs[2][-1].submit, name="another"),
        ]
        for repeat, runs in enumerate(self.runs, 1):
            shown = [run.row(repeat, moment) for run in runs if run.submit <= moment]
            rows += shown * self.copies
        self.chance.shuffle(rows)
        return Answer("".join([*self.junk, *rows]))

    def do_squeue(self, argv, cwd):
        rows = [
            squeue(f"5_{repeat}", run.state_at(self.moment), submit=T + run.submit)
            for repeat in range(1, REPEATS + 1)
            if (run := self.newest(repeat)) and self.moment < run.end + self.memory
        ]
        return Answer("".join([*self.junk, *rows]))


@st.composite
def list_runs(draw):
    """Draw the runs of a repeat, one after another."""
    runs: list[Run] = []
    for is_last in [False] * draw(st.integers(0, 2)) + [True]:
        submit = runs[-1].end + 1 if runs else 0
        start = submit + draw(st.integers(1, 60))
        end = start + draw(st.integers(1, 120))
        waiting, running = draw(st.sampled_from(WAITING)), draw(st.sampled_from(RUNNING))
        state = draw(st.sampled_from(ENDS if is_last else REQUEUED))
        # A node that was lost may have ended its job well.
        well = state == "COMPLETED" or (state == "NODE_FAIL" and draw(st.booleans()))
        code = 0 if well else 1
        runs.append(Run(submit, start, end, (waiting, running, state), code, draw(st.booleans())))
    return runs


def test_tracking_tells_the_truth_in_the_end_and_no_success_before_it(watched):
    built = watched("camp", job_id="5", repeats=REPEATS)

    def write_status(truth):
        for repeat, runs in zip(built.repeats, truth.runs, strict=True):
            repeat.status.write_text("")
            for attempt, run in enumerate(runs):
                start = {"event": "start", "time": T + run.start}
                end = {"event": "end", "time": T + run.end, "exit": run.exit}
                is_written = (run.start <= truth.moment, run.writes and run.end <= truth.moment)
                status_file(repeat.status, *compress((start, end), is_written), attempt=attempt)

    truths = st.builds(
        Truth,
        runs=st.lists(list_runs(), min_size=REPEATS, max_size=REPEATS),
        lag=st.integers(0, 40),
        memory=st.sampled_from([300, 600]),
        junk=st.lists(st.text("5_|COMPLETED\x00ü", max_size=30).map("{}\n".format), max_size=2),
        failing=st.lists(st.sets(st.sampled_from(COMMANDS)), min_size=1, max_size=4),
        chance=st.integers(0, 99).map(random.Random),
        copies=st.integers(1, 2),
    )

    @settings(max_examples=40, deadline=None)
    @given(truths)
    def check(truth):
        context = SchedulerContext(truth, lambda: float(T + truth.moment), chance=lambda: 0.0)
        tracker = Tracker([built], context._replace(environ={}))
        (slurm,) = tracker._pollers
        assert isinstance(slurm, SlurmPoller)
        rounds = islice(cycle([*truth.failing, set()]), 400)  # It must come to an end.
        while not tracker.is_over():
            failing = next(rounds)
            silent = Answer("COMPLETED\n", 1, AWAY)
            answers = {name: silent if name in failing else None for name in COMMANDS}
            vars(truth).update(answers, calls=[])
            write_status(truth)
            tracker.poll()
            assert all(truth.count(name) <= 1 for name in COMMANDS)
            successes = (pair for pair in tracker.states.items() if pair[1].kind == "succeeded")
            for (_, repeat), state in successes:
                run = truth.newest(repeat)
                assert run
                if run.state_at(truth.moment) != "COMPLETED":
                    # While a command that would know better fails, the job's own word is shown.
                    assert "failed" in {slurm._watcher.answer, slurm._squeue}
                    assert state.source == "status-file"
                    ends = (run for run in truth.runs[repeat - 1] if run.end <= truth.moment)
                    assert any(run.writes and run.exit == 0 for run in ends)
            truth.moment += max(1, int(tracker.pause()))
        for (_, repeat), state in tracker.states.items():
            runs = truth.runs[repeat - 1]
            assert state.word == parse_state(runs[-1].states[-1]).word
            if state.source == "sacct":  # squeue does not tell how often a job was requeued
                assert state.attempt == len(runs) - 1

    check()
