from __future__ import annotations

import json
import re
from collections.abc import Callable
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
from tests.kit.cases import cases, read_cases, read_constant

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


FORMS: dict[str, Callable[[str], str]] = {
    "squeue-r": str,
    "squeue-R": lambda text: f"({text})",
    "scontrol": lambda text: text.replace(" ", "_"),
    "padded": lambda text: f" {text} ",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "text",
    read_constant(__file__, "TEXTS"),
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


@cases
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
    assert describe_reason(" Frobbing (n1) ") == "Slurm's reason is Frobbing (n1)"
    assert find_reason_advice("Frobbing") == ""
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


@cases
def test_what_a_witness_did_not_write_tells_where_it_died(marks: list[str], where: str) -> None:
    events = [{"event": mark, "time": 101, "attempt": 0, "exit": 0} for mark in marks]
    assert reduce_events([START, *events]).where == where
    assert reduce_events([]).where == ""


@cases
def test_a_witness_tells_of_its_newest_attempt(
    events: list[dict[str, Any]], first: int | None, expected: dict[str, Any]
) -> None:
    job_record = reduce_events([{"attempt": 0, **event} for event in events], first=first or 0)
    assert job_record == JobRecord(**expected)


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
