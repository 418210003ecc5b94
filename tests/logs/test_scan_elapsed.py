"""Clocks that count from the program's start, and records that count samples or tokens."""

from __future__ import annotations

import pytest

from hpcbert.logs.setting import Setting
from tests.kit.cases import read_constant
from tests.kit.logs import Reader, codes

_TOKENS = read_constant(__file__, "_TOKENS")
_SAMPLES = _TOKENS.replace('counts = "tokens"', 'counts = "samples"')
_HOURS = _TOKENS.replace('"elapsed"\n', '"elapsed-hours"\n', 1)
# 8 samples of 128 tokens in a step of half a second.
_SETTING = Setting(
    nodes=1, gpus_per_node=1, gpus=1, batch_size_per_device=8, sequence_length=128
)  # fmt: skip
_TWO = _SETTING._replace(gpus=2, gpus_per_node=2, batch_size_per_device=4, accumulation=2)


def render_log(
    form: str = "{:.4f}", *, step: int = 1024, begin: float = 0.123, unit: float = 1.0
) -> str:
    """Return a log with a record every 20 of 120 steps."""
    return "".join(
        f"tokens={place * step} after {form.format((begin + place / 2) / unit)}\n"
        for place in range(20, 121, 20)
    )


@pytest.mark.parametrize(
    ("toml", "log", "setting", "throughput"),
    [
        pytest.param(_TOKENS, render_log(), _SETTING, 16, id="tokens"),
        pytest.param(_SAMPLES, render_log(step=8), _SETTING, 16, id="samples"),
        pytest.param(_HOURS, render_log("{:.7f}", unit=3600), _SETTING, 16, id="hours"),
        pytest.param(_TOKENS, render_log(step=2048), _TWO, 32, id="accumulation"),
        pytest.param(_TOKENS, render_log("{:.4g}"), _SETTING, 16, id="four digits"),
        pytest.param(_TOKENS, render_log("{:.6g}", begin=9900.123), _SETTING, 16, id="six digits"),
    ],
)
def test_the_window_is_a_difference_of_two_times(
    toml: str, log: str, setting: Setting, throughput: float, read: Reader
) -> None:
    reading = read(toml, log, "elapsed", setting)
    assert reading.throughput == pytest.approx(throughput, rel=1e-3), reading
    assert reading.measured.end is None  # seconds since the start are no date


@pytest.mark.parametrize(
    ("log", "setting", "word"),
    [
        pytest.param(render_log("{:.4g}", begin=9960), _SETTING, "coarse", id="rounded"),
        pytest.param(render_log("{:.0f}", begin=50), _SETTING, "coarse", id="whole seconds"),
        pytest.param(render_log(step=1000), _SETTING, "whole steps", id="without padding"),
        pytest.param(render_log(step=2048), _SETTING, "no record", id="another batch"),
    ],
)
def test_a_clock_or_a_count_that_does_not_fit_is_refused(
    log: str, setting: Setting, word: str, read: Reader
) -> None:
    reading = read(_TOKENS, log, "elapsed", setting._replace(iters=120, skip=20))
    assert reading.throughput is None
    assert word in str(reading.reasons), reading


@pytest.mark.parametrize("name", ["sequence_length", "batch_size_per_device"])
def test_tokens_of_unknown_steps_ask_for_what_is_missing(name: str, read: Reader) -> None:
    reading = read(_TOKENS, render_log(), "elapsed", _SETTING._replace(**{name: None}))  # type: ignore[arg-type]
    assert (reading.throughput, reading.missing, codes(reading)) == (None, name, [])


_LINES = read_constant(__file__, "_LINES")


def test_a_record_of_many_lines_ends_where_the_next_one_begins(read: Reader) -> None:
    log = "".join(f"[batch={n}]:\n loss: 9.5\n rate: {n}\n" for n in range(1, 121))
    assert read(_LINES, log, "rate", _SETTING).throughput == pytest.approx(70.5)
    torn = log.replace(" rate: 50\n", "")
    assert codes(read(_LINES, torn, "rate", _SETTING)) == ["window"]
