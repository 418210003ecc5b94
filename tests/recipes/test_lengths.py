"""Samples whose length changes while a program runs: a rate at one length is not one at another."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbert.logs.scan import Reading
from hpcbert.logs.setting import Setting
from tests.kit.logs import Reader, codes
from tests.kit.recipes import grammar
from tests.recipes.test_parallelism import format_arguments, format_config, format_micro_batches

_KNOWN = Setting(nodes=1, gpus_per_node=8, gpus=8, batch_size_per_device=32, precision="fp16")
_HEADER = (
    "using world size: 8, data-parallel-size: 8, tensor-model-parallel size: 1,"
    " pipeline-model-parallel size: 1 \n" + format_arguments(seq_length=512)
)
_BOTH = " curriculum seqlen: {0:5d} | actual seqlen: {0:5d} |"
_OLDER = " curriculum seqlen: {0:5d} |"
_DROPPED = (
    " curriculum seqlen:   512 | random ltd reserved length: {0:5d} | actual seqlen: {0:5d} |"
)


def format_curriculum(form: str, lengths: dict[int, int]) -> str:
    """Return lines of Megatron-DeepSpeed, each with the length of its iteration."""
    return _HEADER + "".join(
        f" iteration {n:8d}/     120 | consumed samples: {n * 256:12d} |"
        " elapsed time per iteration (ms): 250.0 | learning rate: 1.0E-04 |"
        f" global batch size:   256 | lm loss: 7.0E+00 |{form.format(length)}"
        " number of skipped iterations:   0 | number of nan iterations:   0 |"
        " samples per second: 1024.000 | TFLOPs: 20.0 |\n"
        for n, length in lengths.items()
    )


def read_megatron(tmp_path: Path, text: str, **fields: object) -> Reading:
    setting = _KNOWN._replace(**fields)  # type: ignore[arg-type]
    return Reader(tmp_path)(grammar("megatron"), text, "", setting)


@pytest.mark.parametrize("form", [_BOTH, _OLDER, _DROPPED], ids=["both", "older", "dropped"])
def test_lengths_that_change_inside_the_window_refuse_the_run(form: str, tmp_path: Path) -> None:
    rising = {n: 64 + 8 * (n // 20) for n in range(20, 121, 20)}
    reading = read_megatron(tmp_path, format_curriculum(form, rising))
    assert codes(reading) == ["config"]
    assert "samples have 72 to 112 tokens inside the window" in str(reading.reasons[0])
    # The record that the window begins after is of the iterations before its first, too.
    late = {n: 64 if n == 20 else 512 for n in range(20, 121, 20)}
    assert codes(read_megatron(tmp_path, format_curriculum(form, late))) == ["config"]


@pytest.mark.parametrize("form", [_BOTH, _OLDER, _DROPPED], ids=["both", "older", "dropped"])
def test_a_window_of_one_length_is_a_number_at_that_length(form: str, tmp_path: Path) -> None:
    short = read_megatron(tmp_path, format_curriculum(form, dict.fromkeys(range(20, 121, 20), 128)))
    assert short.throughput == pytest.approx(1024)
    assert dict(short.stated_facts)["sequence_length"] == short.setting.sequence_length == 128
    other = read_megatron(tmp_path, format_curriculum(form, dict.fromkeys(range(20, 121, 20), 128)),
                 sequence_length=512)  # fmt: skip
    assert "the log says sequence_length = 128, expected 512" in str(other.reasons[0])


def test_lengths_outside_the_window_change_nothing(tmp_path: Path) -> None:
    text = format_curriculum(_BOTH, {n: min(512, 128 * (n // 20)) for n in range(20, 241, 20)})
    reading = read_megatron(tmp_path, text, skip=80, iters=240)
    assert reading.throughput == pytest.approx(1024)
    assert reading.setting.sequence_length == 512
    earlier = format_curriculum(_BOTH, {n: 512 if n <= 120 else 64 for n in range(20, 241, 20)})
    assert read_megatron(tmp_path, earlier).setting.sequence_length == 512
    assert codes(read_megatron(tmp_path, earlier, iters=240)) == ["config"]


def test_a_rule_of_another_record_minds_the_lengths_too(tmp_path: Path) -> None:
    toml = """
[[log.records]]
name = "step"
contains = "samples/s"
match = 'step (?P<iteration>\\d+) of (?P<sequence_length>\\d+) tokens: (?P<rate>[\\d.]+) samples/s'

[[log.records]]
name = "end"
contains = "total "
match = 'total (?P<rate>[\\d.]+) samples/s'

[[log.rules]]
name = "rate"
kind = "rate"

[[log.rules]]
name = "footer"
kind = "footer"
record = "end"
"""
    for rule in ("rate", "footer"):
        for last, expected in ((128, []), (512, ["config"])):
            lines = [f"step {n} of {last if n > 60 else 128} tokens: 50.0 samples/s\n"
                     for n in range(1, 121)]  # fmt: skip
            text = "".join(lines) + "total 50.0 samples/s\n"
            assert codes(Reader(tmp_path)(toml, text, rule, _KNOWN)) == expected, (rule, last)


@pytest.mark.parametrize("argument", ["curriculum_params", "curriculum_params_legacy"])
def test_deepspeeds_curriculum_is_refused(argument: str, tmp_path: Path) -> None:
    """Its timer's lines have no length; its configuration states the first and the last."""
    words = {"curriculum_type": "seqlen", "min_difficulty": 64, "max_difficulty": 512}
    stated = format_config(train_batch_size=128, train_micro_batch_size_per_gpu=16, world_size=8)
    for rule in ("dlperf-rate", "dlperf-time"):
        text = stated + format_config(**{argument: words}) + format_micro_batches()
        reading = Reader(tmp_path)(grammar("deepspeed"), text, rule, Setting())
        assert "sequence_length = 64, and later 512" in str(reading.reasons[0])
        text = stated + format_config(**{argument: False}) + format_micro_batches()
        reading = Reader(tmp_path)(grammar("deepspeed"), text, rule, Setting())
        assert reading.throughput == pytest.approx(256)


def test_batches_that_grow_are_refused(tmp_path: Path) -> None:
    """Of `--rampup-batch-size`: the global batch is that of its own line."""
    text = format_curriculum(_BOTH, dict.fromkeys(range(20, 121, 20), 512))
    grown = text.replace("size:   256", "size:   128", 3)
    assert "global_batch_size = 128, and later 256" in str(
        read_megatron(tmp_path, grown).reasons[0]
    )
