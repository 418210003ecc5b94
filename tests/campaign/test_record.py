"""Status files: each is opened once in a collect, whoever runs the campaign and whatever it holds."""

import sys
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbert.campaign import record
from hpcbert.campaign.record import Records, Step, read_steps
from tests.kit.cases import cases
from tests.kit.cli import run

T = 1_795_255_599
JSON = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6)
FIELDS = ("time", "at", "uptime", "zone", "ahead", "host", "nodelist", "job")
KINDS = st.sampled_from(["start", "step", "step-end", "end", "x"])
EVENTS = st.fixed_dictionaries(
    {"event": KINDS, "attempt": st.integers(0, 2) | JSON}, optional=dict.fromkeys(FIELDS, JSON)
)


@pytest.fixture(scope="module")
def opened():
    """How often each status file was opened."""
    counter: Counter[str] = Counter()

    def count(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and "/status/" in str(args[0]):
            counter[str(args[0])] += 1

    sys.addaudithook(count)  # for good
    return counter


def collect_once(opened: Counter[str], *builts) -> bool:
    """Collect campaigns; return whether each status file was opened once."""
    opened.clear()
    run("collect", *(built.directory for built in builts), "--json")
    paths = (path for built in builts for path in (built.directory / "status").iterdir())
    return opened == Counter(map(str, paths))


def render_sacct(built, *words: str) -> str:
    """Return what sacct says of a campaign's repeats, COMPLETED where nothing else is set."""
    states = [*words, *["COMPLETED"] * 5]
    return "".join(
        built.sacct(repeat, states[repeat - 1], array=place)
        for place in range(len(built.campaign.arrays))
        for repeat in range(1, 6)
    )


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["slurm", "local"])
def test_a_collect_opens_each_status_file_once(  # noqa: PLR0917
    empty_directory, build, slurm, opened, monkeypatch, scheduler
):
    monkeypatch.setenv("PATH", slurm.path)
    jobs = ("70", "71") if scheduler == "slurm" else ("local-1-1", "local-1-1")
    built = build("1n1g", "2n2g", scheduler=scheduler, jobs=jobs)
    built.finish()
    slurm.answers(sacct=[render_sacct(built)])
    assert collect_once(opened, built)
    # Again, compared with its evidence.
    assert (built.directory / "measurements.json").is_file()
    assert collect_once(opened, built)
    # With another campaign, further attempts and repeats that run.
    two = build("1n1g", name="20261121-pytorch-def", jobs=("80",))
    two.finish()
    built.started("1n1g", 2, attempt=1)
    built.ended("1n1g", 2, attempt=1)
    path = built.status_path("1n1g", 3)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    built.status_path("1n1g", 4).unlink()
    words = ("COMPLETED", "COMPLETED", "RUNNING", "PENDING")
    slurm.answers(sacct=[render_sacct(built, *words), render_sacct(two)])
    assert collect_once(opened, built, two)


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
    # What is too large or no file is as good as missing.
    with path.open("wb") as file:
        file.truncate((1 << 22) + 1)
    missing = record.RepeatRecord()
    records_read = [record.read_record(place) for place in (path, tmp_path, tmp_path / "none")]
    assert records_read == [missing] * 3
    assert (missing.events, missing.attempts, missing.steps) == ((), {}, ())
    assert missing.attempt(2).attempt == missing.newest(first=2).attempt == 2


# --- Steps ----------------------------------------------------------------------------------------


def make_events(begin, end, *, attempt=0, nodes="n1", fine=True, **more):
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
    (result,) = read_steps(make_events(T + begin, T + end, **more))
    return result


def test_each_attempt_has_a_step_with_its_moments_nodes_and_clocks():
    zone = ("+0100", "-0330")
    step = parse_step(0.25, 60.5, nodes="n[1-3]", ahead=300, zone=zone, ran=59.25)
    assert (step.begin, step.end, step.fine) == (T + 0.25, T + 60.5, True)
    assert step.nodes == {"n1", "n2", "n3"}
    assert (step.zones, step.ahead) == ((3600, -12600), 300)
    assert step.moved == pytest.approx(1.0)
    older = parse_step(0.9, 60.9, fine=False)
    assert (older.begin, older.end, older.fine) == (T, T + 60, False)
    assert (older.zones, older.moved, older.ahead) == ((), 0.0, 0)
    # One that was killed has no end.
    killed = make_events(T, T + 10)[:2]
    never = make_events(T + 20, T + 30, attempt=1)[:1]
    last = make_events(T + 40, T + 50, attempt=2)
    steps = [(step.attempt, step.begin, step.end) for step in read_steps([*killed, *never, *last])]
    assert steps == [(0, T, None), (1, T + 18, None), (2, T + 40, T + 50)]


@cases
def test_steps_share_the_nodes_that_both_have_at_the_same_time(earlier, later, shared):
    """Clocks of two hosts are compared by the controller's; on one host both are wrong."""
    first, second = (parse_step(*span, **(more or {})) for span, more in (earlier, later))
    assert first.shared(second) == second.shared(first) == shared


@given(st.lists(EVENTS, max_size=8))
def test_damaged_records_are_answered(events):
    steps = read_steps(events)
    for first in steps:
        assert first.begin is not None
        for other in steps:
            first.shared(other)
