"""Of any log: the right number, or a reason; never another number."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcbert.logs import scan
from hpcbert.logs.scan import Reading
from hpcbert.logs.setting import Setting
from tests.kit.cases import read_constant
from tests.kit.recipes import grammar

SETTING = Setting(
    nodes=1, gpus_per_node=2, gpus=2, batch_size_per_device=8, skip=4, iters=24, reach=24
)
LOGS = read_constant(__file__, "LOGS")
RATES = read_constant(__file__, "RATES")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize(("name", "rule", "rate"), RATES, ids=str),
]
FEW = settings(
    max_examples=30, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip


def render_lines(name: str) -> list[bytes]:
    head, line, tail, every = (LOGS[name][key] for key in ("head", "line", "tail", "every"))
    steps = [
        line.format(n=n, rate=113 + n, pytorch=1763717655.25 + n / 8, oneflow=1598056519.25 + n / 8)
        for n in range(every - (every > 1), 25, every)
    ]
    return [text.encode() for text in (*head, *steps, *tail)]


def read_log(folder: Path, name: str, rule: str, content: bytes) -> Reading:
    path = folder / "log"
    path.write_bytes(content)
    log_grammar = grammar(name)
    scan.read_progress(path, log_grammar)
    return scan.read(path, log_grammar, log_grammar.rule(rule), SETTING)


def assert_right_or_refused(result: Reading, expected: float) -> None:
    if result.throughput is None:
        assert result.reasons or result.missing
    else:
        assert result.throughput == pytest.approx(expected)
        assert not result.reasons


def test_a_log_cut_at_any_byte(tmp_path, name, rule, rate):
    content = b"\n".join([*render_lines(name), b""])
    assert read_log(tmp_path, name, rule, content).throughput == pytest.approx(rate)
    for length in range(0, len(content), 17):
        assert_right_or_refused(read_log(tmp_path, name, rule, content[:length]), rate)


@FEW
@given(data=st.data(), lose=st.booleans())
def test_lines_lost_doubled_or_swapped(tmp_path, name, rule, rate, data, *, lose):
    lines = render_lines(name)
    place = st.integers(0, len(lines) - 1)
    if lose:
        lost = data.draw(st.sets(place, max_size=4))
        lines = [line for at, line in enumerate(lines) if at not in lost]
    else:
        for at, line in data.draw(st.lists(st.tuples(place, place), min_size=1, max_size=3)):
            lines.insert(at, lines[line])
    content = b"\n".join([*lines, b""])
    assert_right_or_refused(read_log(tmp_path, name, rule, content), rate)


@FEW
@given(noise=st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=80)), max_size=6))
def test_noise_between_lines_does_not_matter(tmp_path, name, rule, rate, noise):
    lines = render_lines(name)
    for where, text in noise:
        if not any(word in text.lower() for word in (b"iteration", b"step", b"hpcbert", b"\0")):
            # After the first line: how a file begins says whether it is compressed.
            lines.insert(max(1, int(where * len(lines))), text)
    reading = read_log(tmp_path, name, rule, b"\n".join([*lines, b""]))
    assert reading.throughput == pytest.approx(rate)


@FEW
@given(
    place=st.floats(0, 1), hole=st.integers(1, 400), overwrite=st.booleans(),
    noise=st.binary(max_size=3000),
)  # fmt: skip
def test_a_hole_anywhere_and_random_bytes(
    tmp_path, name, rule, rate, *, place, hole, noise,
    overwrite,
):  # fmt: skip
    content = b"\n".join([*render_lines(name), b""])
    at = int(place * len(content))
    tail = content[at + hole if overwrite else at :]
    holed = read_log(tmp_path, name, rule, content[:at] + bytes(hole) + tail)
    assert_right_or_refused(holed, rate)
    nothing = read_log(tmp_path, name, rule, noise)
    assert nothing.throughput is None
    assert nothing.reasons
