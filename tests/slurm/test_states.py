from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbert.slurm.reasons import (
    REASONS,
    TEXTS,
    WAIT,
    describe_reason,
    find_reason_advice,
    find_reasons,
    never_starts,
)
from hpcbert.slurm.state_sources import JobRecord, reduce_events
from hpcbert.slurm.states import (
    STATES,
    Kind,
    RepeatState,
    dump_state,
    load_state,
    parse_state,
)
from tests.kit.cases import cases, read_cases

HERE = Path(__file__).parent


@pytest.mark.parametrize(("text", "word", "kind"), read_cases(HERE / "states.tsv"))
def test_every_way_to_write_a_state_is_understood(text: str, word: str, kind: str) -> None:
    state = parse_state(text)
    assert (state.word, state.kind) == (word, kind)


@given(st.text(max_size=30))
def test_only_completed_is_a_success(text: str) -> None:
    if parse_state(text).kind == "succeeded":
        assert text.strip().upper().startswith(("COMPLETED", "CD"))


def test_every_state_of_the_newest_slurm_is_in_the_table() -> None:
    # SchedMD/slurm@284c3b9, src/common/slurm_protocol_defs.c: job_state_string, and what only
    # job_state_string_complete names; slurm/slurm.h there and in slurm-22-05-8-1.
    kinds = {state.word: state.kind for state in STATES}
    printed = (
        "LAUNCH_FAILED GETENV_FAILED RECONFIG_FAIL POWER_UP_NODE UPDATE_DB "
        "COMPLETING STAGE_OUT CONFIGURING EXPEDITING RESIZING REQUEUED REQUEUE_FED REQUEUE_HOLD "
        "SPECIAL_EXIT STOPPED REVOKED RESV_DEL_HOLD SIGNALING PENDING RUNNING SUSPENDED COMPLETED "
        "CANCELLED FAILED TIMEOUT NODE_FAIL PREEMPTED BOOT_FAIL DEADLINE OUT_OF_MEMORY"
    )
    assert set(printed.split()) <= set(kinds)
    assert [word for word, kind in kinds.items() if kind == "succeeded"] == ["COMPLETED"]
    assert len(kinds) == len(STATES)


def test_a_kind_is_alive_or_over_or_unknown_and_never_two_of_them() -> None:
    assert {kind for kind in Kind if kind.over} == {Kind.SUCCEEDED, Kind.FAILED, Kind.UNNEEDED}
    assert {kind for kind in Kind if not kind.over and not kind.alive} == {Kind.UNKNOWN}
    assert not any(kind.over and kind.alive for kind in Kind)
    assert all(kind.alive for kind in Kind if kind.queued)


def test_a_kind_is_written_as_its_public_word() -> None:
    words = [str(kind) for kind in Kind]
    assert json.loads(json.dumps({kind: [kind, f"{kind}"] for kind in Kind})) == {
        word: [word, word] for word in words
    }
    ends = ["succeeded", "failed", "requeued", "unknown", "unneeded"]
    assert words == ["waiting", "running", *ends]


@pytest.mark.parametrize("kind", ["done", "", None, 1, ["succeeded"]])
def test_a_state_of_another_kind_is_not_recalled(kind: object) -> None:
    data = dump_state(RepeatState("COMPLETED", Kind.SUCCEEDED, "sacct"))
    assert load_state(json.loads(json.dumps(data))).kind is Kind.SUCCEEDED
    with pytest.raises(TypeError):
        load_state({**data, "kind": kind})


def test_every_short_code_is_in_the_table() -> None:
    # SchedMD/slurm@284c3b9, src/common/slurm_protocol_defs.c, job_state_string_compact
    printed = "CG SO CF RS RQ RF RH SE ST RV RD SI PD R S CD CA F TO NF PR BF DL OOM"
    codes = [state.code for state in STATES if state.code]
    assert sorted(codes) == sorted(printed.split())
    assert all(parse_state(state.code) == state for state in STATES if state.code)


def test_sentences_follow_a_subject_and_each_state_has_advice() -> None:
    for state in STATES:
        assert re.match(r"[a-z].*[a-z]$", state.sentence), state
        assert re.match(r"[a-z].*[a-zA-Z]$", state.advice), state


def test_advice_is_about_why_a_job_waits_and_not_that_it_does() -> None:
    repeat_state = RepeatState("PENDING", Kind.WAITING, "squeue", reason="JobHeldUser")
    assert "scontrol release" in repeat_state.advice
    assert RepeatState("COMPLETED", Kind.SUCCEEDED, "sacct").advice == ""
    assert "--time" in RepeatState("TIMEOUT", Kind.FAILED, "sacct").advice


@pytest.mark.parametrize("reason", ["", "None", " "])
def test_no_reason_is_no_sentence(reason: str) -> None:
    assert describe_reason(reason) == ""
    assert find_reason_advice(reason) == ""


