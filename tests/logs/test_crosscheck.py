"""Two ways to one number must agree; windows are full, whatever the rule."""

from __future__ import annotations

import re
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcbert.logs.grammar import find_number_groups
from hpcbert.logs.setting import Setting
from tests.kit.cases import cases
from tests.kit.logs import Reader, codes, grammar_file, step, steps

ONE = Setting(nodes=1, gpus_per_node=1, gpus=1, batch_size_per_device=32, accumulation=1)
TOML = (
    '[log]\npauses = ["saving a checkpoint"]\n'
    + grammar_file("steps").read_text().replace('"epoch"', '"epoch"\nrepeated = "count"')
    + "[[log.facts]]\ncontains = 'accumulation: '\nmatch = '^accumulation: (?P<accumulation>\\d+)$'\n"
)
RULES = ("clock", "rate", "footer")
CLOSING = "result: 32.0\n"


line = partial(step, rate=32.0)


def render_log(last: int = 120) -> str:
    return steps(last, rate=32.0) + CLOSING


@pytest.mark.parametrize("rule", RULES)
def test_ways_that_agree_give_the_number(read: Reader, rule: str) -> None:
    assert read(TOML, render_log(), rule, ONE).throughput == pytest.approx(32)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("gpus", "batch"), [(2, 32), (1, 16)])
def test_what_is_told_wrong_contradicts_what_is_printed(
    read: Reader, rule: str, gpus: int, batch: int
) -> None:
    wrong = ONE._replace(gpus=gpus, gpus_per_node=gpus, batch_size_per_device=batch)
    reading = read(TOML, render_log(), rule, wrong)
    assert set(codes(reading)) == {"contradiction"}
    assert "32" in str(reading.reasons[0])


@pytest.mark.parametrize("by", [3600, -3600, 1800])
@pytest.mark.parametrize("rule", RULES)
def test_a_clock_that_jumps_is_no_time(read: Reader, rule: str, by: int) -> None:
    log = "".join(line(n, at=n + by * (n > 60)) for n in range(1, 121)) + CLOSING
    reading = read(TOML, log, rule, ONE)
    assert reading.throughput in (None, pytest.approx(32))
    if rule == "clock":
        assert set(codes(reading)) <= {"window", "contradiction", "rule"}


def test_a_checkpoint_may_take_its_time(read: Reader) -> None:
    at = [n + 60 * (n > 70) for n in range(121)]
    lines = [line(n, at=at[n], rate=32.0 if n != 71 else 0.52) for n in range(1, 121)]
    slow = "".join(lines)
    reading = read(TOML, slow, "clock", ONE)
    assert codes(reading) == ["window"]
    assert "iteration 71 is at 0.52" in str(reading.reasons[0])
    lines.insert(70, "saving a checkpoint\n")
    assert read(TOML, "".join(lines), "clock", ONE).throughput == pytest.approx(3200 / 160)


@pytest.mark.parametrize("rule", RULES)
def test_a_window_that_is_nearly_gone_is_no_window(read: Reader, rule: str) -> None:
    log = "".join(line(n) for n in (*range(1, 21), 120)) + CLOSING
    assert set(codes(read(TOML, log, rule, ONE))) == {"window"}
    assert set(codes(read(TOML, log, rule, ONE._replace(reach=120)))) == {"window"}


def test_accumulation_that_nobody_states_is_not_one(read: Reader) -> None:
    unknown = ONE._replace(accumulation=None)
    assert read(TOML, render_log(), "clock", unknown).throughput == pytest.approx(32)
    log = render_log().replace("samples/s: 32.0", "samples/s: 6400.0").replace("32.0", "6400.0")
    reading = read(TOML, log, "clock", unknown)
    assert set(codes(reading)) == {"contradiction"}
    assert "accumulation" in str(reading.reasons[0])
    assert read(TOML, log, "rate", unknown).throughput == 6400
    assert read(TOML, f"accumulation: 200\n{log}", "clock", unknown).throughput == 6400
    alone = (
        log.replace("samples/s: 6400.0", "samples/s: -").replace(CLOSING, "").replace("result", "")
    )
    assert set(codes(read(TOML, alone, "clock", unknown))) == {"rule"}


def test_a_step_that_is_taken_back_is_no_second_run(read: Reader) -> None:
    places = [0, 1, 1, 0, 0, *range(1, 121)]
    log = "".join(line(n, at=at) for at, n in enumerate(places))
    assert read(TOML, log, "clock", ONE).throughput == pytest.approx(32)
    again = "".join(line(n, at=at) for at, n in enumerate([*range(1, 40), *range(1, 121)]))
    assert "more than one run" in str(read(TOML, again, "clock", ONE).reasons)


