"""The end of each attempt: its source, and what is remembered of it; no answer revives one."""

import json
from dataclasses import replace
from typing import Any

import pytest

from hpcbert.campaign import attempts, overview, store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.errors import SchedulerError
from hpcbert.slurm.states import RepeatState, parse_state
from tests.kit.campaigns import collect_campaigns

VERDICTS = ("OUT_OF_MEMORY", "NODE_FAIL", "DEADLINE", "PREEMPTED", "CANCELLED", "FAILED")


def make_state(word: str, **changes: Any) -> RepeatState:
    return RepeatState(word, parse_state(word).kind, **{"source": "sacct", **changes})


class Scheduler:
    """Has a state for the newest attempt of repeat 1, and for those before."""

    def __init__(self, word: str = "COMPLETED", **changes: Any) -> None:
        self.state = make_state(word, **changes)

    def __call__(self, watched: TrackedCampaign) -> dict[tuple[str, int], RepeatState]:
        if self.state.word == "REFUSED":
            raise SchedulerError("Slurm does not answer.")
        states = {}
        for repeat in watched.repeats:
            restarts = max(self.state.attempt, repeat.newest.attempt)
            states[repeat.key] = repeat.newest.complete(self.state, restarts=restarts)
        return states


SILENT = Scheduler("REFUSED")
AFTER = {
    "waits": Scheduler("PENDING", attempt=1),
    "was cancelled": Scheduler("CANCELLED", attempt=1),
    "is unknown": Scheduler("UNKNOWN", source="none", attempt=1),
    "can't be asked about": SILENT,
}


def collect_run(built, states: Any) -> Any:
    """Return the only run."""
    (row,) = collect_campaigns(built.directory, states=states).tables[0].rows
    (run,) = row.runs
    return run


def add_retry(built, *reasons: tuple[int, str, str]):
    """Add the array of a retry, whose attempts have numbers from 1."""
    (first,) = built.campaign.arrays
    changed = replace(first, name=f"{first.name}.t1", job_id="99", retry=1, first_attempt=1)
    return built.change(arrays=(first, replace(changed, why=reasons)))


def suspend(built, seconds: float = 31.25) -> None:
    """Let the script notice, before its end, that it was suspended."""
    path = built.status_path("1n1g", 1)
    lines = path.read_text().splitlines(keepends=True)
    event = {"event": "suspended", "attempt": 0, "seconds": seconds}
    path.write_text("".join([*lines[:2], f"{json.dumps(event)}\n", *lines[2:]]))


@pytest.fixture
def built(build):
    """One repeat, complete by its own account and by its log."""
    campaign = build("1n1g", repeats=1)
    campaign.complete("1n1g", 1, 10.0)
    return campaign


@pytest.mark.parametrize("states", [Scheduler(), Scheduler(source="squeue"), SILENT])
def test_what_the_script_noticed_itself_refuses_the_repeat(build, built, states):
    suspend(built)
    run = collect_run(built, states)
    assert [reason.code for reason in run.reasons] == ["state"]
    assert "it was suspended for 31.25 s" in run.reasons[0].detail
    # Slurm suspends and resumes a job in turn with others (slurm.conf(5), PreemptMode=GANG).
    suspend(built, 30.0)
    assert "it was suspended for 61.25 s" in collect_run(built, Scheduler()).reasons[0].detail
    local = build("1n1g", name="local", repeats=1, scheduler="local")
    local.complete("1n1g", 1, 10.0)
    local.mark("1n1g", 1, {"event": "finished", "state": "COMPLETED", "exit": 0})
    assert collect_run(local, SILENT).valid
    suspend(local)
    assert "suspended" in str(collect_run(local, SILENT).reasons[0])


def test_a_retry_is_judged_by_its_own_attempt_and_what_completed_outlives_it(build, built):
    failed = build("1n1g", name="failed", repeats=1)
    failed.started("1n1g", 1)
    failed.ended("1n1g", 1, code=3)
    assert not collect_run(failed, Scheduler("FAILED")).valid
    retry = add_retry(failed, (1, "FAILED", "state: it is FAILED"))
    retry.started("1n1g", 1, attempt=1)
    running = Scheduler("RUNNING", source="squeue", attempt=1)
    assert collect_campaigns(retry.directory, states=running).refused == ()
    retry.ended("1n1g", 1, attempt=1)
    retry.log("1n1g", 1, retry.text("1n1g", 20.0), attempt=1)
    after = collect_campaigns(retry.directory, states=Scheduler(attempt=1))
    assert (after.refused, after.tables[0].rows[0].runs[0].valid) == ((), True)
    retry = add_retry(built, (1, "COMPLETED", "exit: the exit status … is not recorded"))
    run = collect_run(retry, Scheduler("CANCELLED", attempt=1))
    assert (run.attempt, run.valid) == (0, True)


@pytest.mark.parametrize("later", AFTER)
@pytest.mark.parametrize("origin", ["the script", "accounting", "collected", "retried"])
@pytest.mark.parametrize("word", ["NODE_FAIL", "suspended"])
def test_no_attempt_is_revived_that_ended_badly(built, word, origin, later):
    """Although by its own account, and by its log, nothing is wrong with it."""
    is_suspended, states = word == "suspended", AFTER[later]
    bad = make_state("COMPLETED", suspended=31.0) if is_suspended else make_state(word)
    reasons = []
    if origin == "the script":
        suspend(built)
    elif origin == "accounting":
        newest = make_state("FAILED", attempt=1) if states is SILENT else states.state
        states = Scheduler(newest.word, source=newest.source, attempt=1, earlier=(bad,))
    elif origin == "collected":
        assert not collect_run(built, Scheduler(bad.word, suspended=bad.suspended)).valid
    else:
        reasons = [(1, bad.word, f"state: it is {word}, not COMPLETED")]
    run = collect_run(add_retry(built, *reasons), states)
    assert (run.valid, run.throughput) == (False, None)
    old = next(attempt for attempt in run.attempts if attempt.attempt == 0)
    if origin != "the script":
        assert (old.state, old.state_source) == (bad.word, "manifest" if reasons else "sacct")