def test_every_reason_of_the_newest_slurm_has_a_sentence_and_advice() -> None:
    # SchedMD/slurm@284c3b9, src/common/job_state_reason.c, all of its texts but None
    words = (HERE / "reasons.txt").read_text().split()
    assert len(words) == 220
    for word in words:
        assert [text for text, reason_text in find_reasons(word) if reason_text] == [word]
        assert describe_reason(word)
        assert find_reason_advice(word)


# How the advice about a job that waits begins, by what can be done about it.
ADVICE = {
    "never": "it can never start: cancel it",
    "later": "wait until other jobs have ended; if none of them",
    "used up": "ask the administrators, or cancel it",
}


@pytest.mark.parametrize(
    ("reason", "keyword", "advice", "remedy"), read_cases(HERE / "waiting.tsv")
)
def test_a_reason_to_wait_has_words_and_a_remedy(
    reason: str, keyword: str, advice: str, remedy: str
) -> None:
    """An empty cell: nothing is expected of it."""
    assert keyword in describe_reason(reason)
    assert remedy in find_reason_advice(reason)
    if advice:
        assert find_reason_advice(reason).startswith(ADVICE[advice])
        assert never_starts(reason) is (advice == "never")
    if advice and keyword:  # a limit: somebody else's may be another
        assert "another --account or --qos" in find_reason_advice(reason)


def test_reasons_are_shown_as_they_are_where_nobody_knows_them() -> None:
    assert describe_reason(" Frobbing (n1) ") == "Slurm's reason is Frobbing (n1)"
    assert find_reason_advice("Frobbing") == ""


DOWN = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
FORMS: dict[str, Callable[[str], str]] = {
    "squeue-r": str,
    "squeue-R": lambda text: f"({text})",
    "scontrol": lambda text: text.replace(" ", "_"),
    "padded": lambda text: f" {text} ",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "text",
    # What slurmctld and burst buffers write into state_desc, 22.05 to 26.05, with names made up.
    [
        DOWN,
        DOWN.replace("DRAINED", "DRAINED, REBOOTING"),
        "ReqNodeNotAvail, UnavailableNodes:n[1-2]",
        "ReqNodeNotAvail, UnavailableNodes:n[1-2,4],m7",
        "ReqNodeNotAvail, May be reserved for other job",
        "ReqNodeNotAvail, Reserved for maintenance",
        "job requeued in held state",
        "job requeued in special exit state",
        "launch failed requeued held",
        "launch failure limit exceeded requeued held",
        "user env retrieval failed requeued held",
        "Job's account not permitted to use this partition (gpu allows a,b not c)",
        "Job's account not permitted to use this partition (gpu denies a,c including c)",
        "Job's QOS not permitted to use this partition (gpu allows a,b not c)",
        "Job's QOS not known, so it can't use this partition (gpu allows a)",
        "User's group not permitted to use this partition",
        "uid 1000 not in group permitted to use this partition (gpu). groups allowed: a,b",
        "License request 'a:1,b:2' is no longer valid, holding job",
        "Reservation week was deleted",
        "Reservation week is invalid",
        "Reservation week, which this job was running under, has ended",
        "Job is at or exceeds QOS q's group max TRES(gres/gpu) minutes of 10 with 11",
        "Job is at or exceeds association (acc=a/user=u/part=p) group wall limit 10 with 11",
        "Memory resize to 10MB failed on node n1",
        "Unable to load job batch script",
        "burst_buffer/lua: Stage-out in progress",
        "Burst buffer pre_run error",
        "Error managing persistent burst buffers",
        "No suitable topology unit found for segment",
        "No available nodes in topology",
        "RaisedSignal:9(Killed)",
    ],
    ids=lambda text: re.sub(r"\W+", "-", text)[:60],
)
def test_free_texts_have_a_sentence_and_advice_in_every_form(text: str, form: str) -> None:
    shown = FORMS[form](text)
    assert [part for part, _ in find_reasons(text)] == [text], "its commas are its own"
    assert "Slurm's reason" not in describe_reason(shown)
    assert describe_reason(shown) == describe_reason(text) != ""
    assert find_reason_advice(shown) == find_reason_advice(text) != ""
    # The waiting tasks of an array have a reason each.
    joined = FORMS[form](f"{text},JobArrayTaskLimit")
    assert describe_reason(joined) == (
        f"{describe_reason(text)}; {describe_reason('JobArrayTaskLimit')}"
    )
    if find_reason_advice(text) != WAIT:
        assert find_reason_advice(joined) == find_reason_advice(text)


@pytest.mark.parametrize(
    ("cut", "full"),
    [
        ("(Nodes required for j", DOWN),
        ("Nodes required for job are DOWN, DRAINED or res", DOWN),
        ("Nodes_required_for_job_are_+", DOWN),
        ("JobArrayTaskL+", "JobArrayTaskLimit"),
        ("DependencyNever+", "DependencyNeverSatisfied"),
        ("(Job's account not permi", "Job's account not permitted to use this partition (p)"),
        ("ReqNodeNotAvail, Reserved for mai", "ReqNodeNotAvail, Reserved for maintenance"),
    ],
    ids=lambda text: re.sub(r"\W+", "-", text)[:50],
)
def test_reasons_that_were_cut_off_are_known_where_only_one_begins_so(cut: str, full: str) -> None:
    assert describe_reason(cut) == describe_reason(full)
    assert find_reason_advice(cut) == find_reason_advice(full)


