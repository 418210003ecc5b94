"""A batch that a program states in samples or in tokens: what its log says decides, no constant."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbert.logs.scan import Reading
from hpcbert.logs.setting import Setting
from tests.kit.cases import cases
from tests.kit.logs import Reader, codes
from tests.kit.recipes import grammar, load, printed, setting

# Nodes and GPUs of the sample; its steps/s times the samples of a node is its throughput.
_KNOWN = setting("paddle18")._replace(batch_size_per_device=None)


def format_arguments(batch: int, unit: str, length: int) -> bytes:
    data = printed("paddle18").replace(b"batch_size: 8192", b"batch_size: %d" % batch)
    data = data.replace(b"in_tokens: True", b"in_tokens: " + unit.encode())
    return data.replace(b"max_seq_len: 128", b"max_seq_len: %d" % length)


def read_paddle(tmp_path: Path, data: bytes, rule: str, settings: Setting = _KNOWN) -> Reading:
    return Reader(tmp_path)(grammar("paddle18"), data, rule, settings)


@pytest.mark.parametrize("rule", ["dlperf-rate", "time"])
@cases
def test_samples_of_a_batch_are_what_the_log_says(
    rule: str, batch: int, unit: str, *, length: int, samples: int, tmp_path: Path
) -> None:
    (usual,) = (sample for sample in [load("paddle18").sample] if sample is not None)
    expected = dict(usual.throughput)[rule] * samples / usual.batch_size_per_device
    data = format_arguments(batch, unit, length)
    reading = read_paddle(tmp_path, data, rule)
    assert reading.throughput == pytest.approx(expected, rel=5e-5)
    assert reading.setting.batch_size_per_device == samples
    # The truth is not refused, and a lie is.
    truth = _KNOWN._replace(batch_size_per_device=samples)
    assert read_paddle(tmp_path, data, rule, truth).throughput == reading.throughput
    wrong = read_paddle(tmp_path, data, rule, _KNOWN._replace(batch_size_per_device=4 * samples))
    assert codes(wrong) == ["config"]
    assert f"is not {4 * samples} samples" in str(wrong.reasons[0])


def test_a_campaign_at_another_length_is_refused(tmp_path: Path) -> None:
    settings = setting("paddle18")._replace(sequence_length=128)
    reading = read_paddle(tmp_path, format_arguments(8192, "True", 512), "time", settings)
    assert "sequence_length = 512, expected 128" in str(reading.reasons[0])


def test_without_a_unit_a_batch_is_nothing(tmp_path: Path) -> None:
    data = printed("paddle18").replace(b"in_tokens: True\n", b"")
    assert read_paddle(tmp_path, data, "time").missing == "batch_size_per_device"
