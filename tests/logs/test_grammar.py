from __future__ import annotations

from pathlib import Path

import pytest

from hpcbert.errors import ConfigError, UsageError
from hpcbert.logs import grammar as grammars
from hpcbert.logs.setting import Setting
from tests.kit.cases import cases
from tests.kit.logs import Reader, parse

RECORD = """
[[log.records]]
name = "step"
contains = "step"
match = 'step (?P<iteration>\\d+) (?P<rate>\\S+) (?P<time>\\S+)'
time = "epoch"
"""
RULE = """
[[log.rules]]
name = "rate"
kind = "rate"
"""
FAILURE = """
[[log.failures]]
kind = "device-oom"
contains = 'x'
match = '(?:x)'
source = 'PyTorch'
"""


def test_a_small_grammar_has_the_protocols_window() -> None:
    grammar = parse(RECORD + RULE)
    rule = grammar.rule()
    assert (rule.name, rule.scope, rule.average, rule.record.first) == ("rate", "global", "mean", 1)
    assert (rule.after.resolve(skip=20, iters=120), rule.until.resolve(skip=20, iters=120)) == (
        20,
        120,
    )


def test_windows_count_iterations_or_records() -> None:
    text = RECORD + RULE + 'after = { record = "skip" }\nuntil = { iteration = 99 }\n'
    rule = parse(text).rule()
    assert (rule.after.by, rule.after.at, rule.until.by, rule.until.at) == (
        "record",
        "skip",
        "iteration",
        99,
    )


def test_the_first_rule_is_the_default_and_others_go_by_name() -> None:
    grammar = parse(RECORD + RULE + RULE.replace('"rate"', '"clock"'))
    assert (grammar.rule().name, grammar.rule("clock").name) == ("rate", "clock")
    with pytest.raises(UsageError, match="no rule 'clok'") as caught:
        grammar.rule("clok")
    assert caught.value.hint == "Did you mean clock?"


def test_the_grammar_of_a_reader_has_one_rule_of_its_name() -> None:
    (rule,) = grammars.parse({"grammar": "entry-point:name"}, where="x").rules
    assert (rule.name, rule.kind, rule.scope) == ("name", "custom", "global")


@cases
def test_mistakes_are_named_with_file_and_key(
    parts: str | None,
    old: str | None,
    new: str | None,
    more: str | None,
    *,
    complaint: str,
    hint: str | None,
) -> None:
    texts = {"record": RECORD, "rule": RULE, "failure": FAILURE}
    names = "record rule" if parts is None else parts
    text = "".join(texts[name] for name in names.split())
    if old:
        assert old in text
        text = text.replace(old, new or "")
    with pytest.raises(ConfigError) as caught:
        parse(text + (more or ""))
    assert caught.value.where == "recipe.toml"
    assert complaint in str(caught.value)
    assert (hint or "") in caught.value.hint


def test_an_empty_window_is_said(read: Reader) -> None:
    text = RECORD + RULE + "after = 5\nuntil = 5\n"
    assert "a window after iteration 5 until 5 is empty" in str(read(text, "step 1 2 3\n"))
    assert "is empty" in str(read(text, ""))


def test_a_mean_can_leave_out_the_lowest_and_the_highest(read: Reader) -> None:
    lines = "".join(f"step {n} {rate} {n}.0\n" for n, rate in enumerate((5, 1, 2, 3, 900), start=1))
    window = Setting(skip=0, iters=5)
    trimmed = RECORD + RULE + "trim = 1\n"
    assert read(trimmed, lines, setting=window).throughput == pytest.approx((2 + 3 + 5) / 3)
    too_much = read(RECORD + RULE + "trim = 3\n", lines, setting=window)
    assert too_much.throughput is None
    assert "too few to trim 3" in str(too_much.reasons)
    with pytest.raises(ConfigError, match="changes no median"):
        parse(RECORD + RULE + 'average = "median"\ntrim = 1\n')


# --- Skipped --------------------------------------------------------------------------------------


