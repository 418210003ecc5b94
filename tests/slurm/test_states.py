import itertools
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbert.slurm import reasons
from hpcbert.slurm.reasons import describe_reason, find_reason_advice, find_reasons, never_starts
from hpcbert.slurm.state_sources import JobRecord, reduce_events
from hpcbert.slurm.states import STATES, Kind, RepeatState, dump_state, load_state, parse_state
from tests.kit.cases import cases, read_constant


@cases
def test_every_way_to_write_a_state_is_understood(text, word, kind):
    state = parse_state(text)
    assert (state.word, state.kind) == (word, kind)


@given(st.text(max_size=30))
def test_only_completed_is_a_success(text):
    if parse_state(text).kind == "succeeded":
        assert text.strip().upper().startswith(("COMPLETED", "CD"))


def test_every_state_and_short_code_of_the_newest_slurm_is_in_the_table():
    kinds = {state.word: state.kind for state in STATES}
    assert set(read_constant(__file__, "WORDS")) <= set(kinds)
    assert [word for word, kind in kinds.items() if kind == "succeeded"] == ["COMPLETED"]
    assert len(kinds) == len(STATES)
    codes = [state.code for state in STATES if state.code]
    assert sorted(codes) == sorted(read_constant(__file__, "CODES"))
    assert all(parse_state(state.code) == state for state in STATES if state.code)


def test_a_kind_is_alive_or_over_or_unknown_and_nothing_else_is_recalled():
    assert {kind for kind in Kind if kind.over} == {Kind.SUCCEEDED, Kind.FAILED, Kind.UNNEEDED}
    assert {kind for kind in Kind if kind.alive} == {Kind.WAITING, Kind.RUNNING, Kind.REQUEUED}
    data = dump_state(RepeatState("COMPLETED", Kind.SUCCEEDED, "sacct"))
    assert load_state(json.loads(json.dumps(data))).kind is Kind.SUCCEEDED
    for kind in ("done", "", None, 1, ["succeeded"]):
        with pytest.raises(TypeError):
            load_state({**data, "kind": kind})


def test_each_state_and_reason_of_the_newest_slurm_has_a_sentence_and_advice():
    for state in STATES:
        assert re.match(r"[a-z].*[a-z]$", state.sentence), state
        assert re.match(r"[a-z].*[a-zA-Z]$", state.advice), state
    for reason_text in (*reasons.REASONS.values(), *reasons.TEXTS.values()):
        assert re.match(r"(?:[a-z]|Slurm ).*[a-zA-Z)]$", reason_text.sentence), reason_text
        assert re.match(r"[a-z].*[a-zA-Z]$", reason_text.advice), reason_text
    held = RepeatState("PENDING", Kind.WAITING, "squeue", reason="JobHeldUser")
    assert "scontrol release" in held.advice, "not that it waits: why"
    assert RepeatState("COMPLETED", Kind.SUCCEEDED, "sacct").advice == ""
    assert "--time" in RepeatState("TIMEOUT", Kind.FAILED, "sacct").advice
    # SchedMD/slurm@284c3b9, src/common/job_state_reason.c, all of its texts but None
    words = Path(__file__).with_name("reasons.txt").read_text().split()
    assert len(words) == 220
    for word in words:
        assert [text for text, reason_text in find_reasons(word) if reason_text] == [word]
        assert describe_reason(word)
        assert find_reason_advice(word)
    # Of several reasons, the one that needs somebody gives the advice.
    advice = find_reason_advice
    assert advice("Priority,JobHeldUser") == advice("JobHeldUser")
    assert advice("Resources,Priority") == reasons.WAIT
    each = [advice("PartitionTimeLimit"), advice("JobHeldAdmin")]
    assert advice("PartitionTimeLimit,JobHeldAdmin") == "; ".join(each)


@cases
def test_a_reason_to_wait_has_words_and_a_remedy(reason, keyword, advice, remedy):
    """An empty cell: nothing is expected of it."""
    # How the advice about a job that waits begins, by what can be done about it.
    beginnings = {
        "never": "it can never start: cancel it",
        "later": "wait until other jobs have ended; if none of them",
        "used up": "ask the administrators, or cancel it",
    }
    assert keyword in describe_reason(reason)
    assert remedy in find_reason_advice(reason)
    if advice:
        assert find_reason_advice(reason).startswith(beginnings[advice])
        assert never_starts(reason) is (advice == "never")
    if advice and keyword:  # a limit: somebody else's may be another
        assert "another --account or --qos" in find_reason_advice(reason)


def test_free_texts_have_a_sentence_and_advice_in_every_form():
    for text, form in itertools.product(read_constant(__file__, "TEXTS"), ("{}", " {} ")):
        assert [part for part, _ in find_reasons(text)] == [text], "its commas are its own"
        shown = form.format(text)
        assert "Slurm's reason" not in describe_reason(shown)
        assert describe_reason(shown) == describe_reason(text) != ""
        assert find_reason_advice(shown) == find_reason_advice(text) != ""
        # The waiting tasks of an array have a reason each.
        joined = form.format(f"{text},JobArrayTaskLimit")
        each = [describe_reason(text), describe_reason("JobArrayTaskLimit")]
        assert describe_reason(joined) == "; ".join(each)
        if find_reason_advice(text) != reasons.WAIT:
            assert find_reason_advice(joined) == find_reason_advice(text)


@cases
def test_what_sbatch_refuses_has_advice(complaint, advised):
    state = RepeatState("REFUSED", Kind.FAILED, "none", detail=f"sbatch: {complaint}")
    assert advised in state.advice


@cases
def test_what_nobody_knows_stands_beside_what_is_known(reason, sentence):
    assert describe_reason(reason) == sentence.format(resources=describe_reason("Resources"))
    assert find_reason_advice(reason) == (reasons.WAIT if "Resources" in reason else "")


@cases
def test_what_a_witness_did_not_write_tells_where_it_died(marks: list[str], where):
    start = {"event": "start", "time": 100, "attempt": 0, "nodelist": "n[1-2]", "job": "1_1"}
    events = [{"event": mark, "time": 101, "attempt": 0, "exit": 0} for mark in marks]
    assert reduce_events([start, *events]).where == where
    assert reduce_events([]).where == ""


@cases
def test_a_witness_tells_of_its_newest_attempt(events: list[dict[str, object]], first, expected):
    job_record = reduce_events([{"attempt": 0, **event} for event in events], first=first or 0)
    assert job_record == JobRecord(**expected)
