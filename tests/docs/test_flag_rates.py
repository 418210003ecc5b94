"""What the documents say of false alarms and power is what the code does."""

from __future__ import annotations

import importlib
import math
import sys

import pytest

from tests.kit.paths import REPOSITORY

ROUNDS = 150


@pytest.fixture(scope="module")
def simulated() -> dict[str, list[str]]:
    """The cells of each line that a short simulation gives, by table and first cell."""
    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    try:
        flags = importlib.import_module("flags")
    finally:
        sys.path.remove(str(REPOSITORY / "benchmarks"))
    return read_cells(flags.report(ROUNDS, 5))


def read_cells(text: str) -> dict[str, list[str]]:
    lines: dict[str, list[str]] = {}
    title = ""
    for line in text.splitlines():
        if line[:1] != "|":
            title = ""
            continue
        first, *values = (cell.strip() for cell in line.strip("|").split("|"))
        title = title or " ".join((first, *values))
        lines[f"{title}: {first}"] = values
    return lines


@pytest.mark.slow
def test_documented_rates_are_those_of_the_simulation(simulated: dict[str, list[str]]) -> None:
    page = REPOSITORY / "docs" / "explanation" / "numbers.md"
    written = read_cells(page.read_text(encoding="utf-8"))
    assert set(simulated) <= set(written)
    shares = [
        (line, float(ours.rstrip(" %")) / 100, float(theirs.rstrip(" %")) / 100)
        for line, values in simulated.items()
        for ours, theirs in zip(values, written[line], strict=True)
        if ours.endswith("%")
    ]
    assert len(shares) > 60
    for line, ours, theirs in shares:
        # Four standard errors of the short simulation, the long one's rounding, and a rare event.
        room = 4 * math.sqrt(theirs * (1 - theirs) / ROUNDS) + 0.0005 + 2 / ROUNDS
        assert ours == pytest.approx(theirs, abs=room), line
