"""Status files: each is opened once in a collect, whoever runs the campaign and whatever it holds."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbert.campaign import record
from hpcbert.campaign.record import Records, Step, read_steps
from tests.kit.campaigns import Build, Built
from tests.kit.cases import cases
from tests.kit.cli import run
from tests.kit.slurm import Programs

T = 1_795_255_599
# How often each status file was opened, by campaign and name, while somebody counts.
_counters: list[Counter[str]] = []


def _count(event: str, args: tuple[Any, ...]) -> None:
    if _counters and event == "open" and "/status/" in str(args[0]):
        _counters[-1]["/".join(Path(str(args[0])).parts[-3:])] += 1


@pytest.fixture(scope="module")
def audit_hook() -> None:
    sys.addaudithook(_count)  # for good: it does nothing outside of these tests


@pytest.fixture
def make_finished(empty_directory: None, build: Build) -> Callable[..., Built]:
    """Makes a campaign of two points that have run."""

    def make(**changes: Any) -> Built:
        built = build("1n1g", "2n2g", **changes)
        built.finish()
        return built

    return make


@pytest.fixture
def programs(slurm: Programs, monkeypatch: pytest.MonkeyPatch, audit_hook: None) -> Programs:
    """A Slurm on PATH."""
    monkeypatch.setenv("PATH", slurm.path)
    return slurm


def collect_counted(*builts: Built) -> bool:
    """Collect campaigns; return whether each status file was opened once."""
    _counters.append(Counter())
    run("collect", *(built.directory for built in builts), "--json")
    paths = (path for built in builts for path in (built.directory / "status").iterdir())
    return _counters.pop() == Counter("/".join(path.parts[-3:]) for path in paths)


def render_sacct(built: Built, *words: str) -> str:
    """Return what sacct says of a campaign's repeats, COMPLETED where nothing else is set."""
    states = [*words, *["COMPLETED"] * 5]
    return "".join(
        built.sacct(repeat, states[repeat - 1], array=place)
        for place in range(len(built.campaign.arrays))
        for repeat in range(1, 6)
    )


@pytest.mark.parametrize("scheduler", ["slurm", "local"])
def test_a_collect_opens_each_status_file_once(make_finished, programs, scheduler):
    jobs = ("70", "71") if scheduler == "slurm" else ("local-1-1", "local-1-1")
    built = make_finished(scheduler=scheduler, jobs=jobs)
    programs.answers(sacct=[render_sacct(built)])
    assert collect_counted(built)
    # Again, compared with its evidence.
    assert (built.directory / "measurements.json").is_file()
    assert collect_counted(built)


def test_so_does_a_collect_of_campaigns_attempts_and_repeats_that_run(make_finished, programs):
    built, two = make_finished(), make_finished(name="20261121-pytorch-def", jobs=("80", "81"))
    built.started("1n1g", 2, attempt=1)
    built.ended("1n1g", 2, attempt=1)
    path = built.status_path("1n1g", 3)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    built.status_path("1n1g", 4).unlink()
    words = ("COMPLETED", "COMPLETED", "RUNNING", "PENDING")
    programs.answers(sacct=[render_sacct(built, *words), render_sacct(two)])
    assert collect_counted(built, two)


def test_what_was_written_to_since_is_read_again(tmp_path):
    path = tmp_path / "status" / "one.jsonl"
    path.parent.mkdir()
    path.write_text('{"event": "start", "attempt": 0}\n')
    once, following = Records(keep_unchanged=True), Records()
    first = once.at(path), following.at(path)
    for records in (once, following):
        records.refresh(tmp_path)
    assert once.at(path) is first[0]
    assert following.at(path) is not first[1]
    path.write_text('{"event": "start", "attempt": 0}\n{"event": "end", "exit": 0}\n')
    once.refresh(tmp_path / "another")
    assert once.at(path) is first[0]
    once.refresh(tmp_path)
    assert [event["event"] for event in once.at(path).events] == ["start", "end"]
    assert once.stamps(tmp_path).keys() == {"status/one.jsonl"}


def test_what_is_too_large_or_no_file_is_as_good_as_missing(tmp_path):
    path = tmp_path / "one.jsonl"
    with path.open("wb") as file:
        file.truncate((1 << 22) + 1)
    missing = record.RepeatRecord()
    records = [record.read_record(place) for place in (path, tmp_path, tmp_path / "none")]
    assert records == [missing] * 3
    assert (missing.events, missing.attempts, missing.steps) == ((), {}, ())
    assert missing.attempt(2).attempt == missing.newest(first=2).attempt == 2


