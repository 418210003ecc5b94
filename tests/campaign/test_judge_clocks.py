"""A campaign's logs are held against when their runs were."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from hpcbert.campaign import store
from tests.kit.campaigns import Build, Built
from tests.kit.cli import CollectJson, codes, first_row

T = 1763717655
LONG = 60


def run_repeat(
    built: Built,
    repeat: int,
    begin: float,
    *,
    start: float | None = None,
    moved: float = 0.0,
    fine: bool = True,
    ahead: int | None = 0,
    nodes: str = "n1",
) -> None:
    """Let a repeat be measured for a minute; its log begins 30 s later, or when told."""
    end = begin + LONG
    mark: dict[str, Any] = {"event": "start", "job": f"7_{repeat}", "host": "n1", "nodelist": nodes}
    clocks: list[dict[str, Any]] = [{}, {}]
    if fine:
        clocks[0] = {"at": begin, "uptime": 50.0, "zone": "+0000", "ahead": ahead}
        clocks[1] = {"at": end, "uptime": 50.0 + LONG - moved, "zone": "+0000"}
    built.mark("1n1g", repeat, {**mark, "time": int(begin)})
    built.mark("1n1g", repeat, {"event": "step", "time": int(begin), **clocks[0]})
    built.mark("1n1g", repeat, {"event": "step-end", "time": int(end), "exit": 0, **clocks[1]})
    built.mark("1n1g", repeat, {"event": "end", "time": int(end), "exit": 0})
    text = built.text("1n1g", 10 + repeat / 10, start=begin + 30 if start is None else start)
    built.log("1n1g", repeat, text)


@pytest.mark.parametrize("rule", ["", "rate"], ids=["clock-rule", "rate-rule"])
@pytest.mark.parametrize("fine", [True, False], ids=["clocks", "older-script"])
def test_a_log_of_another_time_has_no_number(
    build: Build, collect_json: CollectJson, rule: str, fine: bool
) -> None:
    built = build("1n1g", repeats=4)
    run_repeat(built, 1, T + 0.25, fine=fine)
    run_repeat(built, 2, T + 100.5, fine=fine, start=T + 30)
    run_repeat(built, 3, T + 200.5, fine=fine, start=1e9)
    run_repeat(built, 4, T + 300.5, fine=fine)
    document = collect_json(built.directory, *(("--rule", rule) if rule else ()))
    assert document["exit_code"] == 4
    assert codes(first_row(document)) == [[], ["clock"], ["clock"], []]


def test_a_clock_that_was_set_while_a_run_was_measured_spoils_it(
    build: Build, collect_json: CollectJson
) -> None:
    built = build("1n1g", repeats=4)
    for repeat, moved in enumerate((0.0, 0.4, 3600.0, -1.5), start=1):
        run_repeat(built, repeat, T + 100 * repeat, moved=moved)
    document = collect_json(built.directory)
    assert codes(first_row(document)) == [[], [], ["clock"], ["clock"]]
    runs = document["data"]["tables"][0]["rows"][0]["runs"]
    assert "set forward by 3600.0 s" in runs[2]["reasons"][0]["detail"]
    assert "set back by 1.5 s" in runs[3]["reasons"][0]["detail"]


def test_a_log_that_is_older_than_its_step_has_no_number(
    build: Build, collect_json: CollectJson
) -> None:
    built = build("1n1g", repeats=3)
    for repeat in (1, 2, 3):
        run_repeat(built, repeat, T + 100 * repeat)
        log = store.log_path(built.directory, built.array("1n1g"), repeat)
        os.utime(log, (T, T + (100 * repeat if repeat == 1 else -3600)))
    # Where the record seems older too, as in a copy, the file system's times say nothing.
    status = built.directory / built.array("1n1g").status(3)
    os.utime(status, (T, T - 3600))
    assert codes(first_row(collect_json(built.directory))) == [[], ["clock"], []]


def test_the_node_s_clock_may_be_wrong_if_the_controller_s_is_known(
    build: Build, collect_json: CollectJson
) -> None:
    built = build("1n1g", repeats=2)
    for repeat, ahead in ((1, -300), (2, 0)):
        # The node's clock is five minutes ahead of everybody's.
        run_repeat(built, repeat, T + 100 * repeat + 300, ahead=ahead)
        log = store.log_path(built.directory, built.array("1n1g"), repeat)
        os.utime(log, (T, T + 100 * repeat + LONG))
    assert codes(first_row(collect_json(built.directory))) == [[], ["clock"]]


def test_a_record_that_tells_no_time_refuses_nothing(
    build: Build, collect_json: CollectJson
) -> None:
    built = build("1n1g", repeats=2)
    run_repeat(built, 1, T)
    built.complete("1n1g", 2, 10.0, start=1e9)
    path = built.directory / built.array("1n1g").status(1)
    events = [json.loads(line) for line in path.read_text().splitlines()]
    remaining = [event for event in events if event["event"] not in {"step", "start"}]
    path.write_text("".join(json.dumps(event) + "\n" for event in remaining))
    assert codes(first_row(collect_json(built.directory))) == [[], []]


@pytest.mark.parametrize("wrong", [-300, 300], ids=["slow", "fast"])
@pytest.mark.parametrize("nodes", ["n1", "n[1-2]"], ids=["one-node", "two-nodes"])
def test_a_clock_that_is_five_minutes_wrong_all_the_time_spoils_nothing_and_hides_nothing(
    build: Build, collect_json: CollectJson, wrong: int, nodes: str
) -> None:
    """The file server's clock is right, and the node's is known to be wrong."""
    built = build("1n1g", repeats=4)
    for repeat in (1, 2, 3, 4):
        true = T + 1000 * repeat
        # By the node's clock; of another run, ten minutes before; by the clock of another node.
        stamps = {2: true + wrong - 600, 3: true + 30.0}.get(repeat)
        run_repeat(built, repeat, true + wrong + 0.5, start=stamps, ahead=-wrong, nodes=nodes)
        # The last log was there before its step began.
        log = store.log_path(built.directory, built.array("1n1g"), repeat)
        os.utime(log, (T, true + (LONG if repeat < 4 else -200)))
        status = built.directory / built.array("1n1g").status(repeat)
        os.utime(status, (T, true + LONG))
    other = [] if nodes != "n1" else ["clock"]
    assert codes(first_row(collect_json(built.directory))) == [[], ["clock"], other, ["clock"]]
