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
def list_rules(name: str) -> list[tuple[Rule, float]]:
    """Return the rules under which the sample gives a number, with the number."""
    path, log = TEMPLATES / name / "sample.log", grammar(name)
    values = [(rule, read(path, log, rule, setting(name)).throughput) for rule in log.rules]
    return [(rule, value) for rule, value in values if value is not None]


def is_bandwidth(recipe: Recipe) -> bool:
    return all(rule.unit == "GB/s" for rule in grammar(recipe.name).rules)


def is_right(reading: Reading, value: float) -> bool:
    """Say whether a reading is the right number or none with a reason."""
    if reading.throughput is None:
        return bool(reading.reasons or reading.missing)
    return math.isclose(reading.throughput, value, rel_tol=_SAME)


def list_wrong_readings(
    name: str, rule: Rule, value: float, logs: Iterable[bytes], tmp_path: Path
) -> list[str]:
    """Return what goes wrong with variants, a few words each."""
    reader = Reader(name, tmp_path)
    messages = []
    for number, data in enumerate(logs):
        reading = reader.read(data, rule.name)
        if not is_right(reading, value):
            messages.append(f"{rule.name}, variant {number}: {reading.throughput}, not {value}")
    return messages


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
    assert bool(list_rules(name)) != is_bandwidth(load(name))


def test_what_the_sample_says_of_its_run_is_checked(name: str, tmp_path: Path) -> None:
    """A run with another batch size, shape or precision than asked for is refused."""
    stated = [fact for fact in grammar(name).facts if fact.contains in sample(name)]
    facts = {group for fact in stated for group in fact.match.groupindex}
    assert facts <= set(FACTS)
    for rule, _ in list_rules(name):
        log_settings = Reader(name, tmp_path).read(sample(name), rule.name).setting
        for fact in facts:
            value = getattr(log_settings, fact)
            if value is None:
                continue
            wrong = "bf16" if isinstance(value, str) else value * 2 + 1
            settings = setting(name)._replace(**{fact: wrong})  # type: ignore[arg-type]
            reading = Reader(name, tmp_path).read(sample(name), rule.name, settings)
            assert reading.throughput is None, f"{fact} = {wrong} is believed, the log says {value}"
            assert reading.reasons[0].code == "config"


def test_a_log_cut_short_gives_the_number_or_a_reason(name: str, tmp_path: Path) -> None:
    data, log = sample(name), grammar(name)
    entries = variants.list_entries(data, log)
    for rule, value in list_rules(name):
        wrong = list_wrong_readings(name, rule, value, variants.cut_log(data, entries), tmp_path)
        assert not wrong, "; ".join(wrong[:5])


def test_a_log_that_ends_inside_the_window_gives_no_number(name: str, tmp_path: Path) -> None:
    data, log, settings = sample(name), grammar(name), setting(name)
    inside = variants.select_window(variants.list_entries(data, log), settings.skip, settings.iters)
    for rule, _ in list_rules(name):
        for entry in inside[:3]:
            short = data[: variants.find_line(data, entry)[1]]
            reading = Reader(name, tmp_path).read(short, rule.name)
            assert reading.throughput is None
            assert reading.reasons


def test_launchers_and_terminals_change_no_number(name: str, tmp_path: Path) -> None:
    data = sample(name)
    entries = variants.list_entries(data, grammar(name))
    for rule, value in list_rules(name):
        for variant, dressed in variants.dress_log(data, entries):
            reading = Reader(name, tmp_path).read(dressed, rule.name)
            assert is_right(reading, value), (
                f"{variant}: {rule.name}: {reading.throughput}, not {value}"
            )


@pytest.mark.parametrize("variant", ["colours", "labels of srun"])
def test_what_every_cluster_does_to_a_log_still_gives_the_number(
    name: str, variant: str, tmp_path: Path
) -> None:
    data = sample(name)
    dressed = dict(variants.dress_log(data, variants.list_entries(data, grammar(name))))[variant]
    for rule, value in list_rules(name):
        reading = Reader(name, tmp_path).read(dressed, rule.name)
        assert reading.throughput == pytest.approx(value, rel=_SAME), f"{rule.name}: {reading}"


_TERMINALS = {
    "one terminal": lambda lines: [line + b"\r" for line in lines],
    "two terminals": lambda lines: [line + b"\r\r" for line in lines],
    "some lines": lambda lines: [line + b"\r" * (n % 3) for n, line in enumerate(lines)],
    "colours": lambda lines: [b"\x1b[32m" + line + b"\r\x1b[0m" for line in lines],
}


@pytest.mark.parametrize("variant", _TERMINALS)
def test_carriage_returns_before_newlines_change_no_number(
    name: str, variant: str, tmp_path: Path
) -> None:
    """A terminal, of `docker run -t`, puts one before each newline."""
    lines = _TERMINALS[variant](sample(name).split(b"\n")[:-1])
    for rule, value in list_rules(name):
        reading = Reader(name, tmp_path).read(b"\n".join([*lines, b""]), rule.name)
        assert reading.throughput == pytest.approx(value, rel=_SAME), f"{rule.name}: {reading}"


