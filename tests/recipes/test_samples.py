"""The sample log of each recipe gives what the recipe says, and no variant of it another number."""

from __future__ import annotations

import math
import re
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
# A unit in a record: its words before the number, or right after it.
_UNIT = re.compile(
    r"(?i)(?:samples?|seq\w*|sentences|examples?|exp|steps?|bandwidth)\S{0,3}[ /_]*(?:per)?[ /_]*s(?:ec|\b|')"
    r"|\(ms\\?\)|\bms(?:/|,)|\bbandwidth\b"
)
# Programs that print a number without a unit: the pattern then has all that may follow it.
_BARE = {("oneflow", "step"), ("oneflow-models", "step"), ("mlperf-bert", "tracked")}


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


def check_steps(reading: Reading, rule: Rule) -> None:
    """Check that the number follows from the times of the steps."""
    steps = reading.steps
    if steps is None:  # Closing lines tell of no step.
        assert rule.kind in ("footer", "custom")
        return
    assert len(steps.iterations) == len(steps.seconds)
    assert sorted(steps.iterations) == list(steps.iterations)
    assert steps.iterations[-1] == steps.until
    batch = reading.setting.batch("global", micro=rule.record.counts == "micro-batches")
    rates = [batch / seconds for seconds in steps.measured]
    middle = {"median": median, "harmonic": harmonic_mean}.get(rule.average, fmean)(rates)
    if rule.kind in {"clock", "elapsed"}:
        middle = harmonic_mean(rates)
    assert middle == pytest.approx(reading.throughput, rel=0.02)


def test_the_sample_gives_what_the_recipe_declares(name: str, tmp_path: Path) -> None:
    """A bandwidth is told, and is no throughput; each number is read with its unit."""
    recipe, rules = load(name), grammar(name).rules
    declared = dict(recipe.sample.throughput) if recipe.sample else {}
    is_bandwidth = all(rule.unit == "GB/s" for rule in rules)
    assert bool(list_rules(name)) != is_bandwidth
    assert is_bandwidth or not declared or rules[0].name in declared
    for rule in rules:
        reading = Reader(name, tmp_path).read(sample(name), rule.name)
        if rule.name in declared:
            assert reading.throughput == pytest.approx(declared[rule.name], rel=5e-5), reading
            assert not reading.reasons
            assert "short-window" not in reading.flags
            check_steps(reading, rule)
        elif declared or is_bandwidth:
            assert reading.throughput is None, f"{rule.name} gives {reading.throughput}, undeclared"
            assert (rule.unit == "GB/s") == ("GB/s" in str(reading.reasons[0]))
        if rule.field != "time" and rule.kind != "custom" and rule.unit != "GB/s":
            record = rule.record
            text = record.contains.decode() + " " + record.match.pattern.decode()
            assert bool(_UNIT.search(text)) != ((name, record.name) in _BARE), text
        wide = rule.tolerance > grammar(name).tolerance
        assert not wide or rule.side != "both", "every wide tolerance has its side"


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


def test_what_every_cluster_does_to_a_log_still_gives_the_number(name: str, tmp_path: Path) -> None:
    """A terminal, of `docker run -t`, puts a carriage return before each newline."""
    dressed, read_log = variants.dress(variants.take(name)), Reader(name, tmp_path).read
    for variant in (
        *("colours", "labels of srun", "one terminal", "two terminals"),
        *("some lines of terminals", "colours in a terminal"),
    ):
        for rule, value in list_rules(name):
            reading = read_log(dressed[variant], rule.name)
            assert reading.throughput == pytest.approx(value, rel=_SAME), f"{variant}: {reading}"
    # `srun -l` in a terminal: the parts of a line that it cut end there, too.
    for variant in ("labels of srun", "labels of mpirun", "records that srun split"):
        for rule, _ in list_rules(name):
            plain = read_log(dressed[variant], rule.name)
            typed = dressed[variant].replace(b"\n", b"\r\n")
            assert read_log(typed, rule.name) == plain, f"{variant}: {rule.name}"


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


def test_a_run_over_midnight_gives_the_same_number_and_half_a_run_no_step(
    name: str, tmp_path: Path
) -> None:
    taken, read_log = variants.take(name), Reader(name, tmp_path).read
    for rule, value in list_rules(name):
        entries = [entry for entry in taken.inside if entry.record is rule.record]
        if rule.kind == "clock" and entries:
            late = variants.move_to_midnight(taken, entries[0])
            if late is not None:
                assert late != taken.data
                assert read_log(late, rule.name).throughput == pytest.approx(value, rel=1e-6)
        half = read_log(taken.data[: len(taken.data) // 2], rule.name)
        assert half.throughput is not None or half.steps is None
