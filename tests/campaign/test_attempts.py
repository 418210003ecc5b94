"""What is known of each attempt, who said so, and what is remembered: no question revives one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.commands.collect import CollectResult
from hpcbert.errors import SchedulerError
from hpcbert.model import Run
from hpcbert.slurm.states import RepeatState, parse_state
from tests.kit.campaigns import collect_campaigns

VERDICTS = (
    "OUT_OF_MEMORY", "NODE_FAIL", "DEADLINE", "PREEMPTED", "TIMEOUT", "CANCELLED", "BOOT_FAIL", "FAILED",
)  # fmt: skip


class Scheduler:
    """Has a state for the newest attempt of repeat 1, and what it says of those before."""

    def __init__(self, word: str = "COMPLETED", **changes: Any) -> None:
        self.state = make_state(word, **changes)

    def __call__(self, watched: TrackedCampaign) -> Mapping[tuple[str, int], Any]:
        repeat_states = {}
        for repeat in watched.repeats:
            restarts = max(self.state.attempt, repeat.newest.attempt)
            repeat_states[repeat.key] = repeat.newest.complete(self.state, restarts=restarts)
        return repeat_states


def make_state(word: str, **changes: Any) -> RepeatState:
    return RepeatState(word, parse_state(word).kind, **{"source": "sacct", **changes})


def refuse_states(watched: TrackedCampaign) -> Mapping[tuple[str, int], RepeatState]:
    raise SchedulerError("Slurm does not answer.")


def collect_with(built: Any, states: Any) -> CollectResult:
    return collect_campaigns(built.directory, states=states)


def find_run(result: CollectResult) -> Run:
    ((run,),) = (row.runs for row in result.tables[0].rows)
    return run


def add_retry(built: Any, *reasons: tuple[int, str, str]) -> Any:
    """Add the array of a retry, whose attempts have numbers from 1."""
    (first,) = built.campaign.arrays
    again = replace(
        first, name=f"{first.name}.t1", job_id="99", retry=1, first_attempt=1, why=tuple(reasons)
    )
    return built.change(arrays=(first, again))


@pytest.fixture
def built(build: Any) -> Any:
    """One repeat, complete by its own account and by its log."""
    campaign = build("1n1g", repeats=1)
    campaign.complete("1n1g", 1, 10.0)
    return campaign


AFTER = {
    "waits": Scheduler("PENDING", attempt=1),
    "was cancelled": Scheduler("CANCELLED", attempt=1),
    "failed": Scheduler("FAILED", attempt=1),
    "is unknown": Scheduler("UNKNOWN", source="none", attempt=1),
    "can't be asked about": refuse_states,
}


def suspend(built: Any, seconds: float = 31.25, repeat: int = 1) -> None:
    """Let the script have noticed a pause: before the step's end, as it does."""
    path = built.directory / built.array("1n1g").status(repeat)
    lines = path.read_text().splitlines(keepends=True)
    event = {"event": "suspended", "attempt": 0, "time": 1763717655, "seconds": seconds}
    lines.insert(2, json.dumps(event) + "\n")
    path.write_text("".join(lines))


@pytest.mark.parametrize("source", ["sacct", "squeue", "none"])
def test_what_the_script_noticed_itself_refuses_the_repeat(built: Any, source: str) -> None:
    suspend(built)
    run = find_run(
        collect_with(built, refuse_states if source == "none" else Scheduler(source=source))
    )
    assert [reason.code for reason in run.reasons] == ["state"]
    assert "it was suspended for 31.25 s" in run.reasons[0].detail


@pytest.mark.parametrize("slices", [1, 4])
def test_time_slices_of_gang_scheduling_add_up(built: Any, slices: int) -> None:
    """Slurm suspends and resumes a job in turn with others (slurm.conf(5), PreemptMode=GANG)."""
    for _ in range(slices):
        suspend(built, 30.0)
    run = find_run(collect_with(built, Scheduler()))
    assert (run.valid, run.throughput) == (False, None)
    assert f"it was suspended for {30 * slices} s" in run.reasons[0].detail


def test_a_campaign_that_is_collected_before_while_and_after_a_retry_runs_is_unchanged(
    build: Any,
) -> None:
    built = build("1n1g", repeats=1)
    built.started("1n1g", 1)
    built.ended("1n1g", 1, code=3)
    assert not find_run(collect_with(built, Scheduler("FAILED"))).valid
    retry = add_retry(built, (1, "FAILED", "state: it is FAILED"))
    retry.started("1n1g", 1, attempt=1)
    assert collect_with(retry, Scheduler("RUNNING", source="squeue", attempt=1)).refused == ()
    retry.ended("1n1g", 1, attempt=1)
    retry.log("1n1g", 1, retry.text("1n1g", 20.0), attempt=1)
    after = collect_with(retry, Scheduler(attempt=1))
    assert (after.refused, find_run(after).valid) == ((), True)


def test_a_local_run_that_was_suspended_is_refused(build: Any) -> None:
    built = build("1n1g", repeats=1, scheduler="local")
    built.complete("1n1g", 1, 10.0)
    built.mark("1n1g", 1, {"event": "finished", "state": "COMPLETED", "exit": 0})
    assert find_run(collect_with(built, refuse_states)).valid
    suspend(built)
    (run,) = collect_with(built, refuse_states).tables[0].rows[0].runs
    assert "suspended" in str(run.reasons[0])