@cases
def test_what_sbatch_refuses_has_advice(complaint: str, advised: str) -> None:
    state = RepeatState("REFUSED", Kind.FAILED, "none", detail=f"sbatch: {complaint}")
    assert advised in state.advice


def test_what_nobody_knows_stands_beside_what_is_known() -> None:
    assert describe_reason("Resources, ask Bob") == (
        f"{describe_reason('Resources')}; Slurm's reason is ask Bob"
    )
    assert describe_reason("Frobbing, then more_words") == (
        "Slurm's reason is Frobbing, then more_words"
    )
    assert describe_reason("(Frob)") == "Slurm's reason is (Frob)"
    assert "n[1-2,4],m7" in describe_reason("ReqNodeNotAvail, UnavailableNodes:n[1-2,4],m7")
    assert "maintenance" in describe_reason("ReqNodeNotAvail, Reserved for maintenance")
    for nothing in ("", " ", "None", "(None)", "(null)", "()"):
        assert (describe_reason(nothing), find_reason_advice(nothing)) == ("", "")


def test_of_several_reasons_the_one_that_needs_somebody_gives_the_advice() -> None:
    assert find_reason_advice("Priority,JobHeldUser") == find_reason_advice("JobHeldUser")
    assert find_reason_advice("Resources,Priority") == WAIT
    both = find_reason_advice("PartitionTimeLimit,JobHeldAdmin")
    assert (
        both == f"{find_reason_advice('PartitionTimeLimit')}; {find_reason_advice('JobHeldAdmin')}"
    )


def test_reasons_are_part_of_a_sentence() -> None:
    for reason_text in (*REASONS.values(), *TEXTS.values()):
        assert re.match(r"(?:[a-z]|Slurm ).*[a-zA-Z)]$", reason_text.sentence), reason_text
        assert re.match(r"[a-z].*[a-zA-Z]$", reason_text.advice), reason_text


START = {"event": "start", "time": 100, "attempt": 0, "nodelist": "n[1-2]", "job": "1_1"}


def test_a_witness_tells_how_it_went() -> None:
    job_record = reduce_events(
        [
            START,
            {"event": "step", "time": 110, "attempt": 0},
            {"event": "step-end", "time": 190, "attempt": 0, "exit": 3},
            {"event": "end", "time": 200, "attempt": 0, "exit": 3},
        ]
    )
    times = JobRecord(0, start=100, end=200, exit=3, step_exit=3, nodelist="n[1-2]")
    assert job_record == replace(times, phase="step-end", jobs=("1_1",))
    assert job_record.where == "in the measured step"


@cases
def test_what_a_witness_did_not_write_tells_where_it_died(marks: list[str], where: str) -> None:
    events = [{"event": mark, "time": 101, "attempt": 0, "exit": 0} for mark in marks]
    assert reduce_events([START, *events]).where == where
    assert reduce_events([]).where == ""


def test_a_retrys_witness_is_not_that_of_the_attempts_before_it() -> None:
    before = [START, {"event": "end", "time": 120, "attempt": 0, "exit": 0}]
    assert reduce_events(before, first=1) == JobRecord(1)
    again = {"event": "start", "time": 300, "attempt": 1, "nodelist": "n3", "job": "2_1"}
    assert reduce_events([*before, again], first=1).jobs == ("2_1",)


def test_two_jobs_in_one_attempt_are_both_remembered() -> None:
    other = {**START, "job": "2_1"}
    assert reduce_events([START, other]).jobs == ("1_1", "2_1")


def test_the_newest_attempt_is_the_one_that_counts() -> None:
    first = [START, {"event": "end", "time": 120, "attempt": 0, "exit": 0}]
    again = {"event": "start", "time": 300, "attempt": 1, "nodelist": "n3"}
    late = {"event": "end", "time": 301, "attempt": 0, "exit": 0}
    job_record = reduce_events([*first, again, late])
    assert job_record == JobRecord(1, start=300, nodelist="n3", phase="start")


def test_the_local_queues_word_keeps_the_scripts_own_status() -> None:
    finished = {"event": "finished", "time": 130, "attempt": 0, "state": "TIMEOUT", "exit": 137}
    job_record = reduce_events(
        [START, {"event": "end", "time": 129, "attempt": 0, "exit": 143}, finished]
    )
    assert (job_record.state, job_record.exit, job_record.end) == ("TIMEOUT", 143, 130)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@given(
    st.lists(
        st.dictionaries(
            (st.sampled_from(["event", "time", "attempt", "exit", "state", "signal", "nodelist"])),
            JSON | (st.sampled_from(["start", "step", "step-end", "signal", "end", "finished"])),
            max_size=7,
        ),
        max_size=6,
    )
)
def test_any_events_make_a_witness(events: list[dict[str, Any]]) -> None:
    job_record = reduce_events(events)
    assert job_record.attempt >= 0
    assert job_record.exit is None or isinstance(job_record.exit, int)
