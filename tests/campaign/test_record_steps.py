"""Measured steps off the events of a status file, and which of them had a node at the same time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbert.campaign.record import Step, read_steps
from tests.kit.cases import cases

T = 1_795_255_599


def make_events(
    begin: float, end: float, *, attempt: int = 0, nodes: str = "n1", **more: Any
) -> list[dict[str, Any]]:
    """Return what a script writes, with whole seconds only where `fine` is false."""
    host = more.get("host", nodes.partition("[")[0] + ("1" if "[" in nodes else ""))
    fine = more.get("fine", True)
    ahead = {"ahead": more["ahead"]} if "ahead" in more else {}
    zone = more.get("zone", ("+0000", "+0000"))
    return [
        {"event": "start", "attempt": attempt, "time": int(begin) - 2, "job": "7_1"}
        | {"host": host, "nodelist": nodes},
        {"event": "step", "attempt": attempt, "time": int(begin), **ahead}
        | ({"at": begin, "uptime": 100.0, "zone": zone[0]} if fine else {}),
        {"event": "step-end", "attempt": attempt, "time": int(end), "exit": 0}
        | (
            {"at": end, "uptime": 100.0 + more.get("ran", end - begin), "zone": zone[1]}
            if fine
            else {}
        ),
        {"event": "end", "attempt": attempt, "time": int(end), "exit": 0},
    ]


def parse_step(begin: float, end: float, **more: Any) -> Step:
    (result,) = read_steps(make_events(begin, end, **more))
    return result


def test_a_step_has_its_moments_nodes_and_clocks() -> None:
    parsed = parse_step(
        T + 0.25, T + 60.5, nodes="n[1-3]", ahead=300, zone=("+0100", "-0330"), ran=59.25
    )
    assert (parsed.begin, parsed.end, parsed.fine) == (T + 0.25, T + 60.5, True)
    assert parsed.nodes == {"n1", "n2", "n3"}
    assert (parsed.zones, parsed.ahead) == ((3600, -12600), 300)
    assert parsed.moved == pytest.approx(1.0)


def test_a_record_of_an_older_script_has_whole_seconds() -> None:
    parsed = parse_step(T + 0.9, T + 60.9, fine=False)
    assert (parsed.begin, parsed.end, parsed.fine) == (T, T + 60, False)
    assert (parsed.zones, parsed.moved, parsed.ahead) == ((), 0.0, 0)


def test_each_attempt_has_its_own_step_and_one_that_was_killed_no_end() -> None:
    killed = make_events(T, T + 10)[:2]
    never = make_events(T + 20, T + 30, attempt=1)[:1]
    last = make_events(T + 40, T + 50, attempt=2)
    steps = read_steps([*killed, *never, *last])
    assert [(entry.attempt, entry.begin, entry.end) for entry in steps] == [
        (0, T, None),
        (1, T + 18, None),
        (2, T + 40, T + 50),
    ]


@cases
def test_steps_share_the_nodes_that_both_have_at_the_same_time(
    earlier: Any, later: Any, shared: tuple[str, ...]
) -> None:
    first, second = (
        parse_step(T + low, T + high, nodes=nodes) for (low, high), nodes in (earlier, later)
    )
    assert first.shared(second) == second.shared(first) == shared


@pytest.mark.parametrize("fine", [(True, False), (False, True), (False, False)], ids=str)
def test_whole_seconds_make_no_overlap_of_steps_that_follow_each_other(
    fine: tuple[bool, bool],
) -> None:
    first = parse_step(T + 0.2, T + 10.7, fine=fine[0])
    second = parse_step(T + 10.8, T + 20.1, fine=fine[1])
    assert first.shared(second) == ()


def test_clocks_of_two_hosts_are_compared_by_the_controller_s() -> None:
    slow = parse_step(T, T + 60, nodes="n[1-2]", host="n1", ahead=300)
    right = parse_step(T + 300, T + 360, nodes="n[2-3]", host="n2", ahead=0)
    after = parse_step(T + 361, T + 400, nodes="n[2-3]", host="n2", ahead=0)
    assert slow.shared(right) == ("n2",)
    assert slow.shared(after) == ()
    # On the same host a wrong clock is wrong for both.
    assert slow.shared(parse_step(T + 60, T + 90, nodes="n1", ahead=-5)) == ()


JSON = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "event": st.sampled_from(["start", "step", "step-end", "end", "x"]),
                "attempt": st.integers(0, 2) | JSON,
            },
            optional=dict.fromkeys(
                ("time", "at", "uptime", "zone", "ahead", "host", "nodelist", "job"), JSON
            ),
        ),
        max_size=8,
    )
)
def test_damaged_records_are_answered(told: list[dict[str, Any]]) -> None:
    steps = read_steps(told)
    for first in steps:
        assert first.begin is not None
        for other in steps:
            first.shared(other)
