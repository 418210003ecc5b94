"""How the state of a repeat follows from sacct, squeue and what its job recorded."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbert.slurm import state_sources
from hpcbert.slurm.commands import JobRow
from hpcbert.slurm.state_sources import JobRecord, Reports, needs_squeue, resolve_state
from hpcbert.slurm.states import STATES, parse_state
from tests.kit.cases import cases, read_constant

RECORDS = {name: JobRecord(**row) for name, row in read_constant(__file__, "RECORDS").items()}


def make_row(row, **changes):
    """Return a row from a cell of a table, which is its state or has several fields, or is empty."""
    if row is None:
        return None
    fields = {"state": row} if isinstance(row, str) else row
    values = {"start": 100.0, "end": 200.0, "nodelist": "n1", "exit_code": 0, **fields, **changes}
    return JobRow("7", ((1, 1, 1),), "nobody", "x", **values)


@cases
def test_a_state_follows_from_its_sources(
    *, record, changes, sacct, squeue, answer, options, expected
):
    """Without an answer of squeue: it has one if it has a row. `detail` and `advice` are parts."""
    queue = make_row(squeue)
    answer = answer or ("answered" if queue else "unasked")
    job_record = RECORDS[record or ""]._replace(**(changes or {}))
    reports = Reports(job_record, make_row(sacct), queue=queue, squeue=answer, **(options or {}))
    state = resolve_state(reports)
    for name, value in expected.items():
        actual = getattr(state, name)
        assert value in actual if name in {"detail", "advice"} else value == actual, state


@cases
def test_squeue_is_asked_about_what_sacct_leaves_open(record, sacct, *, asked):
    assert needs_squeue(Reports(RECORDS[record], make_row(sacct))) is asked


def test_an_end_that_slurm_may_take_back_is_checked_with_squeue_and_the_attempt_before_is_kept():
    for word in (state.word for state in STATES if state.returns):
        lost = Reports(RECORDS["ran"], make_row(word))
        assert needs_squeue(lost), word
        again = lost._replace(queue=make_row("PENDING", reason="BeginTime"), squeue="answered")
        assert resolve_state(again).word == "PENDING", word
        assert resolve_state(lost._replace(squeue="answered")).word == word
        queued = lost._replace(queue=make_row(word), squeue="answered")
        assert resolve_state(queued).source == "sacct", word
    lost = make_row("NODE_FAIL", nodelist="n3", exit_code=None)
    queue = make_row("PENDING", reason="BeginTime", start=None, nodelist="")
    waits = Reports(RECORDS["ran"], lost, queue=queue, squeue="answered", history=((0, lost),))
    state = resolve_state(waits)
    assert (state.word, state.attempt) == ("PENDING", 1)
    (before,) = state.earlier
    assert (before.word, before.attempt, before.nodes) == ("NODE_FAIL", 0, ("n3",))
    assert before.detail == "lost a node (n3)"


@given(st.data())
def test_success_is_never_guessed(data):
    record = JobRecord(
        attempt=data.draw(st.integers(0, 2), "attempt"),
        start=data.draw(st.sampled_from([None, 100.0]), "start"),
        end=data.draw(st.sampled_from([None, 200.0]), "end"),
        exit=data.draw(st.none() | st.integers(0, 3), "exit"),
        step_exit=data.draw(st.none() | st.integers(0, 1), "step_exit"),
        state=data.draw(st.sampled_from(["", "COMPLETED", "TIMEOUT"]), "state"),
    )
    rows = st.none() | st.sampled_from([state.word for state in STATES]).map(make_row)
    accounting, queue = data.draw(rows, "accounting"), data.draw(rows, "queue")
    restarts = data.draw(st.integers(0, 2), "restarts")
    squeue = data.draw(st.sampled_from(get_args(state_sources.Answer)), "squeue")
    together = data.draw(st.booleans(), "together")
    evidence = Reports(record, accounting, restarts, queue, squeue, together=together)
    state = resolve_state(evidence)
    if state.kind == "succeeded":
        states = {job_row.state for job_row in (accounting, queue) if job_row is not None}
        by_record = record.attempt >= restarts and (record.exit == 0 or record.state == "COMPLETED")
        assert "COMPLETED" in states or by_record
    says = parse_state(accounting.state) if accounting else None
    if says and says.kind == "failed" and not together:
        assert state.kind != "succeeded"
    attempts = {restarts, restarts + 1} if says and says.returns and queue else {restarts}
    assert state.attempt in {max(record.attempt, number) for number in attempts}


@pytest.mark.parametrize("ago", [-30.0, 0.0, 89.0, state_sources.VISIBILITY_DELAY, 9e9])
def test_a_job_that_completed_is_waited_for_until_its_own_end_is_visible(ago):
    for name, record in RECORDS.items():
        state = resolve_state(Reports(record, make_row("COMPLETED")))
        deferred = state_sources.defer_end(state, record, now=200.0 + ago)
        waits = not record.ended and ago < state_sources.VISIBILITY_DELAY
        assert (deferred.word, deferred.kind) == ("COMPLETED", "running" if waits else "succeeded")
        shown = ("status not visible yet" in deferred.detail, deferred.advice)
        assert shown == (waits, ""), name
