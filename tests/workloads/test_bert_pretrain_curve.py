"""The reference learns from real text as a plain BERT in float64 does, and as transformers' does."""

from __future__ import annotations

import importlib
import sys
from statistics import fmean

import pytest

from tests.kit.needs import require
from tests.kit.paths import REPOSITORY

torch = pytest.importorskip("torch", reason="the reference workload needs PyTorch")
bert_data = pytest.importorskip("hpcbert.workloads.bert_data")
bert_optimizers = pytest.importorskip("hpcbert.workloads.bert_optimizers")
bert_ranks = pytest.importorskip("hpcbert.workloads.bert_ranks")
bert_settings = pytest.importorskip("hpcbert.workloads.bert_settings")
workload = pytest.importorskip("hpcbert.workloads.bert_pretrain")
plain = pytest.importorskip("tests.workloads.plain")

pytestmark = pytest.mark.torch

STEPS, VOCABULARY = 20, 1000
RATES = {"adamw": "4e-3", "lamb": "3e-2"}


@pytest.fixture(scope="module")
def curve():
    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    try:
        yield importlib.import_module("curve")
    finally:
        sys.path.remove(str(REPOSITORY / "benchmarks"))


@pytest.fixture(scope="module")
def real_text(curve, tmp_path_factory):
    return curve.make_data(tmp_path_factory.mktemp("text"), 32, 4 * STEPS, VOCABULARY)


@pytest.fixture
def words(real_text):
    def make(optimizer, precision):
        shape = ["--device=cpu", "--threads=1", "--model=tiny", "--hidden=32", "--batch-size=4"]
        steps = [f"--iters={STEPS}", "--skip=0", "--dropout=0", f"--optimizer={optimizer}"]
        data = [f"--data={real_text}", f"--vocab={VOCABULARY}", "--sequence-length=32"]
        words = [*shape, *steps, *data, f"--lr={RATES[optimizer]}", f"--precision={precision}"]
        # As the program does: on a busy machine two threads wait for each other.
        torch.set_num_threads(1)
        return words

    return make


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
@pytest.mark.parametrize(("precision", "limit"), [("fp32", 1e-4), ("bf16", 0.04)])
def test_real_text_is_learnt_as_by_a_plain_bert_in_float64(words, optimizer, precision, limit):
    settings, ranks = bert_settings.parse_settings(words(optimizer, precision)), bert_ranks.Ranks()
    device = torch.device("cpu")
    first, second = (bert_data.open_source(settings, ranks, device) for _ in range(2))
    trainer = workload.Trainer(settings, ranks, device, first)
    rates = [bert_optimizers.learning_rate(step, settings) for step in range(STEPS)]
    # All samples of the text are full.
    mask = torch.ones(settings.batch_size, settings.sequence_length, dtype=torch.bool)
    batches = (micro.batch._replace(attention_mask=mask) for micro in second)
    expected = plain.curve(trainer.module.state_dict(), batches, settings, rates)
    losses = [float(trainer.step().sum()) for _ in range(STEPS)]
    # Batches differ by as much as is learnt, and each Python brings another text.
    assert fmean(expected[:5]) - fmean(expected[-5:]) > 0.2
    assert losses == pytest.approx(expected, abs=limit)


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
@pytest.mark.parametrize(("precision", "limit"), [("fp32", 1e-4), ("bf16", 0.02)])
def test_real_text_is_learnt_as_by_transformers(words, curve, optimizer, precision, limit):
    require("transformers")
    ours, theirs = curve.curves(words(optimizer, precision))
    assert ours == pytest.approx(theirs, abs=limit)
