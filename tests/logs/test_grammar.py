from __future__ import annotations

import pytest

from hpcbert.errors import ConfigError, UsageError
from hpcbert.logs import grammar as grammars
from hpcbert.logs.setting import Setting
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


@pytest.mark.parametrize(
    ("text", "complaint", "hint"),
    [
        ("", "must hold at least one record", ""),
        (RECORD, "must hold at least one rule", ""),
        (RECORD + RULE + "scpoe = 'global'", "log.rules[1].scpoe is not known", "scope"),
        (RECORD + RULE + "average = 'meen'", "must be one of mean, median", "mean"),
        (RECORD + RULE + "which = 'last'", "which is not known", ""),
        (RECORD + RULE + "factor = 0", "must be positive", ""),
        (RECORD + RULE + "after = 'warm'", "must be a whole number, skip, iters", ""),
        (RECORD + RULE + "after = { line = 3 }", "log.rules[1].after.line is not known", ""),
        (RECORD + RULE + "after = -1", "must be at least 0", ""),
        (RECORD + RULE + "field = 'seconds'", "has no group 'seconds'", ""),
        (RECORD + RULE + "record = 'stop'", "must be one of step", "step"),
        (RECORD + RULE + RULE, "has two named 'rate'", ""),
        (RECORD + RECORD + RULE, "has two named 'step'", ""),
        (RECORD.replace("contains = ", "contained = ") + RULE, "contains is missing", ""),
        (RECORD.replace('"step"\nmatch', '""\nmatch') + RULE, "must be a text within", ""),
        (RECORD.replace("match = '", "match = '(") + RULE, "is not a regular expression", ""),
        (RECORD.replace("<iteration>", "<itertion>") + RULE, "no group 'iteration'", "itertion"),
        (RECORD.replace("<iteration>", "<iteration>\\d)(?P<lss>") + RULE, "group 'lss'", "loss"),
        (RECORD.replace("<iteration>", "<loss>") + RULE, "no group 'iteration'", ""),
        (RECORD.replace('time = "epoch"', "") + RULE, "must say the form of the `time`", ""),
        (RECORD.replace('"epoch"', '"epcoh"') + RULE, "must be one of", "epoch"),
        (RECORD + 'ranks = "gpu"\nlines = 2\n' + RULE, "can't be joined", ""),
        (RECORD + 'ranks = "gpu"\n' + RULE + "after = { record = 3 }", "several ranks", ""),
        (RECORD + RULE + 'scope = "per-gpu"\nover_ranks = "sum"', "can only sum", ""),
        (RECORD + RULE.replace('"rate"\n', '"speed"\n', 2), "kind must be one of", ""),
        ('[log]\ngrammar = "module"\n', "must read entry-point:NAME", "hpcbert.grammars"),
        ('[log]\ngrammar = "module:function"\n', "must read entry-point:NAME", ""),
        ('[log]\ngrammar = "entry-point:"\n', "must read entry-point:NAME", ""),
        ('[log]\ngrammar = "entry-point:b"\nrehearsal = "x"\n', "rehearsal is not known", ""),
        (RECORD + RULE + "[[log.facts]]\ncontains = 'x'\nmatch = 'x'", "needs a named group", ""),
        (
            RECORD + RULE + "[[log.facts]]\ncontains = 'x'\nmatch = '(?P<nods>.)'",
            "group 'nods', which is not a fact",
            "nodes",
        ),
        (RECORD + RULE + FAILURE.replace("device-oom", "oom"), "must be one of", ""),
        (RECORD + RULE + FAILURE.replace("'x'", "''"), "must be a text within one line", ""),
        (RECORD + RULE + FAILURE.replace("'PyTorch'", "' '"), "must say the project", ""),
        (RECORD + RULE + FAILURE.replace("source", "sources"), "source is missing", ""),
        (RECORD + RULE + FAILURE.replace("'(?:x)'", "'('"), "is not a regular expression", ""),
    ],
)
def test_mistakes_are_named_with_file_and_key(text: str, complaint: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert caught.value.where == "recipe.toml"
    assert complaint in str(caught.value)
    assert hint in caught.value.hint


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