# --- Steps ----------------------------------------------------------------------------------------


def make_events(
    begin: float, end: float, *, attempt: int = 0, nodes: str = "n1", fine: bool = True, **more: Any
) -> list[dict[str, Any]]:
    """Return what a script writes; one that is not `fine` writes whole seconds only."""
    host = more.get("host", nodes.partition("[")[0] + ("1" if "[" in nodes else ""))
    zone = more.get("zone", ("+0000", "+0000"))
    clocks: list[dict[str, Any]] = [{}, {}]
    if fine:
        clocks[0] = {"at": begin, "uptime": 100.0, "zone": zone[0]}
        clocks[1] = {"at": end, "uptime": 100.0 + more.get("ran", end - begin), "zone": zone[1]}
    clocks[0] |= {"ahead": more["ahead"]} if "ahead" in more else {}
    events = [
        {"event": "start", "time": int(begin) - 2, "job": "7_1", "host": host, "nodelist": nodes},
        {"event": "step", "time": int(begin), **clocks[0]},
        {"event": "step-end", "time": int(end), "exit": 0, **clocks[1]},
        {"event": "end", "time": int(end), "exit": 0},
    ]
    return [{"attempt": attempt, **event} for event in events]


def parse_step(begin: float, end: float, **more: Any) -> Step:
    (result,) = read_steps(make_events(begin, end, **more))
    return result


def test_a_step_has_its_moments_nodes_and_clocks():
    zone = ("+0100", "-0330")
    step = parse_step(T + 0.25, T + 60.5, nodes="n[1-3]", ahead=300, zone=zone, ran=59.25)
    assert (step.begin, step.end, step.fine) == (T + 0.25, T + 60.5, True)
    assert step.nodes == {"n1", "n2", "n3"}
    assert (step.zones, step.ahead) == ((3600, -12600), 300)
    assert step.moved == pytest.approx(1.0)
    older = parse_step(T + 0.9, T + 60.9, fine=False)
    assert (older.begin, older.end, older.fine) == (T, T + 60, False)
    assert (older.zones, older.moved, older.ahead) == ((), 0.0, 0)


def test_each_attempt_has_its_own_step_and_one_that_was_killed_no_end():
    killed = make_events(T, T + 10)[:2]
    never = make_events(T + 20, T + 30, attempt=1)[:1]
    last = make_events(T + 40, T + 50, attempt=2)
    steps = [(step.attempt, step.begin, step.end) for step in read_steps([*killed, *never, *last])]
    assert steps == [(0, T, None), (1, T + 18, None), (2, T + 40, T + 50)]


@cases
def test_steps_share_the_nodes_that_both_have_at_the_same_time(earlier, later, shared):
    first, second = (
        parse_step(T + low, T + high, nodes=nodes) for (low, high), nodes in (earlier, later)
    )
    assert first.shared(second) == second.shared(first) == shared


@pytest.mark.parametrize("fine", [(True, False), (False, True), (False, False)], ids=str)
def test_whole_seconds_make_no_overlap_of_steps_that_follow_each_other(fine):
    first = parse_step(T + 0.2, T + 10.7, fine=fine[0])
    second = parse_step(T + 10.8, T + 20.1, fine=fine[1])
    assert first.shared(second) == ()


def test_clocks_of_two_hosts_are_compared_by_the_controllers():
    slow = parse_step(T, T + 60, nodes="n[1-2]", host="n1", ahead=300)
    right = parse_step(T + 300, T + 360, nodes="n[2-3]", host="n2", ahead=0)
    after = parse_step(T + 361, T + 400, nodes="n[2-3]", host="n2", ahead=0)
    assert (slow.shared(right), slow.shared(after)) == (("n2",), ())
    # On the same host a wrong clock is wrong for both.
    assert slow.shared(parse_step(T + 60, T + 90, nodes="n1", ahead=-5)) == ()


JSON = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6)
FIELDS = ("time", "at", "uptime", "zone", "ahead", "host", "nodelist", "job")
EVENTS = st.fixed_dictionaries(
    {
        "event": st.sampled_from(["start", "step", "step-end", "end", "x"]),
        "attempt": st.integers(0, 2) | JSON,
    },
    optional=dict.fromkeys(FIELDS, JSON),
)


@given(st.lists(EVENTS, max_size=8))
def test_damaged_records_are_answered(events):
    steps = read_steps(events)
    for first in steps:
        assert first.begin is not None
        for other in steps:
            first.shared(other)
