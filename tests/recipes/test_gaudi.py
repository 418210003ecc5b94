"""Logs of Habana's program for Gaudi, which prints NVIDIA's lines with other names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kit.recipes import Reader, sample, setting


@pytest.mark.parametrize("rule", ["clock", "dlperf-time", "footer"])
def test_a_log_of_gaudi_gives_the_number_of_the_same_run(rule: str, tmp_path: Path) -> None:
    """The lines as perform_training logs them: the rate of one device comes last."""
    data = sample("ngc-pytorch")
    gaudi = data.replace(b"batch_size_per_gpu", b"batch_size_per_pu")
    extra = rb"\g<0>average_training_time_step : 0.277  average_perf_per_step : 115.4 "
    gaudi = re.sub(rb"learning_rate : \S+ (?=\n)", extra, gaudi)
    assert gaudi.count(b"average_perf_per_step") > 100
    readings = [
        Reader("ngc-pytorch", tmp_path).read(log, rule, setting("ngc-pytorch"))
        for log in (data, gaudi)
    ]
    assert readings[0].throughput is not None
    assert readings[1].throughput == readings[0].throughput
    packed = b'DLL - PARAMETER Config : ["Namespace(enable_packed_data_mode=True, x=1)"]\n' + gaudi
    refused = Reader("ngc-pytorch", tmp_path).read(packed, rule, setting("ngc-pytorch"))
    assert (refused.throughput, refused.reasons[0].code) == (None, "format")
    assert dict(readings[1].stated_facts)["batch_size_per_device"] == 32
