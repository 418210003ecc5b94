from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbert.slurm.commands import JobRow
from hpcbert.slurm.reasons import ABSENT
from hpcbert.slurm.state_sources import (
    VISIBILITY_DELAY,
    Answer,
    JobRecord,
    Reports,
    convert_row,
    defer_end,
    needs_squeue,
    resolve_state,
)
from hpcbert.slurm.states import STATES, Kind, parse_state
from tests.kit.cases import cases

NOW = 1000.0
RAN = JobRecord(start=100, nodelist="n[1-2]")
ENDED_WELL = replace(RAN, end=200, exit=0, step_exit=0)
ENDED_BADLY = replace(RAN, end=200, exit=3, step_exit=3)


def row(state: str, **changes: object) -> JobRow:
    values = {"start": 100.0, "end": 200.0, "nodelist": "n1", "exit_code": 0, **changes}
    return JobRow("7", ((1, 1, 1),), "nobody", "x", state, **values)  # type: ignore[arg-type]


def test_accounting_is_believed_first() -> None:
    state = resolve_state(Reports(ENDED_WELL, row("FAILED", exit_code=2)))
    assert (state.word, state.source, state.exit_code) == ("FAILED", "sacct", 2)
    assert state.detail == "failed, exit status 2"
    assert state.nodes == ("n1",)


def test_the_steps_own_status_stands_beside_the_schedulers_word() -> None:
    state = resolve_state(Reports(ENDED_BADLY, row("COMPLETED")))
    assert (state.word, state.kind, state.exit_code) == ("COMPLETED", "succeeded", 0)
    assert state.step_exit == 3


def test_what_accounting_has_not_heard_of_yet_is_what_squeue_says() -> None:
    queue = row("PENDING", reason="Resources", start=None, nodelist="")
    state = resolve_state(Reports(JobRecord(), queue=queue, squeue="answered"))
    assert (state.word, state.source) == ("PENDING", "squeue")
    assert state.detail == "waits until enough nodes are free"


def test_the_job_itself_is_the_last_to_be_asked() -> None:
    for answer in ("answered", "failed", "absent"):
        well = resolve_state(Reports(ENDED_WELL, squeue=answer))
        assert (well.word, well.source, well.exit_code) == ("COMPLETED", "status-file", 0)
        badly = resolve_state(Reports(ENDED_BADLY, squeue=answer))
        assert (badly.word, badly.kind, badly.step_exit) == ("FAILED", "failed", 3)
        assert badly.nodes == ("n1", "n2")
        assert badly.elapsed == 100


def test_silence_of_squeue_is_no_success() -> None:
    nothing = resolve_state(Reports(JobRecord(), squeue="answered"))
    assert (nothing.word, nothing.kind, nothing.source) == ("UNKNOWN", "unknown", "none")
    died = resolve_state(Reports(RAN, squeue="answered"))
    assert (died.word, died.kind) == ("UNKNOWN", "unknown")
    assert "never recorded its end" in died.detail


def test_a_job_runs_by_its_own_account_while_slurm_does_not_answer() -> None:
    state = resolve_state(Reports(RAN, squeue="failed"))
    assert (state.word, state.source) == ("RUNNING", "status-file")
    assert resolve_state(Reports(RAN, squeue="absent")).word == "UNKNOWN"


@pytest.mark.parametrize("word", [state.word for state in STATES if state.returns])
def test_an_end_that_slurm_may_take_back_is_checked_with_squeue(word: str) -> None:
    lost = Reports(RAN, row(word))
    assert needs_squeue(lost)
    again = replace(lost, queue=row("PENDING", reason="BeginTime"), squeue="answered")
    assert resolve_state(again).word == "PENDING"
    assert resolve_state(replace(lost, squeue="answered")).word == word
    assert resolve_state(replace(lost, queue=row(word), squeue="answered")).source == "sacct"


