"""Of any log: the right number, or a reason; never another number."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcbert.logs import scan
from hpcbert.logs.grammar import Grammar
from hpcbert.logs.scan import Reading
from hpcbert.logs.setting import Setting
from tests.kit.recipes import grammar

pytestmark = pytest.mark.slow

ITERS, SKIP = 24, 4
SETTING = Setting(
    nodes=1, gpus_per_node=2, gpus=2, batch_size_per_device=8, skip=SKIP, iters=ITERS, reach=ITERS
)
QUICK = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def render_pytorch() -> list[str]:
    header = '{"batch_size_per_device": 8, "accumulation": 1, "precision": "fp32", "world_size": 2}'
    steps = [
        f"iteration: {n}/{ITERS} loss: {9 - n / 100:.4f} mlm_loss: 8.1 nsp_loss: 0.7 "
        f"samples/s: {113 + n}.25 time: {1763717655.25 + n / 8:.6f}"
        for n in range(1, ITERS + 1)
    ]
    result = '{"samples_per_second": 128.5, "wall": 3, "final_loss": 8.76}'
    return [f"hpcbert-config {header}", "noise", *steps, f"hpcbert-result {result}"]


def render_oneflow() -> list[str]:
    steps = [
        f"step: {n}, total_loss: 9.725, mlm_loss: 8.960, nsp_loss: 0.766, throughput: {113 + n}.982 "
        f"{1598056519.25 + n / 8}"
        for n in range(3, ITERS, 4)
    ]
    return ["batch_size_per_device = 8", "gpu_num_per_node = 2", "num_nodes = 1", *steps]


LOGS = [
    (grammar("pytorch"), "clock", render_pytorch(), 128.0),
    (grammar("pytorch"), "rate", render_pytorch(), 127.75),
    (grammar("pytorch"), "footer", render_pytorch(), 128.5),
    (grammar("oneflow"), "dlperf-time", render_oneflow(), 128.0),
    (grammar("oneflow"), "rate", render_oneflow(), 128.982),
]
IDS = [f"{log[1]}-{n}" for n, log in enumerate(LOGS)]
Log = tuple[Grammar, str, list[str], float]


def read_log(path: Path, log: Log, content: bytes) -> Reading:
    path.write_bytes(content)
    return scan.read(path, log[0], log[0].rule(log[1]), SETTING)


def assert_right_or_refused(result: Reading, expected: float) -> None:
    if result.throughput is None:
        assert result.reasons or result.missing
    else:
        assert result.throughput == pytest.approx(expected)
        assert not result.reasons


@pytest.mark.parametrize("log", LOGS, ids=IDS)
def test_the_whole_log_gives_the_number(tmp_path: Path, log: Log) -> None:
    result = read_log(tmp_path / "log", log, "\n".join([*log[2], ""]).encode())
    assert result.throughput == pytest.approx(log[3])


@pytest.mark.slow
@pytest.mark.parametrize("log", LOGS, ids=IDS)
def test_a_log_cut_at_any_byte_gives_the_number_or_a_reason(tmp_path: Path, log: Log) -> None:
    content = "\n".join([*log[2], ""]).encode()
    for length in range(0, len(content), 7):
        assert_right_or_refused(read_log(tmp_path / "log", log, content[:length]), log[3])


@pytest.mark.parametrize("log", LOGS, ids=IDS)
@QUICK
@given(data=st.data())
def test_lines_lost_at_random_give_the_number_or_a_reason(
    tmp_path: Path, log: Log, data: st.DataObject
) -> None:
    lost = data.draw(st.sets(st.integers(0, len(log[2]) - 1), max_size=4))
    lines = [line for place, line in enumerate(log[2]) if place not in lost]
    result = read_log(tmp_path / "log", log, "\n".join([*lines, ""]).encode())
    assert_right_or_refused(result, log[3])


@pytest.mark.parametrize("log", LOGS, ids=IDS)
@QUICK
@given(data=st.data())
def test_lines_doubled_or_swapped_give_the_number_or_a_reason(
    tmp_path: Path, log: Log, data: st.DataObject
) -> None:
    lines = list(log[2])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(lines) - 1))
        lines.insert(data.draw(st.integers(0, len(lines))), lines[place])
    result = read_log(tmp_path / "log", log, "\n".join([*lines, ""]).encode())
    assert_right_or_refused(result, log[3])


@pytest.mark.parametrize("log", LOGS, ids=IDS)
@QUICK
@given(noise=st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=80)), max_size=6))
def test_noise_between_lines_does_not_matter(
    tmp_path: Path, log: Log, noise: list[tuple[float, bytes]]
) -> None:
    lines = [line.encode() for line in log[2]]
    for where, text in noise:
        if not any(word in text.lower() for word in (b"iteration", b"step", b"hpcbert", b"\0")):
            # After the first line: how a file begins says whether it is compressed.
            lines.insert(max(1, int(where * len(lines))), text)
    result = read_log(tmp_path / "log", log, b"\n".join([*lines, b""]))
    assert result.throughput == pytest.approx(log[3])


@pytest.mark.parametrize("log", LOGS, ids=IDS)
@QUICK
@given(content=st.binary(max_size=3000))
def test_random_bytes_give_a_reason(tmp_path: Path, log: Log, content: bytes) -> None:
    result = read_log(tmp_path / "log", log, content)
    assert result.throughput is None
    assert result.reasons
    scan.read_progress(tmp_path / "log", log[0])


@pytest.mark.parametrize("log", LOGS, ids=IDS)
@QUICK
@given(place=st.floats(0, 1), hole=st.integers(1, 400), overwrite=st.booleans())
def test_a_hole_anywhere_gives_the_number_or_a_reason(
    tmp_path: Path, log: Log, place: float, hole: int, *, overwrite: bool
) -> None:
    content = "\n".join([*log[2], ""]).encode()
    at = int(place * len(content))
    tail = content[at + hole if overwrite else at :]
    assert_right_or_refused(
        read_log(tmp_path / "log", log, content[:at] + bytes(hole) + tail), log[3]
    )
