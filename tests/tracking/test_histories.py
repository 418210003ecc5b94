"""Generated histories of jobs, told by a Slurm that lags, forgets and repeats itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbert.slurm.repeats import Watched
from hpcbert.slurm.runner import Outcome
from hpcbert.slurm.tracker import Tracker

REPEATS = 4
NAME = "hpcbert-c-bert-base_1n1g_fp32_b32"
T = 1_795_255_599
ENDS = ["COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED"]


@dataclass
class Run:
    """One run of a repeat: submitted, started and ended at, relative to T, and how."""

    submit: int
    start: int
    end: int
    state: str


@dataclass
class Truth:
    """What really happens: the runs of each repeat, and how Slurm tells it."""

    runs: list[list[Run]]
    lag: int
    memory: int
    junk: list[str]
    broken: list[tuple[bool, bool]]
    now: int = 0
    asked: int = 0
    calls: list[int] = field(default_factory=list)

    def at(self, repeat: int, moment: int) -> tuple[Run, str] | None:
        """The newest run at a moment, and its state then."""
        known = [run for run in self.runs[repeat] if run.submit <= moment]
        if not known:
            return None
        run = known[-1]
        if moment < run.start:
            return run, "PENDING"
        return run, "RUNNING" if moment < run.end else run.state

    def sacct(self) -> str:
        lines = list(self.junk)
        moment = self.now - self.lag
        for repeat, runs in enumerate(self.runs):
            for run in runs:
                if run.submit > moment:
                    continue
                state = "PENDING" if moment < run.start else "RUNNING"
                state = run.state if moment >= run.end else state
                lines.append(line(repeat + 1, run, state))
        lines.append(line(1, Run(-99999999, 0, 0, ""), "COMPLETED"))
        lines.append(line(2, self.runs[1][0], "COMPLETED").replace("|me|", "|you|"))
        return "\n".join(lines)

    def squeue(self) -> str:
        lines = list(self.junk)
        for repeat in range(len(self.runs)):
            found = self.at(repeat, self.now)
            if found and (self.now < found[0].end + self.memory):
                run, state = found
                times = f"{T + run.submit}|N/A|N/A|0:00|1:00||{NAME}|None"
                lines.append(f"5_{repeat + 1}|me|{state}|{times}")
        return "\n".join(lines)

    def __call__(self, argv: Any, **_: Any) -> Outcome:
        broken = self.broken[len(self.calls) % len(self.broken)]
        if argv[0] == "sacct":
            self.asked += 1
        if broken[argv[0] == "squeue"]:
            return Outcome(tuple(argv), 1, "COMPLETED\n", "Unable to contact slurm controller")
        return Outcome(tuple(argv), 0, self.sacct() if argv[0] == "sacct" else self.squeue())


def line(repeat: int, run: Run, state: str) -> str:
    start = T + run.start if state != "PENDING" else "Unknown"
    end = T + run.end if state not in {"PENDING", "RUNNING"} else "Unknown"
    words = "CANCELLED by 0" if state == "CANCELLED" else state
    times = f"{T + run.submit}|{start}|{end}|5|60"
    return f"5_{repeat}|me|{words}|0:0|None|{times}|n1|{NAME}"


@st.composite
def histories(draw: st.DrawFn) -> Truth:
    runs = []
    for _ in range(REPEATS):
        moment, one = 0, []
        for attempt in range(draw(st.integers(1, 3))):
            start = moment + draw(st.integers(1, 60))
            end = start + draw(st.integers(1, 120))
            last = attempt == 2 or draw(st.booleans())
            state = draw(st.sampled_from(ENDS if last else ["NODE_FAIL", "PREEMPTED"]))
            one.append(Run(moment, start, end, state))
            moment = end + 1
            if last:
                break
        runs.append(one)
    return Truth(
        runs,
        lag=draw(st.integers(0, 40)),
        memory=draw(st.sampled_from([300, 600])),
        junk=draw(st.lists(st.text(alphabet="5_|COMPLETED\x00ü", max_size=30), max_size=2)),
        broken=draw(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=4)),
    )


def follow(truth: Truth, watched: Watched) -> None:
    """Track a history to its end, comparing every poll with the truth."""
    tracker = Tracker(
        [watched], run=truth, environ={}, clock=lambda: float(T + truth.now), chance=lambda: 0.0
    )
    polls = 0
    while not tracker.over():
        asked = truth.asked
        tracker.poll()
        polls += 1
        assert truth.asked - asked <= 1
        assert polls < 400, "it must come to an end"
        for (_, repeat), state in tracker.states.items():
            if state.kind == "well":
                newest = truth.at(repeat - 1, truth.now)
                assert newest is not None
                assert newest[1] == "COMPLETED"
        truth.calls.append(polls)
        truth.now += max(1, int(tracker.pause()))
    for (_, repeat), state in tracker.states.items():
        assert state.word == truth.runs[repeat - 1][-1].state
        if state.source == "sacct":  # squeue does not tell how often a job was requeued
            assert state.attempt == len(truth.runs[repeat - 1]) - 1


def test_tracking_tells_the_truth_in_the_end_and_no_success_before_it(
    watched: Callable[..., Watched],
) -> None:
    one = watched("5", repeats=REPEATS)
    array = replace(one.campaign.arrays[0], name=NAME)
    one = replace(one, campaign=replace(one.campaign, user="me", arrays=(array,)))

    @settings(max_examples=60, deadline=None)
    @given(histories())
    def check(truth: Truth) -> None:
        truth.broken = [*truth.broken, (False, False)]
        follow(truth, one)

    check()