def test_an_end_beyond_doubt_needs_no_second_question() -> None:
    for word in ("COMPLETED", "FAILED", "CANCELLED by 7", "TIMEOUT", "OUT_OF_MEMORY", "DEADLINE"):
        assert not needs_squeue(Reports(ENDED_WELL, row(word)))
    assert not needs_squeue(Reports(RAN, row("RUNNING")))
    # squeue still cleans up what sacct has ended
    ending = Reports(RAN, row("COMPLETED"), queue=row("COMPLETING"), squeue="answered")
    assert resolve_state(ending).word == "COMPLETED"


def test_accounting_that_stands_still_is_noticed() -> None:
    stale = Reports(ENDED_WELL, row("RUNNING"))
    assert needs_squeue(stale)
    reports = replace(stale, squeue="answered")
    assert (resolve_state(reports).word, resolve_state(reports).source) == (
        "COMPLETED",
        "status-file",
    )
    ended = replace(stale, queue=row("FAILED"), squeue="answered")
    assert (resolve_state(ended).word, resolve_state(ended).source) == ("FAILED", "squeue")
    forgotten = resolve_state(Reports(JobRecord(), row("PENDING"), squeue="answered"))
    assert forgotten.word == "UNKNOWN"
    assert "sacct still says PENDING" in forgotten.detail


def test_an_earlier_attempts_end_is_not_the_newest_ones() -> None:
    waits = row("PENDING", reason="BeginTime", start=None)
    requeued = Reports(ENDED_WELL, waits, restarts=1)
    state = resolve_state(requeued)
    assert (state.word, state.attempt, state.step_exit, state.nodes) == (
        "PENDING",
        1,
        None,
        ("n1",),
    )
    assert resolve_state(replace(requeued, squeue="answered")).kind != "succeeded"


def test_a_running_repeat_has_no_end_although_squeue_foretells_one() -> None:
    state = convert_row(row("RUNNING", end=9999.0), "squeue")
    assert (state.end, state.exit_code, state.start) == (None, None, 100.0)


class TestTogether:
    """Several repeats in one job: the job's state is not each repeat's."""

    def test_while_the_job_runs_each_repeat_speaks_for_itself(self) -> None:
        running = row("RUNNING")
        before = resolve_state(Reports(ENDED_WELL, running, together=True))
        now = resolve_state(Reports(RAN, running, together=True))
        after = resolve_state(Reports(JobRecord(), running, together=True))
        assert [repeat_state.word for repeat_state in (before, now, after)] == [
            "COMPLETED",
            "RUNNING",
            "PENDING",
        ]
        assert before.source == "status-file"
        assert after.kind == "waiting"

    def test_a_failed_job_does_not_take_good_repeats_along(self) -> None:
        ended = row("TIMEOUT")
        words = [
            resolve_state(Reports(job_record, ended, together=True)).word
            for job_record in (ENDED_WELL, ENDED_BADLY, RAN, JobRecord())
        ]
        assert words == ["COMPLETED", "FAILED", "TIMEOUT", "TIMEOUT"]

    def test_a_job_that_waits_again_starts_all_of_them_anew(self) -> None:
        waits = Reports(
            ENDED_WELL,
            row("NODE_FAIL"),
            queue=row("PENDING"),
            squeue="answered",
            together=True,
        )
        assert resolve_state(waits).word == "PENDING"

    def test_a_completed_job_completed_all(self) -> None:
        assert resolve_state(Reports(RAN, row("COMPLETED"), together=True)).source == "sacct"


ROWS = st.none() | st.sampled_from([state.word for state in STATES]).map(row)
ANSWERS: tuple[Answer, ...] = ("answered", "failed", "absent", "unasked")


