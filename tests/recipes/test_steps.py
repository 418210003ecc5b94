"""Step times of each recipe's sample log give its throughput again."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, harmonic_mean, median

import pytest

from tests.kit.needs import not_applicable
from tests.kit.recipes import Reader, grammar, load, sample


def test_step_times_follow_from_the_number(name: str, tmp_path: Path) -> None:
    declared = load(name).sample
    if declared is None:
        not_applicable(f"{name} has no [sample]")
    for rule in declared.throughput:
        reading = Reader(name, tmp_path).read(sample(name), rule)
        steps = reading.steps
        if steps is None:
            # Closing lines tell of no step.
            assert grammar(name).rule(rule).kind in ("footer", "custom")
            continue
        assert len(steps.iterations) == len(steps.seconds)
        assert sorted(steps.iterations) == list(steps.iterations)
        measured = steps.measured
        assert measured
        assert steps.iterations[-1] == steps.until
        micro = grammar(name).rule(rule).record.counts == "micro-batches"
        batch = reading.setting.batch("global", micro=micro)
        used = grammar(name).rule(rule)
        rates = [batch / seconds for seconds in measured]
        middle = {"median": median, "harmonic": harmonic_mean}.get(used.average, fmean)(rates)
        if used.kind in {"clock", "elapsed"}:
            middle = harmonic_mean(rates)
        assert middle == pytest.approx(reading.throughput, rel=0.02)


def test_a_run_without_a_number_has_no_steps(tmp_path: Path) -> None:
    half = sample("oneflow")[: len(sample("oneflow")) // 2]
    assert Reader("oneflow", tmp_path).read(half, "rate").steps is None
