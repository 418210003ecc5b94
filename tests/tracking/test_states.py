from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbert.slurm.states import STATES, UNKNOWN, Witness, parse, reason_sentence, witness

KINDS = {state.word: state.kind for state in STATES}


@pytest.mark.parametrize(
    ("text", "word", "kind"),
    [
        ("COMPLETED", "COMPLETED", "well"),
        ("CANCELLED by 1000", "CANCELLED", "badly"),
        ("CANCELLED+", "CANCELLED", "badly"),
        ("OUT_OF_ME+", "OUT_OF_MEMORY", "badly"),
        ("NODE_FAIL", "NODE_FAIL", "badly"),
        ("running", "RUNNING", "running"),
        ("SUSPENDED", "SUSPENDED", "running"),
        ("CONFIGURING", "CONFIGURING", "waiting"),
        ("REQUEUE_HOLD", "REQUEUE_HOLD", "again"),
        ("EXPEDITING", "EXPEDITING", "again"),
    ],
)
def test_every_way_to_write_a_state_is_understood(text: str, word: str, kind: str) -> None:
    state = parse(text)
    assert (state.word, state.kind) == (word, kind)


@pytest.mark.parametrize("text", ["", "COMP+", "+", "FROBBING", "0", "COMPLETE", "COMPLETEDX", "?"])
def test_what_is_not_understood_is_unknown(text: str) -> None:
    state = parse(text)
    assert (state.word, state.kind) == (UNKNOWN, "unknown")


@given(st.text(max_size=30))
def test_only_completed_is_a_success(text: str) -> None:
    if parse(text).kind == "well":
        assert text.strip().upper().startswith("COMPLETED")


def test_every_state_of_the_newest_slurm_is_in_the_table() -> None:
    # SchedMD/slurm@284c3b9, src/common/slurm_protocol_defs.c, job_state_string
    printed = (
        "COMPLETING STAGE_OUT CONFIGURING EXPEDITING RESIZING REQUEUED REQUEUE_FED REQUEUE_HOLD "
        "SPECIAL_EXIT STOPPED REVOKED RESV_DEL_HOLD SIGNALING PENDING RUNNING SUSPENDED COMPLETED "
        "CANCELLED FAILED TIMEOUT NODE_FAIL PREEMPTED BOOT_FAIL DEADLINE OUT_OF_MEMORY"
    )
    assert set(printed.split()) <= set(KINDS)
    assert [word for word, kind in KINDS.items() if kind == "well"] == ["COMPLETED"]
    assert len(KINDS) == len(STATES)


def test_sentences_follow_a_subject() -> None:
    for state in STATES:
        assert re.match(r"[a-z].*[a-z]$", state.sentence), state


@pytest.mark.parametrize(
    ("reason", "part"),
    [
        ("Resources", "until enough nodes are free"),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-2]", "a node it needs"),
        ("AssocGrpGRES", "your account is at its limit (AssocGrpGRES)"),
        ("QOSMaxJobsPerUserLimit", "the QOS is at its limit (QOSMaxJobsPerUserLimit)"),
        ("Brand New Reason", "Slurm's reason is Brand New Reason"),
        ("job requeued in held state", "is held"),
    ],
)
def test_reasons_become_sentences(reason: str, part: str) -> None:
    assert part in reason_sentence(reason)


@pytest.mark.parametrize("reason", ["", "None", " "])
def test_no_reason_is_no_sentence(reason: str) -> None:
    assert reason_sentence(reason) == ""


START = {"event": "start", "time": 100, "attempt": 0, "nodelist": "n[1-2]", "job": "1_1"}


def test_a_witness_tells_how_it_went() -> None:
    seen = witness(
        [
            START,
            {"event": "step", "time": 110, "attempt": 0},
            {"event": "step-end", "time": 190, "attempt": 0, "exit": 3},
            {"event": "end", "time": 200, "attempt": 0, "exit": 3},
        ]
    )
    assert seen == Witness(0, start=100, end=200, exit=3, step_exit=3, nodelist="n[1-2]")


def test_the_newest_attempt_is_the_one_that_counts() -> None:
    first = [START, {"event": "end", "time": 120, "attempt": 0, "exit": 0}]
    again = {"event": "start", "time": 300, "attempt": 1, "nodelist": "n3"}
    late = {"event": "end", "time": 301, "attempt": 0, "exit": 0}
    seen = witness([*first, again, late])
    assert seen == Witness(1, start=300, nodelist="n3")


def test_the_local_queues_word_keeps_the_scripts_own_status() -> None:
    finished = {"event": "finished", "time": 130, "attempt": 0, "state": "TIMEOUT", "exit": 137}
    seen = witness([START, {"event": "end", "time": 129, "attempt": 0, "exit": 143}, finished])
    assert (seen.state, seen.exit, seen.end) == ("TIMEOUT", 143, 130)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
KEYS = st.sampled_from(["event", "time", "attempt", "exit", "state", "signal", "nodelist"])
EVENT = st.sampled_from(["start", "step", "step-end", "signal", "end", "finished"])


@given(st.lists(st.dictionaries(KEYS, JSON | EVENT, max_size=7), max_size=6))
def test_any_events_make_a_witness(events: list[dict[str, Any]]) -> None:
    seen = witness(events)
    assert seen.attempt >= 0
    assert seen.exit is None or isinstance(seen.exit, int)