@given(
    record=(
        st.builds(
            JobRecord,
            attempt=st.integers(0, 2),
            start=st.none() | st.just(100.0),
            end=st.none() | st.just(200.0),
            exit=st.none() | st.integers(0, 3),
            step_exit=st.none() | st.integers(0, 1),
            state=st.sampled_from(["", "COMPLETED", "TIMEOUT"]),
        )
    ),
    accounting=ROWS,
    restarts=st.integers(0, 2),
    queue=ROWS,
    squeue=st.sampled_from(ANSWERS),
    together=st.booleans(),
)
def test_success_is_never_guessed(
    *,
    record: JobRecord,
    accounting: JobRow | None,
    restarts: int,
    queue: JobRow | None,
    squeue: Answer,
    together: bool,
) -> None:
    evidence = Reports(record, accounting, restarts, queue, squeue, together=together)
    state = resolve_state(evidence)
    if state.kind == "succeeded":
        states = {job_row.state for job_row in (accounting, queue) if job_row is not None}
        by_record = record.attempt >= restarts and (record.exit == 0 or record.state == "COMPLETED")
        assert "COMPLETED" in states or by_record
    if accounting is not None and parse_state(accounting.state).kind == "failed" and not together:
        assert state.kind != "succeeded"
    returned = (
        accounting is not None and parse_state(accounting.state).returns and queue is not None
    )
    attempts = {restarts, restarts + 1} if returned else {restarts}
    assert state.attempt in {max(record.attempt, number) for number in attempts}


def test_a_restart_that_only_squeue_knows_of_is_an_attempt_of_its_own() -> None:
    """And what accounting says of the one before is kept, with the node by name."""
    lost = row("NODE_FAIL", nodelist="n3", exit_code=None)
    queue = row("PENDING", reason="BeginTime", start=None, nodelist="")
    waits = Reports(RAN, lost, queue=queue, squeue="answered", history=((0, lost),))
    state = resolve_state(waits)
    assert (state.word, state.attempt) == ("PENDING", 1)
    (before,) = state.earlier
    assert (before.word, before.attempt, before.nodes) == ("NODE_FAIL", 0, ("n3",))
    assert before.detail == "lost a node (n3)"


LOST, LATER = row("NODE_FAIL", submit=50.0), 90.0


@pytest.mark.parametrize(
    ("accounting", "queue", "expected"),
    [
        (LOST, row("COMPLETING", submit=50.0), ("NODE_FAIL", "failed", "sacct", 0)),
        (LOST, row("COMPLETING"), ("NODE_FAIL", "failed", "sacct", 0)),
        (LOST, row("PENDING", submit=50.0), ("PENDING", "waiting", "squeue", 1)),
        (LOST, row("PENDING", submit=LATER), ("PENDING", "waiting", "squeue", 1)),
        (LOST, row("CANCELLED", submit=50.0), ("NODE_FAIL", "failed", "sacct", 0)),
        (LOST, row("CANCELLED", submit=LATER), ("CANCELLED", "failed", "squeue", 1)),
        (LOST, row("COMPLETING", submit=LATER), ("COMPLETING", "running", "squeue", 1)),
        (
            row("RUNNING", submit=50.0),
            row("RUNNING", submit=LATER),
            ("RUNNING", "running", "squeue", 1),
        ),
        (
            row("RUNNING", submit=50.0),
            row("PENDING", submit=LATER),
            ("PENDING", "waiting", "squeue", 1),
        ),
        (
            row("COMPLETED", submit=50.0),
            row("PENDING", submit=LATER),
            ("PENDING", "waiting", "squeue", 1),
        ),
    ],
    ids=[
        "its nodes are cleaned up",
        "cleaned up, time unknown",
        "it waits again, within the second",
        "it waits again",
        "it was cancelled",
        "it was cancelled when it waited again",
        "its next run ends already",
        "it runs again, and accounting lags",
        "it waits again, and accounting lags",
        "it completed and was sent back",
    ],
)
def test_the_later_submission_says_which_run_is_the_newest(
    accounting: JobRow, queue: JobRow, expected: tuple[object, ...]
) -> None:
    state = resolve_state(Reports(JobRecord(start=100), accounting, queue=queue, squeue="answered"))
    assert (state.word, state.kind, state.source, state.attempt) == expected


@cases
def test_who_cancelled_is_told_where_slurm_tells(word: str, detail: str) -> None:
    assert resolve_state(Reports(JobRecord(), row(word))).detail == detail


