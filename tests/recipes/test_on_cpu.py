"""What upstream programs print where newer releases of them run on a CPU."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from hpcbert.logs.scan import Reading
from hpcbert.logs.setting import Setting
from tests.kit.recipes import Reader

_MEMORY = "MemAllocated=0.26GB, MaxMemAllocated=9.02GB"
# The timer's line by release (deepspeed/utils/timer.py at the tag).
_DEEPSPEED = {
    "v0.3.0": "0/{n}, SamplesPerSec={running}",
    "v0.6.0": f"0/{{n}}, SamplesPerSec={{running}}, {_MEMORY}",
    "v0.7.0": f"0/{{n}}, RunningAvgSamplesPerSec={{running}}, CurrSamplesPerSec={{current}}, {_MEMORY}",
    "v0.8.0": f"epoch=0/micro_step={{n}}/global_step={{n}}, RunningAvgSamplesPerSec={{running}}, "
    f"CurrSamplesPerSec={{current}}, {_MEMORY}",
}
_SETTING = Setting(
    nodes=1, gpus_per_node=1, gpus=1, batch_size_per_device=8, accumulation=1, skip=4, iters=12
)


def read_deepspeed(tmp_path: Path, line: str, rule: str) -> Reading:
    """Read steps of 8 samples that take two seconds and two thirds of one by turns."""
    now, log = datetime(2026, 11, 22, 3, 11, 4, tzinfo=timezone.utc), ""
    for n in range(1, 13):
        now += timedelta(seconds=2 if n % 2 else 2 / 3)
        stamp = f"{now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03}"
        text = line.format(n=n, running=6.5, current=4.0 if n % 2 else 12.0)
        log += f"bing_bert_progress: step={n}, loss=10.9, lr=0.0001, sample_count={8 * n}\n"
        if n > 2:  # its first two steps are its warm-up
            log += f"[{stamp}] [INFO] [timer.py:264:stop] {text}\n"
    return Reader("deepspeed", tmp_path).read(log.encode(), rule, _SETTING)


@pytest.mark.parametrize("release", _DEEPSPEED)
def test_deepspeed_of_every_release_has_a_clock(release: str, tmp_path: Path) -> None:
    reading = read_deepspeed(tmp_path, _DEEPSPEED[release], "dlperf-time")
    assert reading.throughput == pytest.approx(6, abs=0.01)
    assert read_deepspeed(tmp_path, _DEEPSPEED[release], "dlperf-rate").throughput == pytest.approx(
        6.5
    )


@pytest.mark.parametrize("release", ["v0.7.0", "v0.8.0"])
def test_the_rates_of_uneven_steps_are_all_samples_over_all_time(
    release: str, tmp_path: Path
) -> None:
    assert read_deepspeed(tmp_path, _DEEPSPEED[release], "current").throughput == pytest.approx(6)


def test_deepspeed_before_0_7_printed_no_current_rate(tmp_path: Path) -> None:
    reading = read_deepspeed(tmp_path, _DEEPSPEED["v0.6.0"], "current")
    assert [reason.code for reason in reading.reasons] == ["rule"]


@pytest.mark.parametrize(
    ("framework", "batch", "window", "rates"),
    [
        ("tf2", 4, (2, 12), {"dlperf-time": 29.54}),
        ("deepspeed", 2, (10, 30), {"dlperf-time": 7.05, "current": 7.15, "dlperf-rate": 7.47}),
    ],
)
def test_a_recorded_run_of_two_ranks_has_a_number(
    framework: str, batch: int, window: tuple[int, int], rates: dict[str, float], tmp_path: Path
) -> None:
    """bert-tiny, as the recipe runs it; paths in the logs are put in a neutral form."""
    log = (Path(__file__).parent / "recorded" / f"{framework}-cpu-1n2g.log").read_bytes()
    setting = Setting(
        nodes=1, gpus_per_node=2, gpus=2, batch_size_per_device=batch, accumulation=1,
        skip=window[0], iters=window[1], model="bert-tiny", precision="fp32",
    )  # fmt: skip
    for rule, rate in rates.items():
        reading = Reader(framework, tmp_path).read(log, rule, setting)
        assert not reading.reasons
        assert reading.throughput == pytest.approx(rate, abs=0.01)