SETTING = Setting(nodes=1, gpus_per_node=1, batch_size_per_device=4, accumulation=1).settled({})[0]


def make_grammar(skips: list[dict[str, str]], repeated: str = "refuse") -> grammars.Grammar:
    record = {
        "name": "step",
        "contains": "samples/s",
        "match": r"step (?P<iteration>\d+) .*?(?P<rate>[\d.]+) samples/s",
        "repeated": repeated,
    }
    rule = {"name": "rate", "kind": "rate", "record": "step"}
    values = {"records": [record], "rules": [rule], "skipped": skips}
    return grammars.parse(values, where="recipe.toml")


def has_overflow_flag(folder: Path, grammar: grammars.Grammar, lines: list[str]) -> bool:
    reading = Reader(folder)(grammar, "\n".join([*lines, ""]), setting=SETTING)
    assert reading.throughput == pytest.approx(100, rel=0.01)
    return "overflow-steps" in reading.flags


def render_steps(extra: dict[int, str], every: int = 1, last: int = 124) -> list[str]:
    """Return the lines of a run; `extra` stands before the line of its step."""
    lines = []
    for step in range(every, last + 1, every):
        lines += [extra[step]] if step in extra else []
        lines.append(f"step {step} 100.0 samples/s")
    return lines


@pytest.mark.parametrize(
    ("at", "expected"), [(1, False), (20, False), (21, True), (120, True), (121, False)]
)
@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 4", "OVERFLOW! Rank"),
        ("Gradient overflow.  Skipping step, loss scaler 0 reducing", r"Gradient overflow\."),
    ],
    ids=["DeepSpeed", "apex"],
)
def test_a_line_for_each_skipped_step(
    tmp_path: Path, text: str, match: str, at: int, *, expected: bool
) -> None:
    grammar = make_grammar([{"contains": "kipping step", "match": match + ".*Skipping|" + match}])
    assert has_overflow_flag(tmp_path, grammar, render_steps({at: text})) is expected


@pytest.mark.parametrize(
    ("totals", "expected"),
    [
        ({20: 9, 40: 9, 60: 9, 120: 9}, False),
        ({20: 9, 40: 9, 60: 10, 120: 10}, True),
        ({40: 9, 120: 9}, False),
        ({20: 2, 120: 2, 121: 5}, False),
    ],
    ids=["before the window", "inside", "nobody knows when", "after it"],
)
def test_a_total_that_grows(tmp_path: Path, totals: dict[int, int], *, expected: bool) -> None:
    grammar = make_grammar([{"contains": "skipped=", "match": r"skipped=(?P<total>\d+)"}])
    lines = render_steps({step: f"[Rank 0] step={step}, skipped={n}" for step, n in totals.items()})
    assert has_overflow_flag(tmp_path, grammar, lines) is expected


@pytest.mark.parametrize(("at", "expected"), [(20, False), (40, True), (120, True), (140, False)])
def test_a_count_in_the_record_itself(tmp_path: Path, at: int, *, expected: bool) -> None:
    """Megatron prints of every interval how many of its steps were skipped."""
    grammar = make_grammar([{"contains": "skipped:", "match": r"skipped: +(?P<count>\d+)"}])
    lines = [
        f"{line} skipped: {3 if line.startswith(f'step {at} ') else 0}"
        for line in render_steps({}, every=20, last=140)
    ]
    assert has_overflow_flag(tmp_path, grammar, lines) is expected


@pytest.mark.parametrize(("at", "expected"), [(10, False), (50, True)])
def test_an_iteration_that_is_printed_again(tmp_path: Path, at: int, *, expected: bool) -> None:
    grammar = make_grammar([], repeated="count")
    lines = render_steps({at + 1: f"step {at} again 100.5 samples/s"})
    assert has_overflow_flag(tmp_path, grammar, lines) is expected


def test_other_groups_are_explained() -> None:
    with pytest.raises(ConfigError, match="'steps', which is neither `count` nor `total`"):
        make_grammar([{"contains": "x", "match": r"(?P<steps>\d+)"}])
