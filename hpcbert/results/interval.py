"""Confidence limits of medians and of their ratios, from order statistics; pure.

The only assumption is that runs are independent. The chance that the median of a distribution lies
outside the i-th smallest and the i-th largest of n values is that of fewer than i heads, or tails,
of n coins (H. A. David, H. N. Nagaraja, Order Statistics, 3rd edition, section 7.1). Each of the
two medians gets such limits, which depend only on the number of runs; the limits of the ratio are
the quotients of these. docs/explanation/comparing.md has the figures.
"""

from __future__ import annotations

from functools import cache
from math import comb, log, sqrt
from typing import TYPE_CHECKING, NamedTuple

from hpcbert.config.adaptive import FEWEST
from hpcbert.logs.arithmetic import median

if TYPE_CHECKING:
    from collections.abc import Sequence

# The joint coverage of both medians' limits, if there are enough runs: five of each are.
CONFIDENCE = 0.875
# The largest accepted chance of reporting a difference where nothing differs.
FALSE_ALARM = 0.05
# The most repeats that anybody runs.
MOST = 100


class Ratio(NamedTuple):
    """A ratio of two medians.

    Attributes:
        value: The ratio.
        low, high: Its limits.
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
        median: Of the runs.
        low, high: Its limits.
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


def limits(runs: Sequence[float]) -> Limits:
    """Return the limits of the median of some runs: of five the slowest and the fastest.

    Args:
        runs: Throughputs, at least one, all above 0.
    """
    ordered = sorted(runs)
    place = rank(len(ordered))
    return Limits(
        median(ordered), ordered[place - 1], ordered[-place], covered(len(ordered), place)
    )


def suffices(runs: Sequence[float], precision: float | None) -> bool:
    """Return whether a median is so precise that no more runs are needed.

    Fewer than five runs never suffice; the limits of five contain it with 93.75 %.

    Args:
        runs: Throughputs of the valid ones.
        precision: The maximum distance between the limits, as a share of the median; None: nothing
            suffices.
    """
    return precision is not None and len(runs) >= FEWEST and limits(runs).width < precision


def ratio(base: Sequence[float], new: Sequence[float]) -> Ratio:
    """Return the ratio of the medians of two sets of runs, new over base.

    Args:
        base: Throughputs of the first set, at least one, all above 0.
        new: Those of the second set, in the same form.
    """
    left, right = sorted(base), sorted(new)
    i, j = rank(len(left)), rank(len(right))
    return Ratio(
        value=median(right) / median(left),
        low=right[j - 1] / left[-i],
        high=right[-j] / left[i - 1],
        coverage=covered(len(left), i) * covered(len(right), j),
        false_alarm=false_alarm(len(left), len(right)),
    )


def covered(count: int, place: int) -> float:
    """Return the chance that the median lies from the i-th smallest to the i-th largest value."""
    tail = sum(comb(count, number) for number in range(place))
    return 1 - 2 * tail / (1 << count)


@cache
def rank(count: int) -> int:
    """Return which of n values, counted from both ends, are the limits of their median.

    These are the innermost ones for which both medians lie within their limits with CONFIDENCE,
    each with its square root; of few values, the outermost.
    """
    wanted = sqrt(CONFIDENCE)
    fitting = [place for place in range(1, count // 2 + 1) if covered(count, place) >= wanted]
    return max(fitting, default=1)


@cache
def false_alarm(base: int, new: int) -> float:
    """Return the chance that limits of n and m values of one distribution don't overlap.

    All orders of the values are then equally likely. Counted are those in which all values of one
    set up to its limit come before the limit of the other.
    """
    i, j = rank(base), rank(new)
    above = _apart(base, base + 1 - i, new, j)
    below = _apart(new, new + 1 - j, base, i)
    return min(1.0, above + below)


def _apart(count: int, upper: int, others: int, lower: int) -> float:
    """Return the chance that the upper-th of n values is below the lower-th of m others."""
    orders = sum(
        comb(before + lower - 1, before) * comb(count - before + others - lower, count - before)
        for before in range(upper, count + 1)
    )
    return orders / comb(count + others, count)


def scatter(base: Sequence[float], new: Sequence[float]) -> float | None:
    """Return the scatter of the runs of both sets: the standard deviation of their logarithms.

    None if neither set has two runs.
    """
    squares, freedom = 0.0, 0
    for runs in (base, new):
        values = [log(run) for run in runs]
        mean = sum(values) / len(values)
        squares += sum((value - mean) ** 2 for value in values)
        freedom += len(values) - 1
    return sqrt(squares / freedom) if freedom else None


def least() -> int:
    """Return the smallest number of repeats of both that allows a verdict."""
    return next(count for count in range(1, MOST) if false_alarm(count, count) <= FALSE_ALARM)


def repeats(spread: float, margin: float, beyond: int = 0) -> int | None:
    """Return how many repeats of both bring the limits this near to the ratio.

    An expectation, for runs that scatter normally; None if it is more than MOST.

    Args:
        spread: The scatter of the runs, as a share.
        margin: The distance, as a share.
        beyond: The number of existing repeats, which did not suffice.
    """
    counts = range(max(least(), beyond + 1), MOST + 1)
    return next((count for count in counts if reach(count) * spread <= margin), None)


def reach(count: int) -> float:
    """Return the mean distance of a ratio's limits from it, in standard deviations.

    The expectation of a normal order statistic is G. Blom's: Statistical Estimates and
    Transformed Beta-Variables, 1958.
    """
    from statistics import NormalDist

    return -2 * NormalDist().inv_cdf((rank(count) - 0.375) / (count + 0.25))