@pytest.mark.parametrize("word", VERDICTS)
def test_a_verdict_stands_whatever_is_reported_later(built, word):
    assert collect_run(built, Scheduler(word)).state == word
    for states in (Scheduler("COMPLETED"), SILENT, Scheduler("UNKNOWN", source="none")):
        run = collect_run(built, states)
        assert (run.state, run.state_source, run.valid) == (word, "sacct", False)
    # Unless its record was changed.
    path = built.directory / "measurements.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"seal": "0" * 64}))
    assert collect_run(built, SILENT).state == "COMPLETED"


def test_a_job_that_is_sent_back_after_its_verdict_is_a_new_attempt(built):
    collect_run(built, Scheduler("NODE_FAIL", nodes=("n3",)))
    waits = collect_run(built, Scheduler("PENDING", source="squeue"))
    ends = [(attempt.attempt, attempt.state) for attempt in waits.attempts]
    assert (ends, waits.attempts[0].nodes) == ([(0, "NODE_FAIL"), (1, "PENDING")], ("n3",))
    built.started("1n1g", 1, attempt=1)
    built.ended("1n1g", 1, attempt=1)
    built.log("1n1g", 1, built.text("1n1g", 20.0), attempt=1)
    run = collect_run(built, Scheduler())
    assert (run.attempt, run.valid, run.throughput) == (1, True, pytest.approx(20))


def test_an_attempt_that_slurm_sent_back_is_requeued_although_it_died_of_a_signal(build):
    built = build("1n1g", repeats=1)
    built.started("1n1g", 1)
    built.mark("1n1g", 1, {"event": "signal", "signal": "TERM"})
    built.ended("1n1g", 1, code=143)
    built.started("1n1g", 1, attempt=1)
    built.ended("1n1g", 1, attempt=1)
    built.log("1n1g", 1, built.text("1n1g", 20.0), attempt=1)
    unknown = collect_run(built, Scheduler()).attempts[0]
    assert (unknown.state, unknown.state_source) == ("REQUEUED", "status-file")
    assert "signal TERM" in unknown.detail
    (built.directory / "measurements.json").unlink()
    scheduler = Scheduler(attempt=1)
    lost = make_state("NODE_FAIL", nodes=("n3",), detail="lost a node (n3)")
    scheduler.state = replace(scheduler.state, earlier=(lost,))
    run = collect_run(built, scheduler)
    first = run.attempts[0]
    assert (run.valid, first.state, first.nodes) == (True, "NODE_FAIL", ("n3",))
    assert (first.state_source, first.detail[:16]) == ("sacct", "lost a node (n3)")
    # It is remembered when nobody can be asked any more.
    assert collect_run(built, SILENT).attempts[0].state == "NODE_FAIL"


# --- Ends that no job wrote: kept by the command that learns of them, read by list and show --------


def write_ends(built, word: str, *, attempt: int = 0, final: bool = True) -> None:
    """Write down what a command learned of all repeats."""
    watched = TrackedCampaign(built.directory, store.read_manifest(built.directory))
    state = make_state(word, source="squeue", attempt=attempt, detail="so Slurm says")
    states = {repeat.key: state for repeat in watched.repeats}
    attempts.write_ends(watched, states, states if final else ())


def read_state(built) -> str:
    return overview.read_overview(built.directory).state


@pytest.mark.parametrize("word", ["CANCELLED", "DEADLINE", "LOST", "UNKNOWN", "NODE_FAIL"])
def test_a_campaign_whose_jobs_never_started_has_ended(build, word):
    built = build("1n1g", repeats=2)
    write_ends(built, word, final=False)
    write_ends(built, "PENDING")
    assert (read_state(built), (built.directory / attempts.ENDS).exists()) == ("waiting", False)
    write_ends(built, word)
    (end, _) = attempts.read_ends(built.directory).values()
    assert (read_state(built), end.state, end.detail) == ("ended", word, "so Slurm says")
    add_retry(built)
    assert read_state(built) == "waiting"


def test_an_end_is_kept_unless_it_is_taken_back_damaged_or_in_anothers_campaign(build, monkeypatch):
    built = build("1n1g", repeats=1)
    for text in ("", "{", "[]", '{"schema": 1, "ends": [{"array": 1}]}'):
        (built.directory / attempts.ENDS).write_text(text)
        assert read_state(built) == "waiting"
    write_ends(built, "CANCELLED")
    assert read_state(built) == "ended"
    # An end holds until Slurm takes it back or another attempt begins.
    write_ends(built, "PENDING", attempt=1)
    assert read_state(built) == "waiting"
    write_ends(built, "PREEMPTED")
    built.started("1n1g", 1)
    assert read_state(built) == "ended"
    built.started("1n1g", 1, attempt=1)
    assert read_state(built) == "running"
    (built.directory / attempts.ENDS).unlink()
    monkeypatch.setattr(store, "find_foreign_owner", lambda _: "somebody")
    write_ends(built, "CANCELLED")
    assert not (built.directory / attempts.ENDS).exists()
