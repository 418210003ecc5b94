"""Grammars of logs, every mistake in one, and lines of upstream programs with hand-made numbers."""

import pytest

from hpcbert.errors import ConfigError, UsageError
from hpcbert.logs.setting import Setting
from tests.kit.cases import cases, read_constant
from tests.kit.logs import GRAMMARS, TEST_RECIPES, codes, parse

PARTS = read_constant(__file__, "PARTS")
SMALL = PARTS["record"] + PARTS["rule"]


def test_a_rule_goes_by_its_name_and_a_bound_may_be_of_iterations():
    grammar = parse(SMALL + PARTS["rule"].replace('"rate"', '"clock"'))
    assert grammar.rule("clock").name == "clock"
    with pytest.raises(UsageError, match="no rule 'clok'") as caught:
        grammar.rule("clok")
    assert caught.value.hint == "Did you mean clock?"
    until = parse(SMALL + "until = { iteration = 99 }\n").rule().until
    assert (until.by, until.at) == ("iteration", 99)


@cases
def test_mistakes_are_named_with_file_and_key(*, parts, old, new, more, complaint, hint):
    text = "".join(PARTS[name] for name in ("record rule" if parts is None else parts).split())
    if old:
        assert old in text
        text = text.replace(old, new or "")
    with pytest.raises(ConfigError) as caught:
        parse(text + (more or ""))
    assert caught.value.where == "recipe.toml"
    assert complaint in str(caught.value)
    assert (hint or "") in caught.value.hint


def test_an_empty_window_is_said_and_a_mean_can_leave_out_the_lowest_and_the_highest(read):
    for log in ("step 1 2 3\n", ""):
        reading = read(SMALL + "after = 5\nuntil = 5\n", log)
        assert "a window after iteration 5 until 5 is empty" in str(reading.reasons)
    lines = "".join(f"step {n} {rate} {n}.0\n" for n, rate in enumerate((5, 1, 2, 3, 900), start=1))
    window = Setting(skip=0, iters=5)
    trimmed = read(SMALL + "trim = 1\n", lines, setting=window)
    assert trimmed.throughput == pytest.approx((2 + 3 + 5) / 3)
    too_much = read(SMALL + "trim = 3\n", lines, setting=window)
    assert too_much.throughput is None
    assert "too few to trim 3" in str(too_much.reasons)


@cases
def test_skipped_steps_in_the_window_are_flagged(read, kind, at, *, expected):
    """Megatron prints of every interval how many of its steps were skipped."""
    lines, form = [], read_constant(__file__, "SKIPPED")[kind]
    for n in range(1, 141) if kind != "interval" else range(20, 141, 20):
        text = f"step {n} 100.0 samples/s"
        if kind == "interval":
            text += f" skipped: {at.get(str(n), 0)}"
        elif str(n) in at:
            text = form["line"].format(step=n, n=at[str(n)]) + "\n" + text
        lines.append(text)
    reading = read(read_constant(__file__, "STEPS") + form["toml"], "\n".join([*lines, ""]))
    assert reading.throughput == pytest.approx(100, rel=0.01)
    assert ("overflow-steps" in reading.flags) is expected


@cases
def test_a_log_gives_the_number_that_is_worked_out_by_hand(
    read, *, grammar, head, line, places, offset, tail, prefixes, setting, numbers
):
    toml = GRAMMARS / f"{grammar}.toml"
    toml = toml if toml.exists() else TEST_RECIPES / grammar / "recipe.toml"
    settings = Setting()._replace(**(setting or {})).settled({})[0]
    text = "\n".join(
        (line or "").format(
            n=n, v=n + (offset or 0), minute=f"{28 + n // 60:02}", second=f"{n % 60:02}",
            at=1593152763.25 + n / 4,
        )
        for n in range(*(places or (0,)))
    )  # fmt: skip
    lines = f"{head or ''}{text}\n{tail or ''}".splitlines()
    for prefix in prefixes or ("",):
        log = "".join(f"{prefix}{line}\n" for line in lines)
        for rule, number in numbers.items():
            reading = read(toml, log, rule, settings)
            if isinstance(number, str):
                assert reading.throughput is None
                assert str(reading.reasons[0]).startswith(number)
            else:
                assert reading.throughput == pytest.approx(number), reading


def test_mxnet_takes_the_median_over_the_ranks_of_each_step(read):
    mxnet = GRAMMARS / "mxnet.toml"
    two = Setting(nodes=1, gpus_per_node=2, gpus=2, batch_size_per_device=64)
    labelled = read_constant(__file__, "MXNET").splitlines(keepends=True)
    lines = [line[4:] for line in labelled]
    ahead = [line[4:] for line in sorted(labelled)]
    for log in (lines, ahead, labelled):
        expected = (1000 / 320 + 1000 / 325) / 2 * 128
        assert read(mxnet, "".join(log), "", two).throughput == pytest.approx(expected)
    per_rank, summed = (read(mxnet, "".join(lines), rule, two) for rule in ("tokens", "tokens-sum"))
    assert per_rank.throughput == pytest.approx(12.05 * 1000 / 128 * 2)
    assert summed.throughput == pytest.approx(24.1 * 1000 / 128)
    assert codes(read(mxnet, "".join(lines[:4] + lines[5:]), "", two)) == ["window"]
    doubled = read(mxnet, "".join(lines[:5] + lines[4:]), "", two)
    assert "more than 2 ranks" in str(doubled.reasons)
    (reason,) = read(mxnet, "".join(lines[:-1]), "", two).reasons
    assert str(reason) == "incomplete: 1 of 2 ranks came to iteration 4"
    twice = read(mxnet, "".join(labelled[:5] + labelled[4:5] + labelled[4:]), "", two)
    assert "by rank 0 twice" in str(twice.reasons)
