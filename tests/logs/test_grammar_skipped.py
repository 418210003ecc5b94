"""Optimizer steps inside the window that gradients' overflow threw away are marked."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbert.errors import ConfigError
from hpcbert.logs import grammar as grammars
from hpcbert.logs.setting import Setting
from tests.kit.logs import Reader

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
