"""The files that a recipe's program reads, and the settings to make data for a site without any."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from hpcbert.data.names import FormatName  # noqa: TC001  annotations are read
from hpcbert.errors import UsageError
from hpcbert.system.decode import Count  # noqa: TC001  annotations are read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcbert.model import OptionValue

_NAMED = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class SyntheticSettings:
    """Settings to make data if the site has none: `[dataset.synthetic]`.

    Each is a number, or the name of an option that has it.

    Attributes:
        sequence_length: Tokens in a sample.
        predictions: Maximum number of masked tokens in a sample; 0 for the usual number.
        vocabulary: Tokens in the vocabulary.
        files: Number of files.
    """

    sequence_length: int | str = 128
    predictions: int | str = 0
    vocabulary: int | str = 30522
    files: int | str = 8


def number_of(said: int | str, options: Mapping[str, OptionValue]) -> int:
    """Return a number that is given directly, or by the name of an option.

    Raises:
        UsageError: The option is not a number.
    """
    value = options[said] if isinstance(said, str) else said
    if not isinstance(value, int):
        raise UsageError(f"The option {said} must be a whole number, not {value!r}.")
    return value


@dataclass(frozen=True)
class Dataset:
    """The files that a recipe's program reads below the data directory: `[dataset]`.

    Names of files may hold `{OPTION}`.

    Attributes:
        files: Pattern of the training files.
        format: Their format; `hpcbert.prepare.records` knows each.
        keys: Names that a record must have.
        at_least: Minimum number of files.
        numbered: Option with the number of files; `*` in their names is 0, 1, 2, …
        also: Further files that must exist.
        synthetic: Settings to make them if the site has none.
    """

    files: str
    format: FormatName
    keys: tuple[str, ...] = ()
    at_least: Count = 1
    numbered: str = ""
    also: tuple[str, ...] = ()
    synthetic: SyntheticSettings = SyntheticSettings()

    @property
    def names(self) -> frozenset[str]:
        """The options in the names of files."""
        patterns = (self.files, *self.also)
        said = (getattr(self.synthetic, field.name) for field in fields(self.synthetic))
        numbers = {self.numbered, *(one for one in said if isinstance(one, str))} - {""}
        return frozenset(name for text in patterns for name in _NAMED.findall(text)) | numbers
