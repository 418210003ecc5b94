"""Generated histories of jobs, told by a Slurm that lags, forgets and repeats itself.

What is generated: attempts, ends, states that are shown on the way, how late accounting is, what it
prints twice, in another order, cut short or as a range, other jobs of the same id, which questions
fail, when squeue forgets, and what the jobs wrote down themselves.
"""

import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbert.scheduler.slurm.poller import SlurmPoller
from hpcbert.scheduler.tracker import Tracker
from hpcbert.system.runner import Outcome
from tests.kit.campaigns import status_file
from tests.kit.slurm import NAME, T, sacct, squeue

pytestmark = pytest.mark.slow
REPEATS = 4
# How a state may be printed that means the same.
SPELT = {"CANCELLED": ["CANCELLED by 0", "CANCELLED+"], "OUT_OF_MEMORY": ["OUT_OF_ME+"]}
WAITING = ["PENDING", "CONFIGURING", "REQUEUE_HOLD", "RESV_DEL_HOLD"]
RUNNING = ["RUNNING", "SUSPENDED", "STOPPED", "COMPLETING", "SIGNALING"]
ENDS = ["COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED"]


@dataclass
class Run:
    """One run of a repeat: submitted, started and ended at, relative to T, and how.

    Attributes:
        before, during: What Slurm calls it while it waits and while it runs.
        wrote: Whether the job could write its own end; then `exit` is in it.
    """

    submit: int
    start: int
    end: int
    state: str
    before: str = "PENDING"
    during: str = "RUNNING"
    wrote: bool = False
    exit: int = 1

    def state_at(self, moment: int) -> str:
        if moment < self.start:
            return self.before
        return self.during if moment < self.end else self.state

    def line(self, repeat: int, state: str) -> str:
        start = T + self.start if state not in WAITING else "Unknown"
        end = T + self.end if state not in {*WAITING, *RUNNING} else "Unknown"
        job = f"5_[{repeat}%1]" if state == "PENDING" else f"5_{repeat}"
        return sacct(job, state, submit=T + self.submit, start=start, end=end, elapsed=5).strip()


@dataclass
class Truth:
    """What really happens: the runs of each repeat, and how Slurm tells it."""

    runs: list[list[Run]]
    lag: int
    memory: int
    junk: list[str]
    broken: list[tuple[bool, bool]]
    shuffle: random.Random
    twice: bool
    now: int = 0
    polls: int = 0
    asked: Counter[str] = field(default_factory=Counter)

    def newest(self, repeat: int) -> Run | None:
        return next((run for run in self.runs[repeat][::-1] if run.submit <= self.now), None)

    def sacct(self) -> list[str]:
        moment = self.now - self.lag
        lines = []
        for repeat, runs in enumerate(self.runs, 1):
            for run in (run for run in runs if run.submit <= moment):
                state = run.state_at(moment)
                spelt = self.shuffle.choice([state, *SPELT.get(state, [])])
                lines += [run.line(repeat, spelt)] * (2 if self.twice else 1)
        lines.append(Run(-99999999, 0, 0, "").line(1, "COMPLETED"))
        lines.append(self.runs[1][0].line(2, "COMPLETED").replace("|nobody|", "|you|"))
        lines.append(self.runs[2][-1].line(3, "COMPLETED").replace(NAME, "another"))
        self.shuffle.shuffle(lines)
        return lines

    def squeue(self) -> list[str]:
        return [
            squeue(f"5_{repeat + 1}", run.state_at(self.now), submit=T + run.submit).strip()
            for repeat in range(len(self.runs))
            if (run := self.newest(repeat)) and self.now < run.end + self.memory
        ]

    def __call__(self, argv: Any, **_: Any) -> Outcome:
        self.asked[argv[0]] += 1
        if self.broken[self.polls % len(self.broken)][argv[0] == "squeue"]:
            return Outcome(tuple(argv), 1, "COMPLETED\n", "Unable to contact slurm controller")
        lines = self.sacct() if argv[0] == "sacct" else self.squeue()
        return Outcome(tuple(argv), 0, "\n".join([*self.junk, *lines]))


@st.composite
def histories(draw: st.DrawFn) -> Truth:
    runs: list[list[Run]] = []
    for _ in range(REPEATS):
        moment, history = 0, []
        for attempt in range(draw(st.integers(1, 3))):
            start = moment + draw(st.integers(1, 60))
            end = start + draw(st.integers(1, 120))
            last = attempt == 2 or draw(st.booleans())
            state = draw(st.sampled_from(ENDS if last else ["NODE_FAIL", "PREEMPTED"]))
            # A node that was lost may have ended its job well.
            well = state == "COMPLETED" or (state == "NODE_FAIL" and draw(st.booleans()))
            before, during = draw(st.sampled_from(WAITING)), draw(st.sampled_from(RUNNING))
            wrote = draw(st.booleans())
            history.append(Run(moment, start, end, state, before, during, wrote, 0 if well else 1))
            moment = end + 1
            if last:
                break
        runs.append(history)
    broken = draw(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=4))
    return Truth(
        runs,
        lag=draw(st.integers(0, 40)),
        memory=draw(st.sampled_from([300, 600])),
        junk=draw(st.lists(st.text(alphabet="5_|COMPLETED\x00ü", max_size=30), max_size=2)),
        shuffle=random.Random(draw(st.integers(0, 99))),
        twice=draw(st.booleans()),
        broken=[*broken, (False, False)],
    )


def test_tracking_tells_the_truth_in_the_end_and_no_success_before_it(tracked):
    built = tracked("5", repeats=REPEATS)

    @settings(max_examples=60, deadline=None)
    @given(histories())
    def check(truth: Truth) -> None:
        """Track a history to its end, comparing every poll with the truth."""
        tracker = Tracker(
            [built], run=truth, environ={}, clock=lambda: float(T + truth.now), chance=lambda: 0.0
        )
        (slurm,) = tracker._pollers
        assert isinstance(slurm, SlurmPoller)
        while not tracker.is_over():
            truth.asked.clear()
            for repeat, runs in zip(built.repeats, truth.runs, strict=True):
                repeat.status.write_text("")  # what the jobs have written down by now
                for attempt, run in enumerate(runs):
                    start = {"event": "start", "time": T + run.start}
                    end = {"event": "end", "time": T + run.end, "exit": run.exit}
                    wrote = (run.start <= truth.now, run.wrote and run.end <= truth.now)
                    status_file(repeat.status, *compress((start, end), wrote), attempt=attempt)
            tracker.poll()
            truth.polls += 1
            assert all(count <= 1 for count in truth.asked.values())
            assert truth.polls < 400, "it must come to an end"
            # While a command that would know better fails, the job's own word is shown, and as such.
            unheard = "failed" in {slurm._watcher.answer, slurm._squeue}
            for (_, number), state in tracker.states.items():
                newest = truth.newest(number - 1)
                if (
                    state.kind == "succeeded"
                    and newest
                    and newest.state_at(truth.now) != "COMPLETED"
                ):
                    runs = [run for run in truth.runs[number - 1] if run.end <= truth.now]
                    assert unheard
                    assert state.source == "status-file"
                    assert any(run.wrote and run.exit == 0 for run in runs)
                assert newest or state.kind != "succeeded"
            truth.now += max(1, int(tracker.pause()))
        for (_, number), state in tracker.states.items():
            assert state.word == truth.runs[number - 1][-1].state
            if state.source == "sacct":  # squeue does not tell how often a job was requeued
                assert state.attempt == len(truth.runs[number - 1]) - 1

    check()
