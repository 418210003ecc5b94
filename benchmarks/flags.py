"""How often `outlier` and `noisy` speak, on clean runs and on faults.

    python benchmarks/flags.py                   # prints the tables of docs/explanation/numbers.md
    python benchmarks/flags.py --rounds 200      # a glance

Runs are drawn from a normal distribution around 100 samples/s; the faults are of 5 %. The numbers
are the same every time: the seed is fixed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from random import Random

from hpcbert.model import Group, Measured, Row, Run, Shape
from hpcbert.reduce import tabulate

ROUNDS = 4000
SEED = 20261121
SPREADS = (0.001, 0.005, 0.01, 0.02, 0.03)
GROUP = Group("f", "m", "fp32", 1, "r")
Sample = Callable[[Random], list[float]]


def row(numbers: list[float]) -> Row:
    """Return what hpcbert makes of some runs."""
    runs = tuple(
        Run(place, 0, number, True, (), "-", "none", "")
        for place, number in enumerate(numbers, start=1)
    )
    (table,) = tabulate([Measured(GROUP, Shape(1, 1), len(runs), runs)])
    return table.rows[0]


def normal(spread: float, runs: int = 5) -> Sample:
    return lambda random: [random.gauss(100, 100 * spread) for _ in range(runs)]


def faulty(spread: float, factor: float, runs: int = 5) -> Sample:
    """Return samples whose first run is off by a factor."""

    def draw(random: Random) -> list[float]:
        first, *others = normal(spread, runs)(random)
        return [first * factor, *others]

    return draw


def share(sample: Sample, holds: Callable[[Row], bool], rounds: int) -> str:
    """Return in how many of the rounds something holds of the row."""
    random = Random(SEED)
    found = sum(holds(row(sample(random))) for _ in range(rounds))
    return percent(found / rounds)


def percent(value: float) -> str:
    return f"{value:.1%}".replace("%", " %")


def has(flag: str) -> Callable[[Row], bool]:
    return lambda one: flag in one.flags


def first_is_marked(one: Row) -> bool:
    return "outlier" in one.runs[0].flags


def outliers(rounds: int) -> Iterator[tuple[str, ...]]:
    yield (
        "runs scatter by",
        "false alarm, 3 runs",
        "5 runs",
        "7 runs",
        "5 % slow",
        "5 % fast",
        "10 % slow",
    )
    for spread in SPREADS:
        clean = (share(normal(spread, runs), has("outlier"), rounds) for runs in (3, 5, 7))
        caught = (
            share(faulty(spread, factor), first_is_marked, rounds) for factor in (0.95, 1.05, 0.9)
        )
        yield (percent(spread), *clean, *caught)


def noises(rounds: int) -> Iterator[tuple[str, ...]]:
    yield ("runs scatter by", "`noisy`, 3 runs", "5 runs", "7 runs", "5 runs, one 5 % slow")
    for spread in (*SPREADS, 0.05, 0.1):
        marked = (share(normal(spread, runs), has("noisy"), rounds) for runs in (3, 5, 7))
        yield (percent(spread), *marked, share(faulty(spread, 0.95), has("noisy"), rounds))


def table(lines: Iterator[tuple[str, ...]]) -> str:
    header, *rest = lines
    bars = ("---", *["---:"] * (len(header) - 1))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, bars, *rest))


def report(rounds: int) -> str:
    """Return the tables as Markdown."""
    parts = (outliers(rounds), noises(rounds))
    return "\n\n".join(map(table, parts)) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    sys.stdout.write(report(parser.parse_args().rounds))


if __name__ == "__main__":
    main()
