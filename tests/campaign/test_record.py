"""Status files: each is opened once in a collect, whoever runs the campaign and whatever it holds."""

import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbert.campaign.record import Records, RepeatRecord, read_record, read_steps
from tests.kit.cases import ANY_JSON, read_constant
from tests.kit.cli import run

T = 1_795_255_599


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["slurm", "local"])
def test_a_collect_opens_each_status_file_once(
    empty_directory, build, slurm, monkeypatch, scheduler
):
    opened: Counter[str] = Counter()

    def count(event, args):
        if event == "open" and "/status/" in str(args[0]):
            opened[str(args[0])] += 1

    def collect_once(*builts):
        """Collect campaigns; return whether each status file was opened once."""
        opened.clear()
        run("collect", *(built.directory for built in builts), "--json")
        paths = (path for built in builts for path in (built.directory / "status").iterdir())
        return opened == Counter(map(str, paths))

    def render_sacct(built, *words):
        """Return what sacct says of a campaign's repeats, COMPLETED where nothing else is set."""
        states = [*words, *["COMPLETED"] * 5]
        return "".join(
            built.sacct(repeat, states[repeat - 1], array=place)
            for place in range(len(built.campaign.arrays))
            for repeat in range(1, 6)
        )

    sys.addaudithook(count)  # for good
    monkeypatch.setenv("PATH", slurm.path)
    jobs = ("70", "71") if scheduler == "slurm" else ("local-1-1", "local-1-1")
    built = build("1n1g", "2n2g", scheduler=scheduler, jobs=jobs).finish()
    slurm.answers(sacct=[render_sacct(built)])
    assert collect_once(built)
    # Again, compared with its evidence.
    assert (built.directory / "measurements.json").is_file()
    assert collect_once(built)
    # With another campaign, further attempts and repeats that run.
    two = build("1n1g", name="20261121-pytorch-def", jobs=("80",)).finish()
    built.started("1n1g", 2, attempt=1)
    built.ended("1n1g", 2, attempt=1)
    path = built.status_path("1n1g", 3)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    built.status_path("1n1g", 4).unlink()
    words = ("COMPLETED", "COMPLETED", "RUNNING", "PENDING")
    slurm.answers(sacct=[render_sacct(built, *words), render_sacct(two)])
    assert collect_once(built, two)


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
    missing = RepeatRecord()
    records_read = [read_record(place) for place in (path, tmp_path, tmp_path / "none")]
    assert records_read == [missing] * 3
    assert (missing.events, missing.attempts, missing.steps) == ((), {}, ())
    assert missing.attempt(2).attempt == missing.newest(first=2).attempt == 2


def test_a_step_has_moments_nodes_and_clocks_and_shares_nodes_with_steps_of_its_time():
    def make_events(begin, end, *, attempt=0, nodes="n1", fine=True, **more):
        """Return what a script writes; one that is not `fine` writes whole seconds only."""
        host = more.get("host", nodes.partition("[")[0] + ("1" if "[" in nodes else ""))
        zone = more.get("zone", ("+0000", "+0000"))
        start = {"event": "start", "time": int(begin) - 2, "job": "7_1", "host": host}
        first, last = {"event": "step", "time": int(begin)}, {"event": "step-end", "exit": 0}
        if fine:
            uptime = 100.0 + more.get("ran", end - begin)
            first |= {"at": begin, "uptime": 100.0, "zone": zone[0]}
            last |= {"at": end, "uptime": uptime, "zone": zone[1]}
        first |= {"ahead": more["ahead"]} if "ahead" in more else {}
        ends = ({"time": int(end), **last}, {"event": "end", "time": int(end), "exit": 0})
        events = ({**start, "nodelist": nodes}, first, *ends)
        return [{"attempt": attempt, **event} for event in events]

    def parse_step(begin, end, **more):
        (result,) = read_steps(make_events(T + begin, T + end, **more))
        return result

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
    steps = read_steps([*killed, *never, *last])
    ends = [(step.attempt, step.begin, step.end) for step in steps]
    assert ends == [(0, T, None), (1, T + 18, None), (2, T + 40, T + 50)]
    # Clocks of two hosts are compared by the controller's; on one host both are wrong.
    for name, (earlier, later, shared) in read_constant(__file__, "SPANS").items():
        first, second = (parse_step(*span, **more) for span, more in (earlier, later))
        assert first.shared(second) == second.shared(first) == shared, name


@given(st.data())
def test_damaged_records_are_answered(data):
    fields = ("time", "at", "uptime", "zone", "ahead", "host", "nodelist", "job")
    kinds = st.sampled_from(["start", "step", "step-end", "end", "x"])
    attempts = {"event": kinds, "attempt": st.integers(0, 2) | ANY_JSON}
    events = st.fixed_dictionaries(attempts, optional=dict.fromkeys(fields, ANY_JSON))
    steps = read_steps(data.draw(st.lists(events, max_size=8)))
    for first in steps:
        assert first.begin is not None
        for other in steps:
            first.shared(other)
