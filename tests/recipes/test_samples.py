"""The sample log of each recipe gives what the recipe says, and no variant of it another number."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from statistics import fmean, harmonic_mean, median

import pytest

from hpcbert.logs.grammar import Rule
from hpcbert.logs.scan import Reading, read
from tests.kit.needs import not_applicable
from tests.kit.paths import TEMPLATES
from tests.kit.recipes import Reader, grammar, load, sample, setting
from tests.recipes import variants

_SAME = 1e-9
# A number may move by what one step of a hundred does to it, and by no more.
_SMALL = 0.02


@cache
def list_rules(name: str) -> list[tuple[Rule, float]]:
    path, log = TEMPLATES / name / "sample.log", grammar(name)
    values = [(rule, read(path, log, rule, setting(name)).throughput) for rule in log.rules]
    return [(rule, value) for rule, value in values if value is not None]


def is_right(reading: Reading, value: float, tolerance: float = _SAME) -> bool:
    """Say whether a reading is the right number or none with a reason."""
    if reading.throughput is None:
        return bool(reading.reasons or reading.missing)
    return math.isclose(reading.throughput, value, rel_tol=tolerance)


def test_the_sample_gives_what_the_recipe_declares(name: str, tmp_path: Path) -> None:
    """A bandwidth is told, and is no throughput."""
    recipe, rules = load(name), grammar(name).rules
    declared = dict(recipe.sample.throughput) if recipe.sample else {}
    is_bandwidth = all(rule.unit == "GB/s" for rule in rules)
    assert bool(list_rules(name)) != is_bandwidth
    if not (declared or is_bandwidth):
        not_applicable(f"{name} has no [sample]")
    assert is_bandwidth or rules[0].name in declared
    for rule in rules:
        reading = Reader(name, tmp_path).read(sample(name), rule.name)
        if rule.name in declared:
            assert reading.throughput == pytest.approx(declared[rule.name], rel=5e-5), reading
            assert not reading.reasons
            assert "short-window" not in reading.flags
        else:
            assert reading.throughput is None, f"{rule.name} gives {reading.throughput}, undeclared"
            assert (rule.unit == "GB/s") == ("GB/s" in str(reading.reasons[0]))


@pytest.mark.parametrize("variant", variants.VARIANTS)
def test_no_variant_gives_another_number(name: str, variant: str, tmp_path: Path) -> None:
    for rule, value in list_rules(name):
        is_moved = variant == "out of proportion" and rule.average == "median"
        tolerance = _SMALL if is_moved or variant == "an exponent" else _SAME
        entries = [entry for entry in variants.take(name).entries if entry.record is rule.record]
        for number, data in enumerate(variants.VARIANTS[variant](variants.take(name), rule)):
            reading = Reader(name, tmp_path).read(data, rule.name)
            message = f"{rule.name}, variant {number}: {reading.throughput}, not {value}"
            assert is_right(reading, value, tolerance), message
            if variant == "another unit" and entries and rule.kind != "footer":
                assert reading.throughput is None, message


@pytest.mark.parametrize("variant", variants.REFUSED)
def test_a_window_that_is_not_whole_or_a_lost_loss_gives_no_number(
    name: str, variant: str, tmp_path: Path
) -> None:
    spoil, expected = variants.REFUSED[variant]
    logs = list(spoil(variants.take(name)))
    if not logs:
        not_applicable(f"the sample of {name} prints no such line inside the window")
    for rule, _ in list_rules(name):
        for data in logs:
            reading = Reader(name, tmp_path).read(data, rule.name)
            assert reading.throughput is None, rule.name
            reason_codes = {reason.code for reason in reading.reasons}
            assert reason_codes & expected if variant == "loss" else reason_codes
            assert variant != "no window" or reason_codes <= expected


@pytest.mark.parametrize(
    "variant",
    [
        *("colours", "labels of srun", "one terminal", "two terminals"),
        *("some lines of terminals", "colours in a terminal"),
    ],
)
def test_what_every_cluster_does_to_a_log_still_gives_the_number(
    name: str, variant: str, tmp_path: Path
) -> None:
    """A terminal, of `docker run -t`, puts a carriage return before each newline."""
    dressed = variants.dress(variants.take(name))[variant]
    for rule, value in list_rules(name):
        reading = Reader(name, tmp_path).read(dressed, rule.name)
        assert reading.throughput == pytest.approx(value, rel=_SAME), f"{rule.name}: {reading}"


def test_carriage_returns_before_newlines_change_nothing_of_labels(
    name: str, tmp_path: Path
) -> None:
    """`srun -l` in a terminal: the parts of a line that it cut end there, too."""
    dressed = variants.dress(variants.take(name))
    for variant in ("labels of srun", "labels of mpirun", "records that srun split"):
        for rule, _ in list_rules(name):
            plain = Reader(name, tmp_path).read(dressed[variant], rule.name)
            typed = dressed[variant].replace(b"\n", b"\r\n")
            assert Reader(name, tmp_path).read(typed, rule.name) == plain, f"{variant}: {rule.name}"


def test_an_iteration_that_is_printed_again_counts_as_the_grammar_says(
    name: str, tmp_path: Path
) -> None:
    """A step whose gradients overflow is printed again under its number, and takes its time."""
    taken = variants.take(name)
    for rule, value in list_rules(name):
        entries = taken.of_rule(rule)
        if rule.kind == "footer" or not entries:
            continue
        reading = Reader(name, tmp_path).read(variants.repeat_step(taken, entries[0]), rule.name)
        if rule.record.repeated != "count" or reading.throughput is None:
            assert is_right(reading, value), f"{rule.name}: {reading.throughput}, not {value}"
        elif rule.kind == "clock" and rule.until.by == "iteration":
            steps = taken.iters - taken.skip
            assert reading.throughput == pytest.approx(value * (steps + 1) / steps, rel=_SAME)
        else:
            # One more rate among a hundred, or a window of lines that ends a line earlier.
            assert reading.throughput == pytest.approx(value, rel=_SMALL)


def test_a_run_over_midnight_gives_the_same_number(name: str, tmp_path: Path) -> None:
    taken = variants.take(name)
    for rule, value in list_rules(name):
        entries = [entry for entry in taken.inside if entry.record is rule.record]
        if rule.kind == "clock" and entries:
            late = variants.move_to_midnight(taken, entries[0])
            if late is not None:
                assert late != taken.data
                reading = Reader(name, tmp_path).read(late, rule.name)
                assert reading.throughput == pytest.approx(value, rel=1e-6), reading


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
