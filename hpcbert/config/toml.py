"""Reading one TOML file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tomli

from hpcbert.errors import ConfigError
from hpcbert.system.decode import MOST_INTEGER, Invalid, decode
from hpcbert.system.files import read as read_file

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SCHEMA = 1
MOST = 1 << 20


def _understood(schema: int) -> int:
    if schema != SCHEMA:
        raise Invalid(f"is {schema}; this hpcbert reads {SCHEMA}")
    return schema


@dataclass(frozen=True)
class _Head:
    """The first key of every file."""

    schema: Annotated[int, _understood]


def read(path: Path) -> dict[str, Any]:
    """Read a file with a supported `schema`, and return the rest of it.

    Raises:
        ConfigError: It can't be read, is not TOML (with line), or has another schema.
    """
    try:
        text = read_file(path, most=MOST).decode(
            "utf-8-sig"
        )  # Windows begins files with a byte order mark.
    except OSError as error:
        raise ConfigError(f"Can't read the file: {error.strerror}.", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise ConfigError("The file is not UTF-8.", where=str(path)) from error
    try:
        values = tomli.loads(text)
        _refuse_large(values)
    except tomli.TOMLDecodeError as error:
        raise ConfigError(f"The file is not valid TOML: {error}.", where=str(path)) from error
    except Invalid as error:
        raise ConfigError(str(error), where=str(path)) from None
    except (RecursionError, ValueError) as error:
        # Nested too deeply, or a number of thousands of digits.
        raise ConfigError(f"The file's TOML can't be read: {error}.", where=str(path)) from error
    decode(_Head, {key: values.pop(key) for key in ("schema",) if key in values}, file=str(path))
    return values


def _refuse_large(value: Any) -> None:
    """Refuse an integer that TOML can't hold, wherever it is; JSON has no such limit."""
    pairs: Iterable[tuple[str, Any]] = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        pairs = ((f"[{number}]", one) for number, one in enumerate(value, 1))
    for key, one in pairs:
        if isinstance(one, int) and abs(one) > MOST_INTEGER:
            raise Invalid(f"is out of range: at most {MOST_INTEGER:,}").under(key)
        if not isinstance(one, dict | list):
            continue
        try:
            _refuse_large(one)
        except Invalid as error:
            raise error.under(key) from None
