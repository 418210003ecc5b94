"""Where `--repeats auto` stops, and how often its interval is right although it is checked each
time.

    python benchmarks/repeats.py                  # prints the table of README.md, with more spreads
    python benchmarks/repeats.py --rounds 500     # a glance

Runs are drawn around a median of 100 samples/s: from a normal distribution, from a skewed one (most
runs near the fastest, a tail of slow ones), and from a normal one in which every tenth run is 5 %
too slow. The rule is the code's own; the seed is fixed.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from random import Random

from hpcbert.config.options import DEFAULT_MAX_REPEATS, DEFAULT_PRECISION, FEWEST_REPEATS
from hpcbert.results.interval import is_precise, median_limits

ROUNDS = 4000
SEED = 20261122
MEDIAN = 100.0
SPREADS = (0.002, 0.004, 0.006, 0.01, 0.02)
Draw = Callable[[Random, float], float]
# Each has a median of 100 and about the requested standard deviation.
DISTRIBUTIONS: dict[str, Draw] = {
    "normal": lambda at, spread: at.gauss(MEDIAN, MEDIAN * spread),
    "skewed": lambda at, spread: MEDIAN * (1 + spread * (math.log(2) - at.expovariate(1))),
    # Half of all runs are below the median if 4/9 of the quick ones are: so the median is 0.1397
    # spreads below that of the quick ones.
    "slow runs": lambda at, spread: (
        at.gauss(MEDIAN * (1 + 0.1397 * spread), MEDIAN * spread)
        * (0.95 if at.random() < 0.1 else 1.0)
    ),
}


def stopped(draw: Callable[[], float], most: int, precision: float) -> list[float]:
    """Return runs until they suffice."""
    runs = [draw() for _ in range(FEWEST_REPEATS)]
    while len(runs) < most and not is_precise(runs, precision):
        runs.append(draw())
    return runs


def row(name: str, spread: float, rounds: int) -> tuple[str, ...]:
    random, draw = Random(SEED), DISTRIBUTIONS[name]
    counts, held, early, early_held, error, fixed = [], 0, 0, 0, 0.0, 0
    for _ in range(rounds):
        runs = stopped(lambda: draw(random, spread), DEFAULT_MAX_REPEATS, DEFAULT_PRECISION)
        found = median_limits(runs)
        inside = found.low <= MEDIAN <= found.high
        narrow = is_precise(runs, DEFAULT_PRECISION)
        counts.append(len(runs))
        held += inside
        early += narrow
        early_held += narrow and inside
        error += abs(found.median / MEDIAN - 1)
        first = median_limits(runs[:FEWEST_REPEATS])
        fixed += first.low <= MEDIAN <= first.high
    return (
        name,
        f"{spread:.1%}".replace("%", " %"),
        f"{sum(counts) / rounds:.1f}",
        percent(early / rounds),
        percent(held / rounds),
        percent(early_held / early) if early else "-",
        percent(fixed / rounds),
        f"{error / rounds:.2%}".replace("%", " %"),
    )


def percent(value: float) -> str:
    return f"{value:.1%}".replace("%", " %")


def main() -> None:
    parser = argparse.ArgumentParser(description="What --repeats auto stops at.")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    titles = ["runs", "spread", "repeats", "narrow enough", "holds the median", "narrow ones do"]
    titles += ["the first five do", "error of the median"]
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for name in DISTRIBUTIONS:
        for spread in SPREADS:
            print(f"| {' | '.join(row(name, spread, rounds))} |")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
