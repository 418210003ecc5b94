"""The words of a report in its languages: catalogue.toml has all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import tomli

from hpcbert.results.grid import Column

LANGUAGES = ("en", "zh")
_CATALOGUE = Path(__file__).with_name("catalogue.toml")


@cache
def catalogue() -> Mapping[str, Mapping[str, str]]:
    """Return the words by key: each with its texts by language."""
    return tomli.loads(_CATALOGUE.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Words:
    """The words of one language."""

    language: str

    def __call__(self, key: str, /, **values: object) -> str:
        """Return a text with its places filled in.

        Raises:
            KeyError: The text does not exist, or a value for one of its places is missing.
        """
        return catalogue()[key][self.language].format_map(values)

    def known(self, key: str, default: str) -> str:
        """Return a text without placeholders; if there is none, the program's own word."""
        texts = catalogue().get(key)
        return texts[self.language] if texts else default

    def columns(self, *keys: str) -> tuple[Column, ...]:
        """Return columns by their keys in the catalogue: `shape`, with a form `min:.2f`."""
        pairs = (key.partition(":") for key in keys)
        return tuple(Column(self(f"column.{name}"), form) for name, _, form in pairs)
