"""The end of each attempt: its source, and what is remembered of it; no answer revives one."""

import json
from dataclasses import replace
from unittest.mock import Mock

import pytest

from hpcbert.campaign import attempts, overview, store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.errors import SchedulerError
from hpcbert.slurm.states import RepeatState, parse_state
from tests.kit.campaigns import collect_campaigns, report_states

SILENT = Mock(side_effect=SchedulerError("Slurm does not answer."))
SUSPENDED = {"event": "suspended", "seconds": 31.25}


def collect_run(built, states):
    (run,) = collect_campaigns(built.directory, states=states).tables[0].rows[0].runs
    return run


def add_retry(built, *reasons):
    """Add the array of a retry, whose attempts have numbers from 1."""
    (first,) = built.campaign.arrays
    changed = replace(first, name=f"{first.name}.t1", job_id="99", retry=1, first_attempt=1)
    return built.change(arrays=(first, replace(changed, why=reasons)))


def test_what_the_script_noticed_itself_refuses_the_repeat(build):
    built = build("1n1g", repeats=1).complete("1n1g", 1, 10.0)
    built.mark("1n1g", 1, SUSPENDED)
    for states in (report_states(), report_states(source="squeue"), SILENT):
        (reason,) = collect_run(built, states).reasons
        assert (reason.code, "it was suspended for 31.25 s" in reason.detail) == ("state", True)
    # Slurm suspends and resumes a job in turn with others (slurm.conf(5), PreemptMode=GANG).
    built.mark("1n1g", 1, SUSPENDED)
    assert "it was suspended for 62.5 s" in collect_run(built, report_states()).reasons[0].detail
    local = build("1n1g", name="local", repeats=1, scheduler="local").complete("1n1g", 1, 10.0)
    local.mark("1n1g", 1, {"event": "finished", "state": "COMPLETED", "exit": 0})
    assert collect_run(local, SILENT).valid
    local.mark("1n1g", 1, SUSPENDED)
    assert "suspended" in str(collect_run(local, SILENT).reasons[0])


def test_a_retry_is_judged_by_its_own_attempt_and_what_completed_outlives_it(build):
    built = build("1n1g", repeats=1).complete("1n1g", 1, 10.0)
    failed = build("1n1g", name="failed", repeats=1)
    failed.started("1n1g", 1)
    failed.ended("1n1g", 1, code=3)
    assert not collect_run(failed, report_states("FAILED")).valid
    retry = add_retry(failed, (1, "FAILED", "state: it is FAILED"))
    retry.started("1n1g", 1, attempt=1)
    running = report_states("RUNNING", source="squeue", attempt=1)
    assert collect_campaigns(retry.directory, states=running).refused == ()
    retry.complete("1n1g", 1, 20.0, attempt=1)
    after = collect_campaigns(retry.directory, states=report_states(attempt=1))
    assert (after.refused, after.tables[0].rows[0].runs[0].valid) == ((), True)
    retry = add_retry(built, (1, "COMPLETED", "exit: the exit status … is not recorded"))
    run = collect_run(retry, report_states("CANCELLED", attempt=1))
    assert (run.attempt, run.valid) == (0, True)


@pytest.mark.parametrize("later", ["PENDING", "CANCELLED", "UNKNOWN", "no answer"])
@pytest.mark.parametrize("origin", ["the script", "accounting", "collected", "retried"])
@pytest.mark.parametrize("word", ["NODE_FAIL", "suspended"])
def test_no_attempt_is_revived_that_ended_badly(build, word, origin, later):
    """Although by its own account, and by its log, nothing is wrong with it."""
    built = build("1n1g", repeats=1).complete("1n1g", 1, 10.0)
    suspended = 31.0 if word == "suspended" else 0.0
    bad_word = "COMPLETED" if suspended else word
    bad = RepeatState(bad_word, parse_state(bad_word).kind, "sacct", suspended=suspended)
    newest, source = later, "none" if later == "UNKNOWN" else "sacct"
    states = SILENT if later == "no answer" else report_states(newest, source=source, attempt=1)
    reasons = []
    if origin == "the script":
        built.mark("1n1g", 1, SUSPENDED)
    elif origin == "accounting":
        newest = "FAILED" if later == "no answer" else later
        states = report_states(newest, source=source, attempt=1, earlier=(bad,))
    elif origin == "collected":
        assert not collect_run(built, report_states(bad.word, suspended=suspended)).valid
    else:
        reasons = [(1, bad.word, f"state: it is {word}, not COMPLETED")]
    run = collect_run(add_retry(built, *reasons), states)
    assert (run.valid, run.throughput) == (False, None)
    old = next(attempt for attempt in run.attempts if attempt.attempt == 0)
    if origin != "the script":
        assert (old.state, old.state_source) == (bad.word, "manifest" if reasons else "sacct")


