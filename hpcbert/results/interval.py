"""Confidence limits of medians and of their ratios, from order statistics; pure.

The only assumption is that runs are independent. The chance that the median of a distribution lies
outside the i-th smallest and the i-th largest of n values is that of fewer than i heads, or tails,
of n coins (H. A. David, H. N. Nagaraja, Order Statistics, 3rd edition, section 7.1). Each of the
two medians gets such limits, which depend only on the number of runs; the limits of the ratio are
the quotients of these. docs/explanation/comparing.md has the figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import comb, log, sqrt
from statistics import NormalDist, median
from typing import NamedTuple

from hpcbert.config.options import FEWEST_REPEATS

# The joint coverage of both medians' limits, if there are enough runs: five of each are.
CONFIDENCE = 0.875
# The largest accepted chance of reporting a difference if there is none.
FALSE_ALARM = 0.05
# The largest number of repeats that is worth a proposal.
MAX_REPEATS = 100


class Ratio(NamedTuple):
    """A ratio of two medians.

    Attributes:
        coverage: The minimum chance that they contain the true ratio, however runs scatter.
        false_alarm: The maximum chance that they exclude 1 if both sets have the same distribution.
    """

    value: float
    low: float
    high: float
    coverage: float
    false_alarm: float

    @property
    def decides(self) -> bool:
        """Whether there are enough runs for a verdict."""
        return self.false_alarm <= FALSE_ALARM


class Limits(NamedTuple):
    """The limits of a median.

    Attributes:
        coverage: The chance that they contain the true median, however runs scatter.
    """

    median: float
    low: float
    high: float
    coverage: float

    @property
    def width(self) -> float:
        """The distance between the limits, as a share of the median."""
        return (self.high - self.low) / self.median


def median_limits(runs: Sequence[float]) -> Limits:
    """Return the limits of the median of some runs: of five the slowest and the fastest."""
    ordered = sorted(runs)
    place = limit_rank(len(ordered))
    return Limits(
        median(ordered),
        ordered[place - 1],
        ordered[-place],
        coverage_of_limits(len(ordered), place),
    )


def is_precise(runs: Sequence[float], precision: float | None) -> bool:
    """Return whether a median is so precise that more runs are unnecessary.

    Fewer than five runs never suffice; the limits of five contain it with 93.75 %.

    Args:
        precision: The maximum distance between the limits, as a share of the median; None: nothing
            suffices.
    """
    return (
        precision is not None
        and len(runs) >= FEWEST_REPEATS
        and median_limits(runs).width < precision
    )


def median_ratio(base: Sequence[float], new: Sequence[float]) -> Ratio:
    """Return the ratio of the medians of two sets of runs, new over base."""
    base_limits, new_limits = median_limits(base), median_limits(new)
    return Ratio(
        value=new_limits.median / base_limits.median,
        low=new_limits.low / base_limits.high,
        high=new_limits.high / base_limits.low,
        coverage=base_limits.coverage * new_limits.coverage,
        false_alarm=false_alarm_chance(len(base), len(new)),
    )


def coverage_of_limits(count: int, place: int) -> float:
    """Return the chance that the median lies from the i-th smallest to the i-th largest value."""
    tail = sum(comb(count, number) for number in range(place))
    return 1 - 2 * tail / (1 << count)


@cache
def limit_rank(count: int) -> int:
    """Return the rank, from either end of n sorted values, of the limits of their median.

    It is the innermost one for which both medians lie within their limits with CONFIDENCE, each
    with its square root; for few values, the outermost.
    """
    min_coverage = sqrt(CONFIDENCE)
    candidates = [
        place
        for place in range(1, count // 2 + 1)
        if coverage_of_limits(count, place) >= min_coverage
    ]
    return max(candidates, default=1)


def false_alarm_chance(base: int, new: int) -> float:
    """Return the chance that limits of n and m values of one distribution don't overlap.

    All orders of the values are then equally likely. Counted are those in which all values of one
    set up to its limit come before the limit of the other.
    """
    base_rank, new_rank = limit_rank(base), limit_rank(new)
    above = _chance_apart(base, base + 1 - base_rank, new, new_rank)
    below = _chance_apart(new, new + 1 - new_rank, base, base_rank)
    return min(1.0, above + below)


def _chance_apart(count: int, upper: int, other_count: int, lower: int) -> float:
    """Return the chance that the upper-th of n values is below the lower-th of m others."""
    orders = sum(
        comb(before + lower - 1, before)
        * comb(count - before + other_count - lower, count - before)
        for before in range(upper, count + 1)
    )
    return orders / comb(count + other_count, count)


def measure_scatter(*sets: Sequence[float]) -> float | None:
    """Return the scatter of the runs within sets: the standard deviation of their logarithms.

    None if no set has two runs.
    """
    squares, freedom = 0.0, 0
    for runs in sets:
        values = [log(run) for run in runs]
        mean = sum(values) / len(values)
        squares += sum((value - mean) ** 2 for value in values)
        freedom += len(values) - 1
    return sqrt(squares / freedom) if freedom else None


def min_repeats() -> int:
    """Return the smallest number of repeats of both that allows a verdict."""
    return next(
        count for count in range(1, MAX_REPEATS) if false_alarm_chance(count, count) <= FALSE_ALARM
    )


def expected_repeats(spread: float, margin: float, beyond: int = 0) -> int | None:
    """Return the number of repeats of both sets that bring the limits this near to the ratio.

    An expectation, for runs that scatter normally; None if it is more than MOST.

    Args:
        spread: The scatter of the runs, as a share.
    """
    counts = range(max(min_repeats(), beyond + 1), MAX_REPEATS + 1)
    return next((count for count in counts if expected_distance(count) * spread <= margin), None)


def expected_distance(count: int) -> float:
    """Return the mean distance of a ratio's limits from it, in standard deviations.

    The expectation of a normal order statistic is G. Blom's: Statistical Estimates and
    Transformed Beta-Variables, 1958.
    """
    return -2 * NormalDist().inv_cdf((limit_rank(count) - 0.375) / (count + 0.25))
