"""Whether data made by `hpcbert data make` fit a framework, by their data.json.

Other data are not checked: only their program knows what is in them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert.campaign import store
from hpcbert.config.dataset import number_of
from hpcbert.data.names import usual_predictions
from hpcbert.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from hpcbert.config.dataset import Dataset
    from hpcbert.config.recipe import Recipe
    from hpcbert.model import OptionValue

_DOCUMENT = "data.json"
# The programs cut and mask these by themselves.
_BEFORE_MASKING = ("paddle-text", "megatron")


def misfits(recipe: Recipe, options: Mapping[str, OptionValue], path: str) -> tuple[str, ...]:
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
            return tuple(_found(recipe.dataset, options, _read(place / _DOCUMENT)))
    return ()


def _read(path: Path) -> Mapping[str, Any]:
    try:
        document = store.read_json(path)
    except UsageError:
        return {}
    return document if isinstance(document, dict) and document.get("vocabulary") else {}


def _found(
    dataset: Dataset, options: Mapping[str, OptionValue], document: Mapping[str, Any]
) -> Iterator[str]:
    form, synthetic_settings = document.get("format"), dataset.synthetic
    if not document:
        return
    if form != dataset.format:
        yield f"they are {form}, but the program reads {dataset.format}"
    elif form not in _BEFORE_MASKING:
        length = number_of(synthetic_settings.sequence_length, options)
        predictions = number_of(synthetic_settings.predictions, options) or usual_predictions(
            length
        )
        for key, what, asked in (
            ("sequence_length", "tokens in a sample", length),
            ("predictions", "predictions in a sample", predictions),
        ):
            if document.get(key) != asked:
                yield f"they have {document.get(key)} {what}, but the program is set to {asked}"
    vocabulary = document["vocabulary"]
    size = vocabulary.get("size") if isinstance(vocabulary, dict) else None
    most = number_of(synthetic_settings.vocabulary, options)
    if isinstance(size, int) and size > most:
        yield f"they have {size} words, but the model has {most}"