PAUSED = replace(ENDED_WELL, suspended=31.25)


@pytest.mark.parametrize(
    ("evidence", "seconds"),
    [
        (Reports(PAUSED, squeue="answered"), 31.25),
        (Reports(PAUSED, row("COMPLETED", elapsed=100.0)), 31.25),
        (Reports(PAUSED, row("COMPLETED", elapsed=60.0)), 40.0),
        (Reports(PAUSED, queue=row("COMPLETED", elapsed=60.0), squeue="answered"), 40.0),
    ],
    ids=["own word only", "accounting saw none", "both", "squeue"],
)
def test_whoever_noticed_a_pause_is_believed(evidence: Reports, seconds: float) -> None:
    assert resolve_state(evidence).suspended == seconds


@pytest.mark.parametrize("word", ["COMPLETED", "FAILED"])
@pytest.mark.parametrize(
    ("record", "pause", "spoilt"),
    [
        (replace(ENDED_WELL, watched=True, suspended=40.0), 40.0, 40.0),
        (replace(ENDED_WELL, watched=True), 40.0, 0.0),
        (replace(ENDED_WELL, watched=True), 2.0, 2.0),
        (ENDED_WELL, 40.0, 40.0),
    ],
    ids=["this one", "another one", "too short to be noticed", "nobody looked out"],
)
def test_of_repeats_in_one_job_the_one_that_was_suspended_is_spoilt(
    word: str, record: JobRecord, pause: float, spoilt: float
) -> None:
    """Be it that the job completed, or that another of its repeats failed."""
    job = row(word, elapsed=100.0 - pause)
    assert resolve_state(Reports(record, job, together=True)).suspended == spoilt


def test_a_requeue_that_never_comes_is_not_waited_for() -> None:
    state = resolve_state(Reports(RAN, row("REQUEUED"), squeue="answered"))
    assert (state.word, state.kind) == ("UNKNOWN", "unknown")
    assert "sacct still says REQUEUED" in state.detail


def test_time_that_a_job_was_suspended_is_told() -> None:
    state = resolve_state(Reports(ENDED_WELL, row("COMPLETED", elapsed=100.0)))
    assert (state.kind, state.suspended) == ("succeeded", 0.0)
    cut = resolve_state(Reports(ENDED_WELL, row("COMPLETED", elapsed=93.0)))
    assert (cut.kind, cut.suspended) == ("succeeded", 7.0)
    assert resolve_state(Reports(RAN, row("RUNNING", elapsed=3.0))).suspended == 0.0
    assert resolve_state(Reports(ENDED_WELL, row("COMPLETED", elapsed=99.0))).suspended == 0.0


@pytest.mark.parametrize("recorded", ["None", "JobArrayTaskLimit", "Priority"])
def test_why_a_job_waits_is_told_by_squeue(recorded: str) -> None:
    """Accounting keeps the reason of the moment when it first heard of the job."""
    waits = Reports(JobRecord(), row("PENDING", reason=recorded, start=None))
    assert needs_squeue(waits)
    reports = replace(waits, queue=row("PENDING", reason="JobHeldUser"), squeue="answered")
    state = resolve_state(reports)
    assert (state.source, state.reason) == ("sacct", "JobHeldUser")
    assert "scontrol release" in state.advice


@pytest.mark.parametrize("record", [JobRecord(), RAN, replace(RAN, step_exit=0)])
@pytest.mark.parametrize(
    ("ago", "kind"),
    [
        (0.0, "running"),
        (30.0, "running"),
        (-30.0, "running"),
        (VISIBILITY_DELAY, "succeeded"),
        (9e9, "succeeded"),
    ],
)
def test_a_job_that_completed_is_waited_for_until_its_own_end_is_visible(
    record: JobRecord, ago: float, kind: str
) -> None:
    state = resolve_state(Reports(record, row("COMPLETED")))
    repeat_state = defer_end(state, record, now=200.0 + ago)
    assert (repeat_state.word, repeat_state.kind) == ("COMPLETED", kind)
    assert ("status not visible yet" in repeat_state.detail) is (kind == "running")
    assert repeat_state.advice == ""


