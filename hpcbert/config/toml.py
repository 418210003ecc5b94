"""Reading one TOML file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tomli

from hpcbert.errors import ConfigError
from hpcbert.system.decode import MAX_INTEGER, Invalid, decode
from hpcbert.system.files import read as read_file

SCHEMA = 1
MAX_FILE_SIZE = 1 << 20


def _check_schema(schema: int) -> int:
    if schema != SCHEMA:
        raise Invalid(f"is {schema}; this hpcbert reads {SCHEMA}")
    return schema


@dataclass(frozen=True)
class _Head:
    """The first key of every file."""

    schema: Annotated[int, _check_schema]


def read(path: Path) -> dict[str, Any]:
    """Read a file with a supported `schema`, and return the rest of it.

    Raises:
        ConfigError: It can't be read, is not TOML (with line), or has another schema.
    """
    try:
        text = read_file(path, max_bytes=MAX_FILE_SIZE).decode(
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
        pairs = ((f"[{number}]", entry) for number, entry in enumerate(value, 1))
    for key, entry in pairs:
        if isinstance(entry, int) and abs(entry) > MAX_INTEGER:
            raise Invalid(f"is out of range: at most {MAX_INTEGER:,}").under(key)
        if not isinstance(entry, dict | list):
            continue
        try:
            _refuse_large(entry)
        except Invalid as error:
            raise error.under(key) from None
