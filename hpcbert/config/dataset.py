"""The files that a recipe's program reads, and the settings to make data for a site without any."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

from hpcbert.data.names import FormatName
from hpcbert.errors import UsageError
from hpcbert.model import OptionValue
from hpcbert.system.decode import Count

_PLACEHOLDER = re.compile(r"\{(\w+)\}")


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


def read_number(setting: int | str, options: Mapping[str, OptionValue]) -> int:
    """Return a number that is given directly, or by the name of an option.

    Raises:
        UsageError: The option is not a number.
    """
    value = options[setting] if isinstance(setting, str) else setting
    if not isinstance(value, int):
        raise UsageError(f"The option {setting} must be a whole number, not {value!r}.")
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
        settings = (getattr(self.synthetic, field.name) for field in fields(self.synthetic))
        numbers = {
            self.numbered,
            *(setting for setting in settings if isinstance(setting, str)),
        } - {""}
        return frozenset(name for text in patterns for name in _PLACEHOLDER.findall(text)) | numbers