def test_a_verdict_stands_whatever_is_reported_later(build):
    for word in ("OUT_OF_MEMORY", "NODE_FAIL", "DEADLINE", "PREEMPTED", "CANCELLED", "FAILED"):
        built = build("1n1g", name=word, repeats=1).complete("1n1g", 1, 10.0)
        assert collect_run(built, report_states(word)).state == word
        for states in (report_states(), SILENT, report_states("UNKNOWN", source="none")):
            run = collect_run(built, states)
            assert (run.state, run.state_source, run.valid) == (word, "sacct", False)
        # Unless its record was changed.
        path = built.directory / "measurements.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"seal": "0" * 64}))
        assert collect_run(built, SILENT).state == "COMPLETED"


def test_an_attempt_that_slurm_sent_back_is_followed_by_another(build):
    built = build("1n1g", repeats=1).complete("1n1g", 1, 10.0)
    collect_run(built, report_states("NODE_FAIL", nodes=("n3",)))
    waits = collect_run(built, report_states("PENDING", source="squeue"))
    ends = [(attempt.attempt, attempt.state) for attempt in waits.attempts]
    assert (ends, waits.attempts[0].nodes) == ([(0, "NODE_FAIL"), (1, "PENDING")], ("n3",))
    built.complete("1n1g", 1, 20.0, attempt=1)
    run = collect_run(built, report_states())
    assert (run.attempt, run.valid, run.throughput) == (1, True, pytest.approx(20))
    # It is requeued although it died of a signal.
    built = build("1n1g", name="requeued", repeats=1)
    built.started("1n1g", 1)
    built.mark("1n1g", 1, {"event": "signal", "signal": "TERM"})
    built.ended("1n1g", 1, code=143)
    built.complete("1n1g", 1, 20.0, attempt=1)
    unknown = collect_run(built, report_states()).attempts[0]
    assert (unknown.state, unknown.state_source) == ("REQUEUED", "status-file")
    assert "signal TERM" in unknown.detail
    (built.directory / "measurements.json").unlink()
    kind, detail = parse_state("NODE_FAIL").kind, "lost a node (n3)"
    lost = RepeatState("NODE_FAIL", kind, "sacct", nodes=("n3",), detail=detail)
    run = collect_run(built, report_states(attempt=1, earlier=(lost,)))
    first = run.attempts[0]
    assert (run.valid, first.state, first.nodes) == (True, "NODE_FAIL", ("n3",))
    assert (first.state_source, detail in first.detail) == ("sacct", True)
    # It is remembered when nobody can be asked any more.
    assert collect_run(built, SILENT).attempts[0].state == "NODE_FAIL"


def test_an_end_that_no_job_wrote_is_kept_until_it_is_taken_back(build, monkeypatch):
    """The command that learns of it writes it down, for list and show."""

    def write_ends(built, word, *, attempt=0, final=True):
        watched = TrackedCampaign(built.directory, store.read_manifest(built.directory))
        kind, detail = parse_state(word).kind, "so Slurm says"
        state = RepeatState(word, kind, "squeue", attempt=attempt, detail=detail)
        states = {repeat.key: state for repeat in watched.repeats}
        attempts.write_ends(watched, states, states if final else ())

    def read_state(built):
        return overview.read_overview(built.directory).state

    for word in ("CANCELLED", "DEADLINE", "LOST", "UNKNOWN", "NODE_FAIL"):
        built = build("1n1g", name=word, repeats=2)
        write_ends(built, word, final=False)
        write_ends(built, "PENDING")
        assert (read_state(built), (built.directory / attempts.ENDS).exists()) == ("waiting", False)
        write_ends(built, word)
        (end, _) = attempts.read_ends(built.directory).values()
        assert (read_state(built), end.state, end.detail) == ("ended", word, "so Slurm says")
        add_retry(built)
        assert read_state(built) == "waiting"
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
