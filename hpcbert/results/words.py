"""The words of reports and tables in each language; report/catalogue.toml has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tomli

from hpcbert.model import Group, Unit
from hpcbert.results.grid import Column
from hpcbert.results.wording import sanitize, table_title

LANGUAGES = ("en", "zh")
_CATALOGUE = Path(__file__).parent / "report" / "catalogue.toml"


@cache
def catalogue() -> Mapping[str, Mapping[str, Any]]:
    """Return the words by key: each with its texts by language."""
    return tomli.loads(_CATALOGUE.read_text(encoding="utf-8"))


def flag_meanings() -> dict[str, str]:
    """Return the meaning of each flag, as tables explain it to readers of the table alone."""
    return {
        key.removeprefix("flag."): texts["en"]
        for key, texts in catalogue().items()
        if key.startswith("flag.")
    }


@dataclass(frozen=True)
class Words:
    """The words of one language.

    Attributes:
        unit: What the rates count, in the place `unit` of a text.
    """

    language: str
    unit: Unit = "samples"

    def __call__(self, key: str, /, **values: object) -> str:
        """Return a text with its places filled in."""
        unit = catalogue()[f"unit.{self.unit}"][self.language]
        return str(catalogue()[key][self.language]).format_map({"unit": unit, **values})

    def explain_reason(self, code: str) -> str:
        """Return the meaning of a reason's code; empty if it has none here."""
        return str(catalogue().get(f"reason.{code}", {}).get(self.language, ""))

    def main_facts(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield the facts that a report shows first: each title, and its names in fingerprints."""
        for key, entry in catalogue().items():
            if key.startswith("fact."):
                yield entry[self.language], entry["names"]

    def columns(self, *keys: str) -> tuple[Column, ...]:
        """Return columns by their keys in the catalogue: `shape`, with a format `min:.2f`."""
        pairs = (key.partition(":") for key in keys)
        return tuple(Column(self(f"column.{name}"), form) for name, _, form in pairs)


def name_table(group: Group, words: Words) -> str:
    """Return a table's title with batch size and variant."""
    parts = table_title(group), words("batch", size=group.batch), sanitize(group.variant)
    return words("comma").join(filter(None, parts))
