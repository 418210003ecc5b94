"""Each format is read to its last record by its framework's own reader, which is another's code.

Frameworks need Pythons and gigabytes of their own, so these tests run where somebody names an
interpreter that has one: HPCBERT_PYTHON_MXNET=…/bin/python, and so on. `prepare` makes such ones.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from hpcbert.prepare.data_samples import Samples, StreamSettings, make_synthetic
from tests.kit.cases import read_constant
from tests.kit.cli import run
from tests.kit.needs import lacks
from tests.kit.waiting import CEILING

MASKED = ("input_ids", "masked_lm_ids", "masked_lm_weights")
# For each framework: the format it reads, the script that has it read all of a folder, how many
# files there are, and what it must have found at least. Megatron and PaddlePaddle 1.8 mask by
# themselves; any interpreter with torch or numpy runs their readers, checkouts on PYTHONPATH.
READERS = read_constant(__file__, "READERS")
SHAPES = {"128": (128, 20), "512": (512, 76)}
SAMPLES = 300

VARIABLES = {name: f"HPCBERT_PYTHON_{name.upper().replace('-', '_')}" for name in READERS}
# Tests run without hpcbert's variables, so these are read before them.
INTERPRETERS = {name: os.environ.get(variable, "") for name, variable in VARIABLES.items()}


def find_interpreter(framework: str) -> str:
    if not INTERPRETERS[framework]:
        lacks("extras", "the framework's own reader", f"{VARIABLES[framework]} is not set")
    return INTERPRETERS[framework]


def select_expected(samples: Samples, name: str) -> np.ndarray:
    return np.asarray(samples.lengths if name == "valid_lengths" else getattr(samples, name))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("framework", READERS)
def test_the_framework_reads_every_sample_as_it_was_made(
    framework: str, shape: str, tmp_path: Path
) -> None:
    python = find_interpreter(framework)
    form, script, files, least = READERS[framework]
    length, predictions = SHAPES[shape]
    words = ("--sequence-length", length, "--predictions", predictions)
    data = tmp_path / "data"
    result = run(
        "data", "make", "--format", form, *words, "--samples", SAMPLES, "--files", files, data
    )
    assert result.returncode == 0, result.output
    output = tmp_path / "read.npz"
    argv = [python, Path(__file__).parent / "readers" / script, data / "training"]
    argv += [files, SAMPLES, length, predictions, output]
    process = subprocess.run(
        [str(word) for word in argv], capture_output=True, text=True, check=False, timeout=CEILING
    )
    assert process.returncode == 0, process.stderr
    samples = make_synthetic(
        np.arange(SAMPLES), StreamSettings(length, predictions, samples=SAMPLES)
    )
    with np.load(output) as arrays:
        assert set(least) <= set(arrays.files)
        for name in arrays.files:
            right = select_expected(samples, name).reshape(SAMPLES, -1)
            assert np.array_equal(arrays[name].reshape(SAMPLES, -1), right), name