@pytest.mark.parametrize("later", AFTER)
@pytest.mark.parametrize("collected", [True, False], ids=["collected", "only retried"])
@pytest.mark.parametrize("noticed", ["by the script", "by accounting"])
def test_a_suspended_attempt_is_not_revived_by_a_retry(
    built: Any, noticed: str, collected: bool, later: str
) -> None:
    """Three ways to know: the job's own file, the record of collect, the manifest of a retry."""
    states = Scheduler()
    if noticed == "by the script":
        suspend(built)
    else:
        states = Scheduler(suspended=31.0)
    if collected:
        assert not find_run(collect_with(built, states)).valid
    reason = (1, "COMPLETED", "state: it was suspended for 31 s while its time continued")
    run = find_run(collect_with(add_retry(built, reason), AFTER[later]))
    assert (run.valid, run.throughput) == (False, None)


KNOWN = [(known, later) for known in ("collected", "retried") for later in AFTER]
KNOWN += [("accounting", later) for later in AFTER if AFTER[later] is not refuse_states]


@pytest.mark.slow
@pytest.mark.parametrize("word", VERDICTS[:2])
@pytest.mark.parametrize(("origin", "later"), KNOWN)
def test_no_attempt_is_revived_that_ended_badly(
    built: Any, word: str, origin: str, later: str
) -> None:
    """Although by its own account, and by its log, nothing is wrong with it."""
    states: Any = AFTER[later]
    if origin == "collected":
        assert not find_run(collect_with(built, Scheduler(word))).valid
    if origin == "accounting":
        newest = states.state
        states = Scheduler()
        states.state = replace(newest, earlier=(make_state(word),))
    reasons = [(1, word, f"state: it is {word}, not COMPLETED")] if origin == "retried" else []
    run = find_run(collect_with(add_retry(built, *reasons), states))
    assert (run.valid, run.throughput) == (False, None)
    old = next(attempt for attempt in run.attempts if attempt.attempt == 0)
    assert old.state == word
    assert old.state_source == ("manifest" if origin == "retried" else "sacct")


@pytest.mark.parametrize("word", VERDICTS)
def test_a_verdict_stands_whatever_is_said_later(built: Any, word: str) -> None:
    assert find_run(collect_with(built, Scheduler(word))).state == word
    for states in (Scheduler("COMPLETED"), refuse_states, Scheduler("UNKNOWN", source="none")):
        run = find_run(collect_with(built, states))
        assert (run.state, run.state_source, run.valid) == (word, "sacct", False)


def test_a_job_that_is_sent_back_after_its_verdict_is_a_new_attempt(built: Any) -> None:
    collect_with(built, Scheduler("NODE_FAIL", nodes=("n3",)))
    waits = find_run(collect_with(built, Scheduler("PENDING", source="squeue")))
    assert [(attempt.attempt, attempt.state) for attempt in waits.attempts] == [
        (0, "NODE_FAIL"),
        (1, "PENDING"),
    ]
    assert waits.attempts[0].nodes == ("n3",)
    built.started("1n1g", 1, attempt=1)
    built.ended("1n1g", 1, attempt=1)
    built.log("1n1g", 1, built.text("1n1g", 20.0), attempt=1)
    run = find_run(collect_with(built, Scheduler()))
    assert (run.attempt, run.valid) == (1, True)
    assert run.throughput == pytest.approx(20)


def test_an_attempt_that_completed_by_the_schedulers_word_still_outlives_a_retry(
    built: Any,
) -> None:
    retry = add_retry(built, (1, "COMPLETED", "exit: the exit status … is not recorded"))
    run = find_run(collect_with(retry, Scheduler("CANCELLED", attempt=1)))
    assert (run.attempt, run.valid) == (0, True)


def test_an_attempt_that_slurm_sent_back_says_so_although_it_died_of_a_signal(build: Any) -> None:
    built = build("1n1g", repeats=1)
    built.started("1n1g", 1)
    built.mark("1n1g", 1, {"event": "signal", "signal": "TERM"})
    built.ended("1n1g", 1, code=143)
    built.started("1n1g", 1, attempt=1)
    built.ended("1n1g", 1, attempt=1)
    built.log("1n1g", 1, built.text("1n1g", 20.0), attempt=1)
    unknown = find_run(collect_with(built, Scheduler())).attempts[0]
    assert (unknown.state, unknown.state_source) == ("REQUEUED", "status-file")
    assert "signal TERM" in unknown.detail
    (built.directory / "measurements.json").unlink()
    lost = make_state("NODE_FAIL", nodes=("n3",), detail="lost a node (n3)")
    scheduler = Scheduler()
    scheduler.state = replace(scheduler.state, attempt=1, earlier=(lost,))
    run = find_run(collect_with(built, scheduler))
    assert run.valid
    attempt = run.attempts[0]
    assert (attempt.state, attempt.nodes, attempt.state_source) == ("NODE_FAIL", ("n3",), "sacct")
    assert attempt.detail.startswith("lost a node (n3)")
    # It is remembered when nobody can be asked any more.
    assert find_run(collect_with(built, refuse_states)).attempts[0].state == "NODE_FAIL"


def test_a_verdict_whose_record_was_changed_is_not_remembered(built: Any) -> None:
    collect_with(built, Scheduler("OUT_OF_MEMORY"))
    path = built.directory / "measurements.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"seal": "0" * 64}))
    run = find_run(collect_with(built, refuse_states))
    assert run.state == "COMPLETED"
