"""Samples of the programs that train on masked words."""

from types import SimpleNamespace

import h5py
import pytest
import torch

from hpcbert.workloads import masked_words
from tests.kit.cases import cases


def load(folder, count, vocabulary=30522, usual=1, **options):
    """Load samples, by default from a file with one of four tokens, two of the three places masked."""
    with h5py.File(folder / "training.0", "w") as file:
        file["input_ids"] = [[101, 103, 7, 103]]
        file["input_mask"] = [[1, 1, 1, 1]]
        file["masked_lm_positions"] = [[1, 3, 0]]
        file["masked_lm_ids"] = [[2000, 2001, 0]]
    words = {"data": str(folder), "sequence_length": 4, "predictions": 0, "seed": 42, **options}
    return masked_words.load_samples(SimpleNamespace(**words), usual, vocabulary, count)


def test_samples_have_their_predictions_and_padding_counts_as_often_as_it_is_taken(tmp_path):
    samples = load(tmp_path, 5000, usual=20, data="", sequence_length=128)
    masked = samples.rows["labels"] != masked_words.IGNORED
    assert set(masked.sum(1).tolist()) == {20}
    assert bool((samples.rows["input_ids"][masked] == masked_words.MASK).all())
    assert len(samples) == 5000
    assert bool((samples[1025]["labels"] == samples.rows["labels"][1]).all())
    facts = "real_token_share=1.000000 predictions=20 vocab_size=30522"
    assert samples.describe(30522) == f"samples: {facts}\n"
    prepared, ignored = load(tmp_path, 2), masked_words.IGNORED
    assert prepared.rows["labels"].tolist() == [[ignored, 2000, ignored, 2001]]
    assert "predictions=3 " in prepared.describe(30522)
    rows = {"attention_mask": torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]])}
    for count, share in ((1, "1.0"), (2, "0.625"), (3, "0.75")):
        text = masked_words.RepeatedRows(rows, count, 1).describe(30522)
        assert f"real_token_share={share}" in text


@cases
def test_samples_that_do_not_fit_are_refused(tmp_path, changes, vocabulary, text):
    with pytest.raises(SystemExit, match=text):
        load(tmp_path, 2, vocabulary, **changes)
