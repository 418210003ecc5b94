"""What docs/explanation/comparing.md promises of intervals and verdicts, held by simulation."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from functools import partial
from itertools import combinations, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbert.results.compare import judge
from hpcbert.results.interval import (
    CONFIDENCE,
    FALSE_ALARM,
    Ratio,
    coverage_of_limits,
    expected_distance,
    expected_repeats,
    false_alarm_chance,
    limit_rank,
    measure_scatter,
    median_ratio,
    min_repeats,
)
from tests.kit.paths import REPOSITORY

PAGE = REPOSITORY / "docs" / "explanation" / "comparing.md"
PAIRS = 2000
SEED = 20261122
Draw = Callable[[random.Random], float]
# How runs scatter, each with a median of 1.
DISTRIBUTIONS: dict[str, Draw] = {
    "normal": lambda at: at.gauss(1, 0.02),
    "heavy tails": lambda at: 1 + 0.01 * math.tan(math.pi * (at.random() - 0.5)) / 8,
    "skewed": lambda at: 1.02 - 0.02 * at.expovariate(math.log(2)),
    "ties": lambda at: 1 + at.choice((-0.01, 0, 0, 0.01)),
    "two modes": lambda at: at.choice((0.95, 1.05)) + at.gauss(0, 0.001) + 0.0,
    "constant": lambda _: 1.0,
}


def draw_rates(draw: Draw, count: int, at: random.Random) -> list[float]:
    return [max(1e-6, draw(at)) for _ in range(count)]


def add_tolerance(rate: float) -> float:
    """Return what a rate that holds exceeds in one of ten thousand tests at most."""
    return rate + 3.8 * math.sqrt(rate * (1 - rate) / PAIRS) + 1 / PAIRS


@pytest.mark.slow
@pytest.mark.parametrize("counts", [(5, 5), (4, 7)], ids=str)
@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_two_halves_of_one_set_are_quiet(kind: str, counts: tuple[int, int]) -> None:
    at = random.Random(f"{SEED} {kind} {counts}")
    verdicts = [
        judge(
            median_ratio(*(draw_rates(DISTRIBUTIONS[kind], count, at) for count in counts)), 0.0001
        )
        for _ in range(PAIRS)
    ]
    alarms = sum(verdict in ("faster", "slower") for verdict in verdicts) / PAIRS
    assert alarms <= add_tolerance(false_alarm_chance(*counts))


@pytest.mark.slow
@pytest.mark.parametrize("counts", [(5, 5), (4, 7)], ids=str)
@pytest.mark.parametrize("base", DISTRIBUTIONS)
@pytest.mark.parametrize("new", ["skewed", "two modes"])
def test_the_interval_holds_the_ratio(base: str, new: str, counts: tuple[int, int]) -> None:
    """However differently the two scatter; the second is a third faster."""
    at = random.Random(f"{SEED} {base} {new} {counts}")
    covered, least_covered = 0, 1.0
    truth = 4 / 3
    for _ in range(PAIRS):
        baseline = draw_rates(DISTRIBUTIONS[base], counts[0], at)
        right = [truth * rate for rate in draw_rates(DISTRIBUTIONS[new], counts[1], at)]
        ratio = median_ratio(baseline, right)
        covered += ratio.low <= truth * (1 + 1e-12) and truth * (1 - 1e-12) <= ratio.high
        least_covered = min(least_covered, ratio.coverage)
    missed = 1 - covered / PAIRS
    assert missed <= add_tolerance(1 - least_covered)


@pytest.mark.parametrize("counts", [(1, 1), (2, 2), (3, 3), (2, 5), (1, 9)], ids=str)
def test_too_few_runs_decide_nothing(counts: tuple[int, int]) -> None:
    base, new = ([float(n + 1) for n in range(count)] for count in counts)
    ratio = median_ratio(base, [rate + 1e6 for rate in new])
    assert ratio.false_alarm > FALSE_ALARM
    assert judge(ratio, 0.02) == "unknown"


def test_five_runs_carry_the_confidence() -> None:
    assert coverage_of_limits(5, limit_rank(5)) ** 2 == pytest.approx(0.87890625)
    assert false_alarm_chance(5, 5) == pytest.approx(2 / 252)
    assert min_repeats() == 4
    assert all(coverage_of_limits(n, limit_rank(n)) ** 2 >= CONFIDENCE for n in range(5, 200))


@pytest.mark.parametrize("counts", [(2, 3), (4, 4), (5, 3), (9, 4)], ids=str)
def test_the_chance_of_a_false_alarm_is_counted(counts: tuple[int, int]) -> None:
    """By all orders in which the runs of one distribution can come."""
    places = range(sum(counts))
    alarms, orders = 0, 0
    for chosen in combinations(places, counts[0]):
        base = [1.0 + place for place in chosen]
        new = [1.0 + place for place in places if place not in chosen]
        ratio = median_ratio(base, new)
        alarms += ratio.low > 1 or ratio.high < 1
        orders += 1
    assert false_alarm_chance(*counts) == pytest.approx(alarms / orders)


def read_table(heading: str) -> list[list[str]]:
    """Return the rows of the page's table that begins so, as texts without their signs."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(heading))
    rows = takewhile(lambda line: line.startswith("|"), lines[start + 2 :])
    return [[cell.strip(" %") for cell in row.strip("|").split("|")] for row in rows]


