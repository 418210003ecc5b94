"""Samples of the programs that train on masked words."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit.cases import cases

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")


@pytest.fixture
def words() -> Any:
    from hpcbert.workloads import masked_words

    return masked_words


def write_file(path: Path) -> None:
    """Write a sample of four tokens, two of the three places masked."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file["input_ids"] = [[101, 103, 7, 103]]
        file["input_mask"] = [[1, 1, 1, 1]]
        file["masked_lm_positions"] = [[1, 3, 0]]
        file["masked_lm_ids"] = [[2000, 2001, 0]]


def make_options(**values: Any) -> SimpleNamespace:
    usual = {"data": "", "sequence_length": 128, "predictions": 0, "seed": 42}
    return SimpleNamespace(**{**usual, **values})


def test_every_synthetic_sample_has_its_predictions(words: Any) -> None:
    samples = words.load_samples(make_options(), 20, 30522, 5000)
    masked = samples.rows["labels"] != words.IGNORED
    assert set(masked.sum(1).tolist()) == {20}
    assert bool((samples.rows["input_ids"][masked] == words.MASK).all())
    assert len(samples) == 5000
    assert bool((samples[1025]["labels"] == samples.rows["labels"][1]).all())
    facts = "real_token_share=1.000000 predictions=20 vocab_size=30522"
    assert samples.describe(30522) == f"samples: {facts}\n"


@pytest.mark.parametrize(("count", "share"), [(1, "1.0"), (2, "0.625"), (3, "0.75")])
def test_padding_counts_as_often_as_its_samples_are_taken(
    words: Any, count: int, share: str
) -> None:
    rows = {"attention_mask": torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]])}
    assert f"real_token_share={share}" in words.RepeatedRows(rows, count, 1).describe(30522)


def test_prepared_samples_have_their_labels_in_place(words: Any, tmp_path: Path) -> None:
    write_file(tmp_path / "training.0")
    options = make_options(data=str(tmp_path), sequence_length=4)
    samples = words.load_samples(options, 1, 30522, 2)
    assert samples.rows["labels"].tolist() == [[words.IGNORED, 2000, words.IGNORED, 2001]]
    assert "predictions=3 " in samples.describe(30522)


@cases
def test_samples_that_do_not_fit_are_refused(
    words: Any, tmp_path: Path, changes: dict[str, Any], vocabulary: int, text: str
) -> None:
    write_file(tmp_path / "training.0")
    options = make_options(**{"data": str(tmp_path), "sequence_length": 4, **changes})
    with pytest.raises(SystemExit, match=text):
        words.load_samples(options, 1, vocabulary, 2)
