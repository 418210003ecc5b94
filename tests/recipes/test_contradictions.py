"""What is wrong in a log, or told wrong of it, is refused or changes no number: every recipe, every rule."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hpcbert.logs.grammar import Rule
from hpcbert.logs.setting import Setting
from tests.kit.cases import read_constant
from tests.kit.needs import not_applicable
from tests.kit.recipes import Reader, grammar, sample, setting
from tests.recipes import variants
from tests.recipes.test_samples import is_right, list_rules
from tests.recipes.variants import LogEntry

HOUR = 3600
# A number may move by what one step of a hundred does to it, and by no more.
_SMALL = 0.02
NUMBERS = ("rate", "seconds", "iteration")
BROKEN = (b"%sK", b"%s K", b"%sM", b"1,%s", b"%s.4", b"%sabc", b"%se3", b"-%s", b"%s%%")


def replace_field(data: bytes, entry: LogEntry, name: str, text: bytes) -> bytes:
    start, end = entry.match.span(name)
    return data[:start] + text + data[end:]


@cache
def list_window_entries(name: str) -> list[LogEntry]:
    settings = setting(name)
    return variants.select_window(
        variants.list_entries(sample(name), grammar(name)), settings.skip, settings.iters
    )


def is_near(value: float | None, expected: float) -> bool:
    return value is None or abs(value / expected - 1) < _SMALL


def list_field_entries(name: str, rule: Rule, field: str) -> list[LogEntry]:
    """Return the records inside the window from which a rule reads a field."""
    return [
        entry
        for entry in list_window_entries(name)
        if entry.record is rule.record and entry.match.groupdict().get(field)
    ]


@pytest.mark.parametrize("by", [HOUR, -HOUR, 40 * HOUR])
def test_a_clock_that_jumps_gives_the_number_or_a_reason(
    name: str, by: int, tmp_path: Path
) -> None:
    data = sample(name)
    entries = variants.list_entries(data, grammar(name))
    stamped = [entry for entry in list_window_entries(name) if entry.match.groupdict().get("time")]
    if not stamped:
        not_applicable(f"the lines of {name} have no time")
    jumped = variants.delay_stamps(data, entries, stamped[0], by)
    for rule, value in list_rules(name):
        reading = Reader(name, tmp_path).read(jumped, rule.name)
        assert is_right(reading, value), f"{rule.name}: {reading.throughput}, not {value}"


@pytest.mark.parametrize("factor", [0.01, 100])
def test_one_number_out_of_proportion_gives_the_number_or_a_reason(
    name: str, factor: float, tmp_path: Path
) -> None:
    data = sample(name)
    for rule, value in list_rules(name):
        for entry in list_field_entries(name, rule, rule.field)[:3]:
            if rule.field == "time" or rule.kind == "footer":
                continue
            text = b"%.6f" % (float(entry.match[rule.field]) * factor)
            reading = Reader(name, tmp_path).read(
                replace_field(data, entry, rule.field, text), rule.name
            )
            robust = rule.average == "median"
            ok = is_near(reading.throughput, value) if robust else is_right(reading, value)
            assert ok, f"{rule.name}: {reading.throughput}, not {value}"


def test_a_window_that_is_nearly_gone_gives_no_number(name: str, tmp_path: Path) -> None:
    data, settings = sample(name), setting(name)
    entries = variants.list_entries(data, grammar(name))
    lost = [entry for entry in list_window_entries(name) if entry.record.name != "evaluation"]
    if not lost:
        not_applicable(f"the sample of {name} prints no iterations inside the window")
    remaining = data
    for start in sorted({variants.find_line(data, entry)[0] for entry in lost}, reverse=True):
        remaining = remaining[:start] + remaining[remaining.find(b"\n", start) + 1 :]
    assert any(variants.count_iterations(entry) == settings.iters for entry in entries)
    for rule, _ in list_rules(name):
        reading = Reader(name, tmp_path).read(remaining, rule.name)
        assert reading.throughput is None, rule.name
        assert {reason.code for reason in reading.reasons} <= {"window", "incomplete"}


@pytest.mark.parametrize("field", ["gpus_per_node", "nodes", "batch_size_per_device"])
@pytest.mark.parametrize("factor", [2, 8])
def test_a_wrong_setting_is_refused_wherever_the_log_knows_better(
    name: str, field: str, factor: int, tmp_path: Path
) -> None:
    """By a fact, or because a printed rate and the clock then differ by the factor."""
    settings = setting(name)
    if not list_rules(name):
        not_applicable(f"{name} has no throughput")
    wrong = settings._replace(
        gpus=None, global_batch_size=None, **{field: getattr(settings, field) * factor}
    ).settled({})[0]
    for rule, value in list_rules(name):
        reading = Reader(name, tmp_path).read(sample(name), rule.name, wrong)
        kinds = {other.is_printed for other, _ in list_rules(name)}
        facts = {fact for stated in grammar(name).facts for fact in stated.match.groupindex}
        if len(kinds) == 2 or field in facts:
            assert reading.throughput is None, f"{rule.name}: {reading.throughput}, not {value}"
            assert {reason.code for reason in reading.reasons} <= {
                "config",
                "contradiction",
                "window",
            }


# What a request or a path says of a run, each with another value than any sample's.
LABELS: dict[str, int | str] = read_constant(__file__, "LABELS")
# What each job's own first line states, whatever its program prints.
STARTED = {"nodes", "gpus", "batch_size_per_device", "accumulation", "precision", "model"}


def test_a_log_states_what_its_ranks_were_started_with(name: str, tmp_path: Path) -> None:
    if not list_rules(name):
        not_applicable(f"{name} has no throughput")
    settings = setting(name)
    log_facts = dict(Reader(name, tmp_path).read(sample(name), settings=Setting()).stated_facts)
    assert set(log_facts) >= STARTED
    for field in STARTED & {field for field, value in settings._asdict().items() if value}:
        assert log_facts[field] == getattr(settings, field)


@pytest.mark.parametrize("label", LABELS)
def test_a_label_that_the_log_contradicts_refuses_it(name: str, label: str, tmp_path: Path) -> None:
    """By any rule, with a reason that names both values; a half and a double are other values."""
    settings = setting(name)
    for rule, _ in list_rules(name):
        log_settings = Reader(name, tmp_path).read(sample(name), rule.name).setting
        value = getattr(log_settings, label)
        wrong_values = [LABELS[label], *([2 * value, value // 2] if isinstance(value, int) else [])]
        for other in filter(None, wrong_values if value else ()):
            shape = label in ("nodes", "gpus_per_node")
            values: dict[str, Any] = {**({"gpus": None} if shape else {}), label: other}
            wrong = settings._replace(**values).settled({})[0]
            reading = Reader(name, tmp_path).read(sample(name), rule.name, wrong)
            assert reading.throughput is None, f"{rule.name}: {label} = {other}, not {value}"
            detail = "; ".join(map(str, reading.reasons))
            if {reason.code for reason in reading.reasons} == {"window"}:
                continue  # More or fewer ranks print than were expected.
            assert {reason.code for reason in reading.reasons} == {"config"}, detail
            shown = {str(other), str(wrong.gpus) if label == "gpus_per_node" else ""}
            assert shown & {*re.findall(r"[\w.-]+", detail)}, detail


def test_the_first_line_of_a_job_alone_refuses_a_wrong_label(name: str, tmp_path: Path) -> None:
    """Of programs that print none of it, labels are right or refused all the same."""
    if not list_rules(name):
        not_applicable(f"{name} has no throughput")
    line, _, remaining = sample(name).partition(b"\n")
    assert line.startswith(b"hpcbert: ranks start with ")
    for field in sorted(STARTED - {"model"}):
        value = re.search(rb" %s=(\w+)" % field.encode(), line)
        assert value is not None
        if value[1] == b"fp8":  # computed inside a run in 16 bits: both words are right
            continue
        other = b"bf16" if field == "precision" else b"%d" % (2 * int(value[1]))
        moved = line.replace(value[0], b" %s=%s" % (field.encode(), other)) + b"\n" + remaining
        reading = Reader(name, tmp_path).read(moved)
        assert reading.throughput is None, field
        assert other.decode() in str(reading.reasons[0])


def break_numbers(name: str) -> Iterator[tuple[str, bytes, bytes]]:
    data = sample(name)
    some = list_window_entries(name)[:2] or variants.list_entries(data, grammar(name))[:2]
    for entry in some:
        for field in NUMBERS:
            text = entry.match.groupdict().get(field)
            if text:
                for form in BROKEN:
                    wrong = form.replace(b"%s", text).replace(b"%%", b"%")
                    yield field, wrong, replace_field(data, entry, field, wrong)


def test_a_number_is_read_whole_or_not_at_all(name: str, tmp_path: Path) -> None:
    broken = list(break_numbers(name))
    for rule, value in list_rules(name):
        for field, wrong, data in broken:
            reading = Reader(name, tmp_path).read(data, rule.name)
            understood = wrong.endswith(b"e3") and is_near(reading.throughput, value)
            right = is_right(reading, value) or understood
            assert right, f"{rule.name}: {field} {wrong!r}: {reading.throughput}"


def test_a_closing_line_that_disagrees_is_a_contradiction(name: str, tmp_path: Path) -> None:
    data = sample(name)
    closing = [rule for rule, _ in list_rules(name) if rule.kind == "footer" and rule.cross_check]
    steps = [rule for rule, _ in list_rules(name) if rule.kind != "footer"]
    if not closing or not steps:
        not_applicable(f"{name} has no closing line to hold against its steps")
    for footer in closing:
        match = footer.record.match.search(data)
        assert match is not None
        text = b"%.4f" % (float(match[footer.field]) * 3)
        wrong = replace_field(data, LogEntry(footer.record, match), footer.field, text)
        for rule in (*steps, footer):
            reading = Reader(name, tmp_path).read(wrong, rule.name)
            assert {reason.code for reason in reading.reasons} == {"contradiction"}, rule.name
            message = str(reading.reasons[0])
            assert footer.name in message
            assert len(re.findall(r"[\d.]+ samples/s|and \S+ [\d.]+", message)) >= 2


def test_the_rules_of_a_sample_do_not_contradict_each_other(name: str, tmp_path: Path) -> None:
    for rule, _ in list_rules(name):
        reading = Reader(name, tmp_path).read(sample(name), rule.name)
        assert not reading.reasons
        assert "short-window" not in reading.flags


@pytest.mark.parametrize(
    ("factor", "agrees"), [(1.0, True), (1.4, True), (1 / 1.4, False), (0.8, False)]
)
@pytest.mark.parametrize("rule", ["dlperf-rate", "dlperf-time"])
def test_deepspeed_s_rate_which_leaves_loading_out_is_never_below_its_clock(
    rule: str, factor: float, *, agrees: bool, tmp_path: Path
) -> None:
    """A clock 44 % above the rate gave 7,063.68 samples/s where 4,913.86 were right."""
    data = re.sub(
        rb"SamplesPerSec=([\d.]+)",
        lambda match: b"SamplesPerSec=%.6f" % (float(match[1]) * factor),
        sample("deepspeed"),
    )
    reading = Reader("deepspeed", tmp_path).read(data, rule)
    assert [reason.code for reason in reading.reasons] == ([] if agrees else ["contradiction"])


def test_every_wide_tolerance_has_its_side(name: str) -> None:
    for rule in grammar(name).rules:
        assert rule.tolerance <= grammar(name).tolerance or rule.side != "both", rule.name