def test_the_page_has_the_chances() -> None:
    for count, limits, share, alarm in read_table("| runs, of both"):
        n = int(count)
        outer = [re.match(r"\d+", word) for word in limits.split(" and ")]
        assert [int(match[0]) for match in outer if match] == [limit_rank(n), n + 1 - limit_rank(n)]
        assert float(share) == pytest.approx(
            100 * coverage_of_limits(n, limit_rank(n)) ** 2, abs=0.051
        )
        assert float(alarm) == pytest.approx(100 * false_alarm_chance(n, n), abs=0.0051)


def test_the_page_has_the_rates() -> None:
    gates = {row[0]: row[1:] for row in read_table("| runs scatter by | fails")}
    for name, *written in read_table("| runs scatter by | false alarm"):
        at = random.Random(f"{SEED} {name}")
        draw: Draw = partial(random.Random.gauss, mu=1, sigma=float(name) / 100)
        drawn: dict[float, list[Ratio]] = {}
        for factor in (1, 0.98, 0.95, 0.9):
            for _ in range(PAIRS):
                base, new = draw_rates(draw, 5, at), draw_rates(draw, 5, at)
                ratio = median_ratio(base, [factor * rate for rate in new])
                drawn.setdefault(factor, []).append(ratio)
        verdicts = {
            factor: [judge(ratio, 0.02) for ratio in ratios] for factor, ratios in drawn.items()
        }
        false = sum(verdict in ("faster", "slower") for verdict in verdicts[1])
        counts = [false, *(verdicts[factor].count("slower") for factor in (0.98, 0.95, 0.9))]
        counts += [verdicts[1].count("equal"), verdicts[0.98].count("equal")]
        counts += [sum(ratio.value < 0.97 for ratio in drawn[factor]) for factor in (1, 0.95)]
        # Four standard deviations of a share of so many pairs.
        tolerance = 100 * 4 * 0.5 / math.sqrt(PAIRS)
        rates = [100 * count / PAIRS for count in counts]
        assert rates == pytest.approx([*map(float, written + gates[name])], abs=tolerance), name


speeds = st.lists(st.floats(1, 1e6), min_size=1, max_size=12)


@given(speeds, speeds, st.floats(0.01, 100))
def test_an_interval_holds_its_ratio_and_knows_no_unit(
    base: list[float], new: list[float], unit: float
) -> None:
    ratio = median_ratio(base, new)
    assert ratio.low <= ratio.value * (1 + 1e-12)
    assert ratio.value <= ratio.high * (1 + 1e-12)
    scaled = median_ratio([rate * unit for rate in base], [rate * unit for rate in new])
    assert scaled == pytest.approx(ratio)
    turned = median_ratio(new, base)
    assert (1 / turned.high, 1 / turned.low) == pytest.approx((ratio.low, ratio.high))


def test_what_more_repeats_would_tell() -> None:
    assert measure_scatter([1.0], [2.0]) is None
    assert measure_scatter([1.0, math.e**2], [1.0]) == pytest.approx(math.sqrt(2))
    assert expected_repeats(0.0, 0.02) == min_repeats()
    assert expected_repeats(0.01, 0.02) == 9
    assert expected_repeats(0.05, 0.0001) is None
    assert expected_distance(9) * 0.01 <= 0.02 < expected_distance(8) * 0.01
