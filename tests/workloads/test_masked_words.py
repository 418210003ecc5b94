"""Samples of the programs that train on masked words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")


@pytest.fixture
def words() -> Any:
    from hpcbert.workloads import masked_words

    return masked_words


def write_file(path: Path, **columns: list[list[int]]) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for name, values in columns.items():
            file[name] = values


def test_every_synthetic_sample_has_its_predictions(words: Any) -> None:
    rows = words.make_rows(length=128, predictions=20, vocabulary=30522, seed=42)
    masked = rows["labels"] != words.IGNORED
    assert set(masked.sum(1).tolist()) == {20}
    assert bool((rows["input_ids"][masked] == words.MASK).all())
    assert len(words.RepeatedRows(rows, 5000)) == 5000
    assert bool((words.RepeatedRows(rows, 5000)[1025]["labels"] == rows["labels"][1]).all())


def test_prepared_samples_have_their_labels_in_place(words: Any, tmp_path: Path) -> None:
    write_file(
        tmp_path / "training.0",
        input_ids=[[101, 103, 7, 103]],
        input_mask=[[1, 1, 1, 1]],
        masked_lm_positions=[[1, 3, 0]],
        masked_lm_ids=[[2000, 2001, 0]],
    )
    rows = words.read_rows(str(tmp_path), 4, 30522)
    assert rows["labels"].tolist() == [[words.IGNORED, 2000, words.IGNORED, 2001]]
    for arguments, text in (((8, 30522), "4 tokens, not 8"), ((4, 2001), "above 2000")):
        with pytest.raises(SystemExit, match=text):
            words.read_rows(str(tmp_path), *arguments)
    with pytest.raises(SystemExit, match="no file"):
        words.read_rows(str(tmp_path / "empty"), 4, 30522)
