"""What docs/explanation/comparing.md promises of intervals and verdicts, held by simulation."""

import math
import re
from functools import partial
from itertools import combinations, takewhile
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbert.results import interval
from hpcbert.results.compare import judge
from hpcbert.results.interval import coverage_of_limits, false_alarm_chance, median_ratio
from tests.kit.paths import REPOSITORY

PAIRS = 2000


def draw_rates(draw, count, at, factor=1):
    return [factor * max(1e-6, draw(at)) for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("counts", [(5, 5), (4, 7)], ids=str)
def test_halves_of_one_set_are_quiet_and_the_interval_holds_the_ratio_of_two(counts):
    """However differently the two scatter; the second is a third faster."""
    # How runs scatter, each with a median of 1.
    distributions = {
        "normal": lambda at: at.gauss(1, 0.02),
        "heavy tails": lambda at: 1 + 0.01 * math.tan(math.pi * (at.random() - 0.5)) / 8,
        "skewed": lambda at: 1.02 - 0.02 * at.expovariate(math.log(2)),
        "ties": lambda at: 1 + at.choice((-0.01, 0, 0, 0.01)),
        "two modes": lambda at: at.choice((0.95, 1.05)) + at.gauss(0, 0.001) + 0.0,
        "constant": lambda _: 1.0,
    }

    def add_tolerance(rate):
        """Return what a rate that holds exceeds in one of ten thousand tests at most."""
        return rate + 3.8 * math.sqrt(rate * (1 - rate) / PAIRS) + 1 / PAIRS

    for base, draw in distributions.items():
        at = Random(f"20261122 {base} {counts}")
        alarms = 0
        for _ in range(PAIRS):
            halves = (draw_rates(draw, count, at) for count in counts)
            alarms += judge(median_ratio(*halves), 0.0001) in ("faster", "slower")
        assert alarms / PAIRS <= add_tolerance(false_alarm_chance(*counts)), base
        for new in ("skewed", "two modes"):
            covered, least_covered, truth = 0, 1.0, 4 / 3
            for _ in range(PAIRS):
                right = draw_rates(distributions[new], counts[1], at, truth)
                ratio = median_ratio(draw_rates(draw, counts[0], at), right)
                covered += ratio.low <= truth * (1 + 1e-12) and truth * (1 - 1e-12) <= ratio.high
                least_covered = min(least_covered, ratio.coverage)
            assert 1 - covered / PAIRS <= add_tolerance(1 - least_covered), (base, new)


def test_five_runs_carry_the_confidence_fewer_decide_nothing_and_false_alarms_are_counted():
    for counts in ((1, 1), (2, 2), (3, 3), (2, 5), (1, 9)):
        base, new = ([float(n + 1) for n in range(count)] for count in counts)
        ratio = median_ratio(base, [rate + 1e6 for rate in new])
        assert ratio.false_alarm > interval.FALSE_ALARM
        assert judge(ratio, 0.02) == "unknown"
    assert coverage_of_limits(5, interval.limit_rank(5)) ** 2 == pytest.approx(0.87890625)
    assert false_alarm_chance(5, 5) == pytest.approx(2 / 252)
    assert interval.min_repeats() == 4
    squares = (coverage_of_limits(n, interval.limit_rank(n)) ** 2 for n in range(5, 100))
    assert all(square >= interval.CONFIDENCE for square in squares)
    assert interval.measure_scatter([1.0], [2.0]) is None
    assert interval.measure_scatter([1.0, math.e**2], [1.0]) == pytest.approx(math.sqrt(2))
    expected = {(0.0, 0.02): 4, (0.01, 0.02): 9, (0.05, 0.0001): None}
    assert {key: interval.expected_repeats(*key) for key in expected} == expected
    assert interval.expected_distance(9) * 0.01 <= 0.02 < interval.expected_distance(8) * 0.01
    # All orders are counted in which the runs of one distribution can come.
    for counts in ((2, 3), (4, 4), (5, 3), (9, 4)):
        places = range(sum(counts))
        alarms = []
        for order in combinations(places, counts[0]):
            new = [1.0 + place for place in places if place not in order]
            ratio = median_ratio([1.0 + place for place in order], new)
            alarms.append(ratio.low > 1 or ratio.high < 1)
        assert false_alarm_chance(*counts) == pytest.approx(sum(alarms) / len(alarms)), counts


def test_the_page_has_the_chances_and_the_rates():
    page = REPOSITORY / "docs" / "explanation" / "comparing.md"
    lines = page.read_text(encoding="utf-8").splitlines()

    def read_table(heading):
        """Return the rows of the page's table that begins so, as texts without their signs."""
        start = next(number for number, line in enumerate(lines) if line.startswith(heading))
        rows = takewhile(lambda line: line.startswith("|"), lines[start + 2 :])
        return [[cell.strip(" %") for cell in row.strip("|").split("|")] for row in rows]

    for count, limits, share, alarm in read_table("| runs, of both"):
        n = int(count)
        rank = interval.limit_rank(n)
        outer = [re.match(r"\d+", word) for word in limits.split(" and ")]
        assert [int(match[0]) for match in outer if match] == [rank, n + 1 - rank]
        assert float(share) == pytest.approx(100 * coverage_of_limits(n, rank) ** 2, abs=0.051)
        assert float(alarm) == pytest.approx(100 * false_alarm_chance(n, n), abs=0.0051)
    gates = {row[0]: row[1:] for row in read_table("| runs scatter by | fails")}
    for name, *written in read_table("| runs scatter by | false alarm"):
        at = Random(f"20261122 {name}")
        draw = partial(Random.gauss, mu=1, sigma=float(name) / 100)
        ratios = {
            factor: [
                median_ratio(draw_rates(draw, 5, at), draw_rates(draw, 5, at, factor))
                for _ in range(PAIRS)
            ]
            for factor in (1, 0.98, 0.95, 0.9)
        }
        verdicts = {factor: [judge(ratio, 0.02) for ratio in ratios[factor]] for factor in ratios}
        counts = [sum(verdict in ("faster", "slower") for verdict in verdicts[1])]
        counts += [verdicts[factor].count("slower") for factor in (0.98, 0.95, 0.9)]
        counts += [verdicts[factor].count("equal") for factor in (1, 0.98)]
        counts += [sum(ratio.value < 0.97 for ratio in ratios[factor]) for factor in (1, 0.95)]
        # Four standard deviations of a share of so many pairs.
        tolerance = 100 * 4 * 0.5 / math.sqrt(PAIRS)
        rates = [100 * count / PAIRS for count in counts]
        assert rates == pytest.approx([*map(float, written + gates[name])], abs=tolerance), name


@given(st.data())
def test_an_interval_holds_its_ratio_and_knows_no_unit(data):
    speeds = st.lists(st.floats(1, 1e6), min_size=1, max_size=12)
    base, new, unit = data.draw(st.tuples(speeds, speeds, st.floats(0.01, 100)))
    ratio = median_ratio(base, new)
    assert ratio.low <= ratio.value * (1 + 1e-12)
    assert ratio.value <= ratio.high * (1 + 1e-12)
    scaled = median_ratio([rate * unit for rate in base], [rate * unit for rate in new])
    assert scaled == pytest.approx(ratio)
    turned = median_ratio(new, base)
    assert (1 / turned.high, 1 / turned.low) == pytest.approx((ratio.low, ratio.high))
