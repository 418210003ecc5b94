"""How often `outlier`, `noisy`, `uneven` and `contradiction` appear, on clean runs and on faults.

    python benchmarks/flags.py                   # prints the tables of docs/explanation/numbers.md
    python benchmarks/flags.py --rounds 200      # a glance

Runs are drawn from a normal distribution around 100 samples/s; the faults are of 5 %. For `uneven`
the steps of a window are drawn, from a normal distribution of their rates. For
`contradiction` whole logs of the PyTorch recipe are written, with a clock and a printed rate whose
steps vary by 1 % on their own, and read by the code for real logs. The seed is fixed, so the
numbers are always the same.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from hpcbert.config.toml import read as read_toml
from hpcbert.logs import grammar
from hpcbert.logs.crosscheck import WindowRecord, find_unevenness
from hpcbert.logs.scan import read
from hpcbert.logs.setting import Setting
from hpcbert.model import Group, Measured, Row, Run, Shape
from hpcbert.results.reduce import tabulate

RECIPE = Path(__file__).resolve().parent.parent / "templates" / "pytorch" / "recipe.toml"
ROUNDS = 4000
LOGS = 100
SEED = 20261121
SPREADS = (0.005, 0.01, 0.02, 0.03)
GROUP = Group("f", "m", "fp32", 1, "r")
Sample = Callable[[Random], list[float]]


def row(numbers: list[float]) -> Row:
    """Return the row that hpcbert makes from some runs."""
    runs = tuple(
        Run(place, 0, number, True, (), "-", "none", "")
        for place, number in enumerate(numbers, start=1)
    )
    (table,) = tabulate([Measured(GROUP, Shape(1, 1), len(runs), runs=runs)])
    return table.rows[0]


def normal(spread: float, runs: int = 5) -> Sample:
    return lambda random: [random.gauss(100, 100 * spread) for _ in range(runs)]


def faulty(spread: float, factor: float, runs: int = 5) -> Sample:
    """Return samples with the first run off by a factor."""

    def draw(random: Random) -> list[float]:
        first, *others = normal(spread, runs)(random)
        return [first * factor, *others]

    return draw


def share(sample: Sample, holds: Callable[[Row], bool], rounds: int) -> str:
    """Return the share of rounds in which a property of the row holds."""
    random = Random(SEED)
    found = sum(holds(row(sample(random))) for _ in range(rounds))
    return percent(found / rounds)


def percent(value: float) -> str:
    return f"{value:.1%}"


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
        "one 5% slow",
        "5% fast",
        "10% slow",
    )
    for spread in SPREADS:
        clean = (share(normal(spread, runs), has("outlier"), rounds) for runs in (3, 5, 7))
        caught = (
            share(faulty(spread, factor), first_is_marked, rounds) for factor in (0.95, 1.05, 0.9)
        )
        yield (percent(spread), *clean, *caught)


def noises(rounds: int) -> Iterator[tuple[str, ...]]:
    yield ("runs scatter by", "all, 3 runs", "5 runs", "7 runs", "5 runs, one 5% slow")
    for spread in (*SPREADS[1:], 0.05):
        marked = (share(normal(spread, runs), has("noisy"), rounds) for runs in (3, 5, 7))
        yield (percent(spread), *marked, share(faulty(spread, 0.95), has("noisy"), rounds))


def is_uneven(
    random: Random, spread: float, records: int, factor: Callable[[float], float]
) -> bool:
    """Return whether a window is flagged whose steps are slower, by their place from 0 to 1."""
    rates = [random.gauss(1, spread) / factor(place / records) for place in range(records)]
    parts = [WindowRecord(place, rate, 1 / rate, False, 1) for place, rate in enumerate(rates, 1)]
    value = records / sum(1 / rate for rate in rates)
    return find_unevenness(value, parts) is not None


def unevens(rounds: int) -> Iterator[tuple[str, ...]]:
    yield (
        "steps scatter by",
        "false alarm, 5 steps",
        "20 steps",
        "100 steps",
        "one of 100 ten times as long",
        "ten 1.6 times",
        "half 1.3 times",
    )
    faults: list[tuple[int, Callable[[float], float]]] = [
        (5, lambda _: 1),
        (20, lambda _: 1),
        (100, lambda _: 1),
        (100, lambda place: 10 if place == 0.5 else 1),
        (100, lambda place: 1.6 if place < 0.1 else 1),
        (100, lambda place: 1.3 if place >= 0.5 else 1),
    ]
    for spread in (0.01, 0.05, 0.1, 0.15):
        shares = []
        for records, factor in faults:
            random = Random(SEED)
            found = sum(is_uneven(random, spread, records, factor) for _ in range(rounds))
            shares.append(percent(found / rounds))
        yield (percent(spread), *shares)


def log(random: Random, clock: float) -> str:
    """Return a log whose clock is off by a factor from the rates that it prints."""
    lines = ['hpcbert-config {"batch_size_per_device": 4, "world_size": 1, "accumulation": 1}']
    now = 1763717655.0
    for step in range(1, 121):
        seconds = 0.04 * random.gauss(1, 0.01)
        now += seconds * clock * random.gauss(1, 0.01)
        printed = f"samples/s: {4 / seconds:.2f} time: {now:.6f}"
        lines.append(f"iteration: {step}/120 loss: 9.5 {printed}")
    return "\n".join([*lines, ""])


def contradictions(logs: int) -> Iterator[tuple[str, ...]]:
    yield ("clock and printed rate", "refused for `contradiction`")
    known = grammar.parse(read_toml(RECIPE)["log"], where=str(RECIPE))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "1.log"
        for clock in (1.0, 1.05, 1.3, 2.0, 0.5):
            random, refused = Random(SEED), 0
            for _ in range(logs):
                path.write_text(log(random, clock))
                reading = read(path, known, known.rules[0], Setting(nodes=1, gpus_per_node=1))
                refused += any(reason.code == "contradiction" for reason in reading.reasons)
            what = "agree" if clock == 1 else f"differ {max(clock, 1 / clock):g}"
            how = "" if clock == 1 else f", the clock {'late' if clock > 1 else 'early'}"
            yield (what + how, percent(refused / logs))


def table(lines: Iterator[tuple[str, ...]]) -> str:
    header, *rest = lines
    bars = ("---", *["---:"] * (len(header) - 1))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, bars, *rest))


def report(rounds: int, logs: int) -> str:
    """Return the four tables as Markdown."""
    parts = (outliers(rounds), noises(rounds), unevens(rounds), contradictions(logs))
    return "\n\n".join(map(table, parts)) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--logs", type=int, default=LOGS)
    asked = parser.parse_args()
    sys.stdout.write(report(asked.rounds, asked.logs))


if __name__ == "__main__":
    main()
