"""The sample log of each recipe gives what the recipe says, and no variant of it another number."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from hpcbert.config.recipe import Recipe
from hpcbert.logs.grammar import FACTS, Rule
from hpcbert.logs.scan import Reading, read
from tests.kit.needs import not_applicable
from tests.kit.paths import TEMPLATES
from tests.kit.recipes import Reader, grammar, load, sample, setting
from tests.recipes import variants

_SAME = 1e-9


@cache
def rules(name: str) -> list[tuple[Rule, float]]:
    """Return the rules under which the sample gives a number, with the number."""
    path, log = TEMPLATES / name / "sample.log", grammar(name)
    found = [(rule, read(path, log, rule, setting(name)).throughput) for rule in log.rules]
    return [(rule, value) for rule, value in found if value is not None]


def is_bandwidth(recipe: Recipe) -> bool:
    return all(rule.unit == "GB/s" for rule in grammar(recipe.name).rules)


def agrees(reading: Reading, value: float) -> bool:
    """Say whether a reading is the right number or none with a reason."""
    if reading.throughput is None:
        return bool(reading.reasons or reading.missing)
    return math.isclose(reading.throughput, value, rel_tol=_SAME)


def lies(name: str, rule: Rule, value: float, logs: Iterable[bytes], tmp_path: Path) -> list[str]:
    """Return what goes wrong with variants, a few words each."""
    reader = Reader(name, tmp_path)
    found = []
    for number, data in enumerate(logs):
        reading = reader.read(data, rule.name)
        if not agrees(reading, value):
            found.append(f"{rule.name}, variant {number}: {reading.throughput}, not {value}")
    return found


def test_the_sample_gives_what_the_recipe_declares(name: str, tmp_path: Path) -> None:
    recipe = load(name)
    if recipe.sample is None:
        if is_bandwidth(recipe):
            return
        not_applicable(f"{name} has no [sample]")
    declared = dict(recipe.sample.throughput)
    first = grammar(name).rules[0].name
    assert first in declared, f"the default rule {first} has no declared throughput"
    for rule in grammar(name).rules:
        reading = Reader(name, tmp_path).read(sample(name), rule.name)
        if rule.name in declared:
            assert reading.throughput == pytest.approx(declared[rule.name], rel=5e-5), reading
        else:
            assert reading.throughput is None, f"{rule.name} gives {reading.throughput}, undeclared"
            assert reading.reasons


def test_a_bandwidth_is_told_and_is_no_throughput(name: str, tmp_path: Path) -> None:
    for rule in grammar(name).rules:
        if rule.unit == "GB/s":
            reading = Reader(name, tmp_path).read(sample(name), rule.name)
            assert reading.throughput is None
            assert "GB/s" in str(reading.reasons[0])


def test_the_sample_gives_a_number_unless_it_is_a_bandwidth(name: str) -> None:
    assert bool(rules(name)) != is_bandwidth(load(name))


def test_what_the_sample_says_of_its_run_is_checked(name: str, tmp_path: Path) -> None:
    """A run with another batch size, shape or precision than asked for is refused."""
    stated = [fact for fact in grammar(name).facts if fact.contains in sample(name)]
    said = {group for fact in stated for group in fact.match.groupindex}
    assert said <= set(FACTS)
    for rule, _ in rules(name):
        told = Reader(name, tmp_path).read(sample(name), rule.name).setting
        for fact in said:
            value = getattr(told, fact)
            if value is None:
                continue
            wrong = "bf16" if isinstance(value, str) else value * 2 + 1
            known = setting(name)._replace(**{fact: wrong})  # type: ignore[arg-type]
            reading = Reader(name, tmp_path).read(sample(name), rule.name, known)
            assert reading.throughput is None, f"{fact} = {wrong} is believed, the log says {value}"
            assert reading.reasons[0].code == "config"


def test_a_log_cut_short_gives_the_number_or_a_reason(name: str, tmp_path: Path) -> None:
    data, log = sample(name), grammar(name)
    found = variants.records(data, log)
    for rule, value in rules(name):
        wrong = lies(name, rule, value, variants.cuts(data, found), tmp_path)
        assert not wrong, "; ".join(wrong[:5])


def test_a_log_that_ends_inside_the_window_gives_no_number(name: str, tmp_path: Path) -> None:
    data, log, known = sample(name), grammar(name), setting(name)
    inside = variants.within(variants.records(data, log), known.skip, known.iters)
    for rule, _ in rules(name):
        for one in inside[:3]:
            short = data[: variants.line_of(data, one)[1]]
            reading = Reader(name, tmp_path).read(short, rule.name)
            assert reading.throughput is None
            assert reading.reasons


def test_launchers_and_terminals_change_no_number(name: str, tmp_path: Path) -> None:
    data = sample(name)
    found = variants.records(data, grammar(name))
    for rule, value in rules(name):
        for what, dressed in variants.dressed(data, found):
            reading = Reader(name, tmp_path).read(dressed, rule.name)
            assert agrees(reading, value), f"{what}: {rule.name}: {reading.throughput}, not {value}"


@pytest.mark.parametrize("what", ["colours", "labels of srun"])
def test_what_every_cluster_does_to_a_log_still_gives_the_number(
    name: str, what: str, tmp_path: Path
) -> None:
    data = sample(name)
    dressed = dict(variants.dressed(data, variants.records(data, grammar(name))))[what]
    for rule, value in rules(name):
        reading = Reader(name, tmp_path).read(dressed, rule.name)
        assert reading.throughput == pytest.approx(value, rel=_SAME), f"{rule.name}: {reading}"


_TERMINALS = {
    "one terminal": lambda lines: [line + b"\r" for line in lines],
    "two terminals": lambda lines: [line + b"\r\r" for line in lines],
    "some lines": lambda lines: [line + b"\r" * (n % 3) for n, line in enumerate(lines)],
    "colours": lambda lines: [b"\x1b[32m" + line + b"\r\x1b[0m" for line in lines],
}


@pytest.mark.parametrize("what", _TERMINALS)
def test_carriage_returns_before_newlines_change_no_number(
    name: str, what: str, tmp_path: Path
) -> None:
    """A terminal, of `docker run -t`, puts one before each newline."""
    lines = _TERMINALS[what](sample(name).split(b"\n")[:-1])
    for rule, value in rules(name):
        reading = Reader(name, tmp_path).read(b"\n".join([*lines, b""]), rule.name)
        assert reading.throughput == pytest.approx(value, rel=_SAME), f"{rule.name}: {reading}"


def test_carriage_returns_before_newlines_change_nothing_of_labels(
    name: str, tmp_path: Path
) -> None:
    """`srun -l` in a terminal: the parts of a line that it cut end there, too."""
    data = sample(name)
    dressed = dict(variants.dressed(data, variants.records(data, grammar(name))))
    for what in ("labels of srun", "labels of mpirun", "records that srun split"):
        for rule, _ in rules(name):
            plain = Reader(name, tmp_path).read(dressed[what], rule.name)
            typed = dressed[what].replace(b"\n", b"\r\n")
            assert Reader(name, tmp_path).read(typed, rule.name) == plain, f"{what}: {rule.name}"


def test_a_sample_printed_twice_gives_no_other_number(name: str, tmp_path: Path) -> None:
    for rule, value in rules(name):
        for what, twice in variants.doubled(sample(name)):
            reading = Reader(name, tmp_path).read(twice, rule.name)
            assert agrees(reading, value), f"{what}: {rule.name}: {reading.throughput}, not {value}"


def test_a_line_of_an_evaluation_changes_no_number(name: str, tmp_path: Path) -> None:
    data, known = sample(name), setting(name)
    inside = variants.within(variants.records(data, grammar(name)), known.skip, known.iters)
    for rule, value in rules(name):
        wrong = lies(name, rule, value, variants.foreign(data, inside), tmp_path)
        assert not wrong, "; ".join(wrong)


def test_a_loss_that_is_not_finite_gives_no_number(name: str, tmp_path: Path) -> None:
    data, known = sample(name), setting(name)
    found = variants.records(data, grammar(name))
    inside = variants.within(found, known.skip, known.iters)
    logs = list(variants.not_finite(data, inside or found))
    if not logs:
        not_applicable(f"the sample of {name} prints no loss inside the window")
    for rule, _ in rules(name):
        for bad in logs:
            reading = Reader(name, tmp_path).read(bad, rule.name)
            assert reading.throughput is None, rule.name
            assert "loss" in {reason.code for reason in reading.reasons}


def test_a_missing_record_gives_the_number_or_a_reason(name: str, tmp_path: Path) -> None:
    data, known = sample(name), setting(name)
    found = variants.records(data, grammar(name))
    for rule, value in rules(name):
        own = variants.counted(found, rule, known.skip, known.iters)
        wrong = lies(name, rule, value, variants.without_one(data, own), tmp_path)
        assert not wrong, "; ".join(wrong)


def test_a_line_that_is_there_twice_is_one_step(name: str, tmp_path: Path) -> None:
    """A buffer written twice is no step: the copy has the time of the line before it."""
    data, known = sample(name), setting(name)
    found = variants.records(data, grammar(name))
    for rule, value in rules(name):
        for one in variants.counted(found, rule, known.skip, known.iters)[:3]:
            start, end = variants.line_of(data, one)
            for torn in (end, one.match.end() - 3, (start + end) // 2):
                copy = data[start:torn].rstrip(b"\n") + b"\n"
                reading = Reader(name, tmp_path).read(data[:start] + copy + data[start:], rule.name)
                assert agrees(reading, value), f"{rule.name}: {reading.throughput}, not {value}"
                after = data[:end] + copy + data[end:]
                reading = Reader(name, tmp_path).read(after, rule.name)
                assert agrees(reading, value), f"{rule.name}: {reading.throughput}, not {value}"


def test_an_iteration_that_is_printed_again_counts_as_the_grammar_says(
    name: str, tmp_path: Path
) -> None:
    """A step whose gradients overflow is printed again under its number, and takes its time."""
    data, known = sample(name), setting(name)
    found = variants.records(data, grammar(name))
    for rule, value in rules(name):
        own = variants.counted(found, rule, known.skip, known.iters)
        if rule.kind == "footer" or not own:
            continue
        again = variants.executed_again(data, own[0])
        reading = Reader(name, tmp_path).read(again, rule.name)
        if rule.record.repeated != "count" or reading.throughput is None:
            assert agrees(reading, value), f"{rule.name}: {reading.throughput}, not {value}"
        elif rule.kind == "clock" and rule.until.by == "iteration":
            steps = known.iters - known.skip
            assert reading.throughput == pytest.approx(value * (steps + 1) / steps, rel=_SAME)
        else:
            # One more rate among a hundred, or a window of lines that ends a line earlier.
            assert reading.throughput == pytest.approx(value, rel=0.02)


def test_a_run_over_midnight_gives_the_same_number(name: str, tmp_path: Path) -> None:
    data, known = sample(name), setting(name)
    found = variants.records(data, grammar(name))
    inside = variants.within(found, known.skip, known.iters)
    for rule, value in rules(name):
        own = [one for one in inside if one.record is rule.record]
        if rule.kind != "clock" or not own:
            continue
        late = variants.over_midnight(data, found, own[0])
        if late is None:
            continue
        assert late != data
        reading = Reader(name, tmp_path).read(late, rule.name)
        assert reading.throughput == pytest.approx(value, rel=1e-6), reading
