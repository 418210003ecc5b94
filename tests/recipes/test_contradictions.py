"""What a log is told wrong of is refused: by every recipe, and every rule."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.kit.cases import read_constant
from tests.kit.needs import not_applicable
from tests.kit.recipes import Reader, sample, setting
from tests.recipes.test_samples import list_rules
from tests.recipes.variants import LogEntry, take

# What a request or a path says of a run, each with another value than any sample's.
LABELS: dict[str, int | str] = read_constant(__file__, "LABELS")


def test_a_label_that_the_log_contradicts_refuses_it(name: str, tmp_path: Path) -> None:
    """By any rule, with a reason that names both values; a half and a double are other values."""
    settings, read = setting(name), Reader(name, tmp_path).read
    for rule, _ in list_rules(name):
        stated = read(sample(name), rule.name).setting
        for label, unlike in LABELS.items():
            value = getattr(stated, label)
            others = [unlike, *([2 * value, value // 2] if isinstance(value, int) else [])]
            for other in filter(None, others if value else ()):
                is_shape = label in ("nodes", "gpus_per_node")
                values: dict[str, Any] = {**({"gpus": None} if is_shape else {}), label: other}
                wrong = settings._replace(**values).settled({})[0]
                reading = read(sample(name), rule.name, wrong)
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
    for field in (b"nodes", b"gpus", b"batch_size_per_device", b"accumulation", b"precision"):
        value = re.search(rb" %s=(\w+)" % field, line)
        assert value is not None
        if value[1] == b"fp8":  # computed inside a run in 16 bits: both words are right
            continue
        other = b"bf16" if field == b"precision" else b"%d" % (2 * int(value[1]))
        moved = line.replace(value[0], b" %s=%s" % (field, other)) + b"\n" + remaining
        reading = Reader(name, tmp_path).read(moved)
        assert reading.throughput is None, field
        assert other.decode() in str(reading.reasons[0])


def test_a_closing_line_that_disagrees_is_a_contradiction(name: str, tmp_path: Path) -> None:
    closing = [rule for rule, _ in list_rules(name) if rule.kind == "footer" and rule.cross_check]
    steps = [rule for rule, _ in list_rules(name) if rule.kind != "footer"]
    if not closing or not steps:
        not_applicable(f"{name} has no closing line to hold against its steps")
    for footer in closing:
        match = footer.record.match.search(sample(name))
        assert match is not None
        text = b"%.4f" % (float(match[footer.field]) * 3)
        wrong = take(name).replace(LogEntry(footer.record, match), footer.field, text)
        for rule in (*steps, footer):
            reading = Reader(name, tmp_path).read(wrong, rule.name)
            assert {reason.code for reason in reading.reasons} == {"contradiction"}, rule.name
            message = str(reading.reasons[0])
            assert footer.name in message
            assert len(re.findall(r"[\d.]+ samples/s|and \S+ [\d.]+", message)) >= 2


@pytest.mark.parametrize(
    ("factor", "agrees"), [(1.0, True), (1.4, True), (1 / 1.4, False), (0.8, False)]
)
def test_deepspeed_s_rate_which_leaves_loading_out_is_never_below_its_clock(
    factor: float, *, agrees: bool, tmp_path: Path
) -> None:
    """A clock 44 % above the rate gave 7,063.68 samples/s where 4,913.86 were right."""
    data = re.sub(
        rb"SamplesPerSec=([\d.]+)",
        lambda match: b"SamplesPerSec=%.6f" % (float(match[1]) * factor),
        sample("deepspeed"),
    )
    for rule in ("dlperf-rate", "dlperf-time"):
        reading = Reader("deepspeed", tmp_path).read(data, rule)
        assert [reason.code for reason in reading.reasons] == ([] if agrees else ["contradiction"])