@pytest.mark.parametrize("copy", ["", "rate", "time"])
def test_a_copy_of_a_line_is_no_step(read: Reader, copy: str) -> None:
    copy = {"rate": "samples/s: "}.get(copy, copy)
    doubled = line(50)[: line(50).index(copy) + 12].rstrip("\n") if copy else line(50).rstrip("\n")
    log = render_log().replace(line(50), line(50) + doubled + "\n")
    assert read(TOML, log, "clock", ONE).throughput == pytest.approx(32)


@pytest.mark.parametrize("rule", RULES)
def test_a_number_of_few_iterations_says_so(read: Reader, rule: str) -> None:
    assert read(TOML, render_log(), rule, ONE).flags == ()
    setting = ONE._replace(skip=4, iters=6, reach=6)
    assert read(TOML, render_log(6), rule, setting).flags == ("short-window",)
    shorter = TOML.replace("[log]\n", "[log]\nshortest = 2\n")
    assert read(shorter, render_log(6), rule, setting).flags == ()


@cases
def test_a_number_of_few_seconds_on_gpus_says_so(
    read: Reader, device: str, seconds: int, flags: tuple[str, ...]
) -> None:
    """The window has 100 iterations of a second."""
    toml = TOML.replace("[log]\n", f"[log]\nshortest_seconds = {seconds}\n")
    toml += "[[log.facts]]\ncontains = 'device: '\nmatch = '^device: (?P<device_kind>\\w+)$'\n"
    log = (f"device: {device}\n" if device else "") + render_log()
    assert read(toml, log, "clock", ONE).flags == flags


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    places=st.lists(st.integers(1, 120), max_size=3),
    factor=st.sampled_from([0.001, 0.01, 0.5, 1, 2, 100, 1e4]),
    jump=st.integers(-4000, 4000),
    width=st.sampled_from([1, 2, 4]),
    lost=st.sets(st.integers(21, 119)),
    rule=st.sampled_from(RULES),
)
def test_faults_give_about_the_number_or_a_reason(
    read: Reader,
    *,
    places: list[int],
    factor: float,
    jump: int,
    width: int,
    lost: set[int],
    rule: str,
) -> None:
    """Whatever goes wrong, a number that is given is the right one to the tolerance."""
    if width > 1:
        places, jump = [], 0  # Two faults may make up for each other.
    after = places[0] if places else 121
    log = "".join(
        line(n, at=n + jump * (n > after), rate=32.0 * (factor if n in places else 1))
        for n in range(1, 121)
        if n not in lost
    )
    setting = ONE._replace(gpus=width, gpus_per_node=width)
    reading = read(TOML, log + CLOSING, rule, setting)
    if reading.throughput is None:
        assert reading.reasons or reading.missing
    else:
        assert reading.throughput == pytest.approx(32, rel=0.3)
        assert not lost
        assert width == 1


@cases
def test_a_number_is_taken_with_all_that_it_runs_into(text: str, expected: str) -> None:
    pattern = r"rate -?(?P<rate>[\d.]+)"
    (number,) = find_number_groups(pattern, ("rate",))
    match = re.search(pattern.encode(), text.encode())
    assert match is not None
    assert number.read(match) == expected.encode()


@cases
def test_what_the_pattern_itself_has_beside_a_number_is_its_own(
    pattern: str, *, before: bool, after: bool
) -> None:
    (number,) = find_number_groups(pattern, ("rate",))
    assert (number.before, number.after) == (before, after)


SIDES = TOML.replace('kind = "rate"\n', 'kind = "rate"\ntolerance = 0.5\nside = "above"\n', 1)


@pytest.mark.parametrize("rule", ["clock", "rate"])
@pytest.mark.parametrize(
    ("rate", "agrees"), [(32.0, True), (45.0, True), (29.5, True), (22.2, False), (49.0, False)]
)
def test_a_rate_that_leaves_time_out_can_only_be_above_the_clock(
    read: Reader, rule: str, rate: float, *, agrees: bool
) -> None:
    reading = read(SIDES, steps(120, rate=rate), rule, ONE)
    assert codes(reading) == ([] if agrees else ["contradiction"])


@pytest.mark.parametrize(
    ("side", "closing", "agrees"),
    [("below", 25.0, True), ("below", 40.0, False), ("above", 40.0, True), ("above", 25.0, False)],
)
@pytest.mark.parametrize("rule", RULES)
def test_the_side_of_a_closing_line(
    read: Reader, rule: str, side: str, closing: float, *, agrees: bool
) -> None:
    text = f'kind = "footer"\ntolerance = 0.3\nside = "{side}"'
    log = steps(120, rate=32.0) + f"result: {closing}\n"
    reading = read(TOML.replace('kind = "footer"', text), log, rule, ONE)
    assert codes(reading)[:1] == ([] if agrees else ["contradiction"])
