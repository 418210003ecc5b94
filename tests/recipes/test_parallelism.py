"""A model that is split over GPUs: a batch belongs to a replica, and the global batch to all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbert.logs.scan import Reading
from hpcbert.logs.setting import Setting
from tests.kit.cases import cases
from tests.kit.logs import Reader, codes
from tests.kit.recipes import grammar

# The name of an argument, dots, its value.
_ARGUMENT = "  {} {} {}\n"
_USER = Setting(nodes=8, gpus_per_node=8, gpus=64, batch_size_per_device=8)


def format_arguments(**values: object) -> str:
    return "".join(_ARGUMENT.format(name, "." * (48 - len(name)), v) for name, v in values.items())


def format_steps(*, batch: int | None = None) -> str:
    shown = f" global batch size: {batch:5d} |" if batch else ""
    return "".join(
        f" iteration {n:8d}/{120:8d} | elapsed time per iteration (ms): 5350.0 |"
        f" learning rate: 1.000E-04 |{shown} lm loss: 7.0E+00 | loss scale: 32768.0 |"
        " number of skipped iterations:   0 | number of nan iterations:   0 |\n"
        for n in range(20, 121, 20)
    )


def format_micro_batches() -> str:
    """Return lines of DeepSpeed's timer: 128 samples in 0.5 s."""
    return "".join(
        f"[2023-04-18 01:{n // 120:02d}:{n // 2 % 60:02d},{n % 2 * 500:03d}] [INFO]"
        f" [timer.py:199:stop] 0/{n}, SamplesPerSec=256.0\n"
        for n in range(3, 121)
    )


def format_config(**values: object) -> str:
    """Return lines in which DeepSpeed states its configuration."""
    return "".join(
        f"[2023-04-18 01:00:00,000] [INFO] [config.py:1003:print] {line}\n"
        for line in format_arguments(**values).splitlines()
    )


def read_log(tmp_path: Path, recipe: str, text: str, settings: Setting, rule: str = "") -> Reading:
    return Reader(tmp_path)(grammar(recipe), text, rule, settings)


_BEFORE_V2 = "using world size: 64 and model-parallel size: 4 \n"
_V2 = "using world size: 64, data-parallel-size: 8, tensor-model-parallel size: 4, pipeline-model-parallel size: 2 \n"


@cases
def test_the_global_batch_is_that_of_all_replicas(
    header: str, replicas: int, tmp_path: Path
) -> None:
    text = header + "setting number of micro-batches to constant 1\n" + format_steps()
    reading = read_log(tmp_path, "megatron", text, _USER)
    assert reading.throughput == pytest.approx(8 * replicas / 5.35)
    assert reading.setting.gpus == 64
    # Without any word of the user's on GPUs, too.
    alone = read_log(tmp_path, "megatron", text, Setting(batch_size_per_device=8))
    assert alone.throughput == reading.throughput
    assert "gpus" not in alone.unchecked


def test_before_version_2_nothing_accumulates(tmp_path: Path) -> None:
    """128 samples by 64 GPUs of which four compute each: 23.92 was four times as many."""
    setting = _USER._replace(batch_size_per_device=2)
    reading = read_log(tmp_path, "megatron", _BEFORE_V2 + format_steps(), setting)
    assert reading.throughput == pytest.approx(5.98, abs=0.005)


def test_a_stated_global_batch_agrees_with_the_replicas(tmp_path: Path) -> None:
    """8 samples on each of 8 replicas in 2 micro-batches."""
    text = (
        _V2 + format_arguments(micro_batch_size=8, global_batch_size=128) + format_steps(batch=128)
    )
    reading = read_log(tmp_path, "megatron", text, _USER)
    assert reading.throughput == pytest.approx(128 / 5.35)
    assert reading.setting.accumulation == 2
    wrong = read_log(tmp_path, "megatron", _V2 + format_steps(batch=68), _USER)
    assert codes(wrong) == ["config"]
    assert "a global batch of 68 is not 8 samples on 8 replicas of 8 GPUs" in str(wrong.reasons[0])


@pytest.mark.parametrize(
    ("header", "detail"),
    [
        (_V2.replace("data-parallel-size: 8", "data-parallel-size: 16"), "16 replicas of 8 GPUs"),
        (_BEFORE_V2.replace("size: 4", "size: 5"), "replicas of 5 GPUs each are not 64 GPUs"),
        (_V2 + format_arguments(tensor_model_parallel_size=2), "tensor_parallel = 4, and later 2"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(
    header: str, detail: str, tmp_path: Path
) -> None:
    reading = read_log(tmp_path, "megatron", header + format_steps(), _USER)
    assert codes(reading) == ["config"]
    assert detail in str(reading.reasons[0])


@pytest.mark.parametrize("rule", ["dlperf-rate", "dlperf-time"])
def test_deepspeed_counts_replicas_as_its_world(rule: str, tmp_path: Path) -> None:
    """Of 64 GPUs, four to a replica, its configuration says 16."""
    stated = format_config(train_batch_size=128, train_micro_batch_size_per_gpu=8, world_size=16)
    split = "using world size: 64, data-parallel-size: 16, tensor-model-parallel size: 4, pipeline-model-parallel size: 1 \n"
    reading = read_log(
        tmp_path, "deepspeed", split + stated + format_micro_batches(), Setting(), rule
    )
    assert reading.throughput == pytest.approx(256)
    assert (reading.setting.gpus, reading.setting.accumulation) == (64, 1)
    newer = "\t self.dp_world_size=16\n\t self.mp_world_size=4\n"
    reading = read_log(
        tmp_path, "deepspeed", newer + stated + format_micro_batches(), Setting(), rule
    )
    assert reading.throughput == pytest.approx(256)
    assert reading.setting.gpus == 64
    # bing_bert has no other parallelism: there its world is the GPUs.
    reading = read_log(tmp_path, "deepspeed", stated + format_micro_batches(), Setting(), rule)
    assert reading.throughput == pytest.approx(256)
    assert reading.setting.gpus == 16
    wrong = read_log(tmp_path, "deepspeed", stated + format_micro_batches(), _USER, rule)
    assert "16 replicas of 1 GPUs each are not 64 GPUs" in str(wrong.reasons[0])
