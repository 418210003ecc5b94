"""Whether data made by `hpcbert data make` fit a framework, by their data.json.

Other data are not checked: only their program knows what is in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcbert.campaign import store
from hpcbert.config.dataset import Dataset, read_number
from hpcbert.config.recipe import Recipe
from hpcbert.data.names import usual_predictions
from hpcbert.errors import UsageError
from hpcbert.model import OptionValue

_DOCUMENT = "data.json"
# The programs cut and mask these by themselves.
_BEFORE_MASKING = ("paddle-text", "megatron")


def find_misfits(recipe: Recipe, options: Mapping[str, OptionValue], path: str) -> tuple[str, ...]:
    """Return why the data in a directory do not fit a framework, one clause each.

    Args:
        recipe: The framework.
        options: The values of its options.
        path: The directory, or a folder in it.

    Raises:
        UsageError: An option is not a number.
    """
    for place in (Path(path), Path(path).parent):
        if recipe.dataset and (place / _DOCUMENT).is_file():
            return tuple(
                _list_misfits(recipe.dataset, options, _read_data_document(place / _DOCUMENT))
            )
    return ()


def _read_data_document(path: Path) -> Mapping[str, Any]:
    try:
        document = store.read_json(path)
    except UsageError:
        return {}
    return document if isinstance(document, dict) and document.get("vocabulary") else {}


def _list_misfits(
    dataset: Dataset, options: Mapping[str, OptionValue], document: Mapping[str, Any]
) -> Iterator[str]:
    data_format, synthetic_settings = document.get("format"), dataset.synthetic
    if not document:
        return
    if data_format != dataset.format:
        yield f"they are {data_format}, but the program reads {dataset.format}"
    elif data_format not in _BEFORE_MASKING:
        length = read_number(synthetic_settings.sequence_length, options)
        predictions = read_number(synthetic_settings.predictions, options) or usual_predictions(
            length
        )
        for key, unit, expected in (
            ("sequence_length", "tokens in a sample", length),
            ("predictions", "predictions in a sample", predictions),
        ):
            if document.get(key) != expected:
                yield f"they have {document.get(key)} {unit}, but the program is set to {expected}"
    vocabulary = document["vocabulary"]
    size = vocabulary.get("size") if isinstance(vocabulary, dict) else None
    model_size = read_number(synthetic_settings.vocabulary, options)
    if isinstance(size, int) and size > model_size:
        yield f"they have {size} words, but the model has {model_size}"