@pytest.mark.parametrize("record", [ENDED_WELL, ENDED_BADLY, replace(RAN, state="COMPLETED")])
def test_an_end_that_is_visible_is_not_waited_for(record: JobRecord) -> None:
    state = resolve_state(Reports(record, row("COMPLETED")))
    assert defer_end(state, record, now=200.0) == state


@cases
def test_a_job_that_was_never_started_has_no_exit_status(
    signal: int, reason: str, detail: str, advised: str
) -> None:
    exit_code = 128 + signal if signal else 0
    state = convert_row(row("FAILED", exit_code=exit_code, signal=signal, reason=reason), "sacct")
    assert detail in state.detail
    assert state.detail.endswith("(n1)")
    assert "exit status" not in state.detail
    assert state.exit_code is None
    assert advised in state.advice


@pytest.mark.parametrize(
    ("record", "restarts", "detail"),
    [
        (JobRecord(), 0, "ran nothing: on its node the directory of the campaign is missing"),
        (ENDED_BADLY, 1, "ran nothing: on its node the directory of the campaign is missing"),
        (replace(ENDED_BADLY, exit=66, step_exit=66), 0, "failed, exit status 66"),
        (RAN, 0, "failed, exit status 66"),
    ],
    ids=["wrote nothing", "wrote nothing when requeued", "the step's own", "killed"],
)
def test_a_script_that_lacks_its_campaign_says_so(
    record: JobRecord, restarts: int, detail: str
) -> None:
    ended = row("FAILED", exit_code=ABSENT, reason="NonZeroExitCode")
    state = resolve_state(Reports(record, ended, restarts=restarts))
    assert state.detail.startswith(detail)
    ran = "exit status" in detail
    assert (state.exit_code is None, "all nodes mount" in state.advice) == (not ran, not ran)


def test_a_program_that_ends_with_181_itself_keeps_its_status() -> None:
    state = convert_row(row("FAILED", exit_code=181, reason="NonZeroExitCode"), "sacct")
    assert (state.exit_code, state.detail) == (181, "failed, exit status 181")


@cases
def test_why_slurm_never_started_a_job_is_its_end(
    accounting_reason: str, shown: str | None, detail: str
) -> None:
    never: dict[str, object] = {"nodelist": "", "elapsed": 0.0, "exit_code": 1}
    reports = Reports(
        record=JobRecord(),
        accounting=row("FAILED", reason=accounting_reason, **never),
        queue=row("FAILED", reason=shown, **never) if shown else None,
        squeue="answered",
    )
    assert needs_squeue(reports) == (accounting_reason == "None")
    state = resolve_state(reports)
    assert (state.word, state.kind, state.exit_code) == ("FAILED", Kind.FAILED, None)
    assert "before it started" in state.detail
    assert detail in state.detail
    assert "retry would end the same way" in state.advice


@pytest.mark.parametrize(
    ("word", "reason"),
    [("CANCELLED by 0", "DependencyNeverSatisfied"), ("DEADLINE", "DeadLine")],
)
def test_what_slurm_ends_in_the_queue_has_its_reason(word: str, reason: str) -> None:
    job_row = row(word, reason=reason, nodelist="", elapsed=0.0, exit_code=0)
    state = resolve_state(Reports(record=JobRecord(), accounting=job_row, squeue="answered"))
    assert f"({reason})" in state.detail


@pytest.mark.parametrize("reason", ["None", "Priority", "Resources"])
def test_a_job_that_ran_and_failed_is_not_called_impossible(reason: str) -> None:
    ran = row("FAILED", reason=reason, nodelist="n1", elapsed=9.0, exit_code=1)
    state = resolve_state(Reports(record=JobRecord(), accounting=ran, squeue="answered"))
    assert state.detail == "failed, exit status 1"
    assert not state.hopeless