def test_carriage_returns_before_newlines_change_nothing_of_labels(
    name: str, tmp_path: Path
) -> None:
    """`srun -l` in a terminal: the parts of a line that it cut end there, too."""
    data = sample(name)
    dressed = dict(variants.dress_log(data, variants.list_entries(data, grammar(name))))
    for variant in ("labels of srun", "labels of mpirun", "records that srun split"):
        for rule, _ in list_rules(name):
            plain = Reader(name, tmp_path).read(dressed[variant], rule.name)
            typed = dressed[variant].replace(b"\n", b"\r\n")
            assert Reader(name, tmp_path).read(typed, rule.name) == plain, f"{variant}: {rule.name}"


def test_a_sample_printed_twice_gives_no_other_number(name: str, tmp_path: Path) -> None:
    for rule, value in list_rules(name):
        for variant, twice in variants.double_log(sample(name)):
            reading = Reader(name, tmp_path).read(twice, rule.name)
            assert is_right(reading, value), (
                f"{variant}: {rule.name}: {reading.throughput}, not {value}"
            )


def test_a_line_of_an_evaluation_changes_no_number(name: str, tmp_path: Path) -> None:
    data, settings = sample(name), setting(name)
    inside = variants.select_window(
        variants.list_entries(data, grammar(name)), settings.skip, settings.iters
    )
    for rule, value in list_rules(name):
        wrong = list_wrong_readings(
            name, rule, value, variants.add_evaluations(data, inside), tmp_path
        )
        assert not wrong, "; ".join(wrong)


def test_a_loss_that_is_not_finite_gives_no_number(name: str, tmp_path: Path) -> None:
    data, settings = sample(name), setting(name)
    entries = variants.list_entries(data, grammar(name))
    inside = variants.select_window(entries, settings.skip, settings.iters)
    logs = list(variants.spoil_loss(data, inside or entries))
    if not logs:
        not_applicable(f"the sample of {name} prints no loss inside the window")
    for rule, _ in list_rules(name):
        for bad in logs:
            reading = Reader(name, tmp_path).read(bad, rule.name)
            assert reading.throughput is None, rule.name
            assert "loss" in {reason.code for reason in reading.reasons}


def test_a_missing_record_gives_the_number_or_a_reason(name: str, tmp_path: Path) -> None:
    data, settings = sample(name), setting(name)
    entries = variants.list_entries(data, grammar(name))
    for rule, value in list_rules(name):
        rule_entries = variants.select_counted(entries, rule, settings.skip, settings.iters)
        wrong = list_wrong_readings(
            name, rule, value, variants.drop_entry(data, rule_entries), tmp_path
        )
        assert not wrong, "; ".join(wrong)


def test_a_line_that_is_there_twice_is_one_step(name: str, tmp_path: Path) -> None:
    """A buffer written twice is no step: the copy has the time of the line before it."""
    data, settings = sample(name), setting(name)
    entries = variants.list_entries(data, grammar(name))
    for rule, value in list_rules(name):
        for entry in variants.select_counted(entries, rule, settings.skip, settings.iters)[:3]:
            start, end = variants.find_line(data, entry)
            for torn in (end, entry.match.end() - 3, (start + end) // 2):
                copy = data[start:torn].rstrip(b"\n") + b"\n"
                reading = Reader(name, tmp_path).read(data[:start] + copy + data[start:], rule.name)
                assert is_right(reading, value), f"{rule.name}: {reading.throughput}, not {value}"
                after = data[:end] + copy + data[end:]
                reading = Reader(name, tmp_path).read(after, rule.name)
                assert is_right(reading, value), f"{rule.name}: {reading.throughput}, not {value}"


def test_an_iteration_that_is_printed_again_counts_as_the_grammar_says(
    name: str, tmp_path: Path
) -> None:
    """A step whose gradients overflow is printed again under its number, and takes its time."""
    data, settings = sample(name), setting(name)
    entries = variants.list_entries(data, grammar(name))
    for rule, value in list_rules(name):
        rule_entries = variants.select_counted(entries, rule, settings.skip, settings.iters)
        if rule.kind == "footer" or not rule_entries:
            continue
        again = variants.repeat_step(data, rule_entries[0])
        reading = Reader(name, tmp_path).read(again, rule.name)
        if rule.record.repeated != "count" or reading.throughput is None:
            assert is_right(reading, value), f"{rule.name}: {reading.throughput}, not {value}"
        elif rule.kind == "clock" and rule.until.by == "iteration":
            steps = settings.iters - settings.skip
            assert reading.throughput == pytest.approx(value * (steps + 1) / steps, rel=_SAME)
        else:
            # One more rate among a hundred, or a window of lines that ends a line earlier.
            assert reading.throughput == pytest.approx(value, rel=0.02)


def test_a_run_over_midnight_gives_the_same_number(name: str, tmp_path: Path) -> None:
    data, settings = sample(name), setting(name)
    entries = variants.list_entries(data, grammar(name))
    inside = variants.select_window(entries, settings.skip, settings.iters)
    for rule, value in list_rules(name):
        rule_entries = [entry for entry in inside if entry.record is rule.record]
        if rule.kind != "clock" or not rule_entries:
            continue
        late = variants.move_to_midnight(data, entries, rule_entries[0])
        if late is None:
            continue
        assert late != data
        reading = Reader(name, tmp_path).read(late, rule.name)
        assert reading.throughput == pytest.approx(value, rel=1e-6), reading
