"""TOML files: reading them strictly, and plain values as text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tomli

from hpcbert.errors import ConfigError
from hpcbert.system.files import read as read_file

SCHEMA = 1
MAX_FILE_SIZE = 1 << 20
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def read(path: Path) -> dict[str, Any]:
    """Read a file with a supported `schema`, and return the rest of it.

    Raises:
        ConfigError: It can't be read, is not TOML (with line), or has another schema.
    """
    values = read_values(path)
    if "schema" not in values:
        hint = f"Begin the file with: schema = {SCHEMA}"
        raise ConfigError("schema is missing.", where=str(path), hint=hint)
    schema = values.pop("schema")
    if schema != SCHEMA or isinstance(schema, bool):
        message = f"schema is {schema!r}; this hpcbert reads {SCHEMA}."
        raise ConfigError(message, where=str(path))
    return values


def read_values(path: Path) -> dict[str, Any]:
    """Read a file that needs no `schema`.

    Raises:
        ConfigError: It can't be read, or is not TOML (with line).
    """
    try:
        # Windows begins files with a byte order mark.
        text = read_file(path, max_bytes=MAX_FILE_SIZE).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"Can't read the file: {error.strerror}.", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise ConfigError("The file is not UTF-8.", where=str(path)) from error
    try:
        return tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        raise ConfigError(f"The file is not valid TOML: {error}.", where=str(path)) from error
    except (RecursionError, ValueError) as error:
        # Nested too deeply, or a number of thousands of digits.
        raise ConfigError(f"The file's TOML can't be read: {error}.", where=str(path)) from error


def format_toml(values: Mapping[str, Any]) -> str:
    """Return a document with each plain value under its dotted key; None is left out."""
    return "".join(_format_lines(values, ()))


def _format_lines(values: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    for name, value in values.items():
        keys = (*path, name)
        if isinstance(value, Mapping) and value:
            yield from _format_lines(value, keys)
        elif value is not None:
            yield f"{'.'.join(map(_format_key, keys))} = {_format_value(value)}\n"


def _format_key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _format_text(name)


def _format_text(text: str) -> str:
    # JSON's escapes are TOML's, except for DEL, which TOML also requires escaped (v1.0.0, String).
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _format_text(value)
    if isinstance(value, Mapping):
        pairs = [
            f"{_format_key(name)} = {_format_value(entry)}"
            for name, entry in value.items()
            if entry is not None
        ]
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        entries = [_format_value(entry) for entry in value]
        if any(isinstance(entry, Mapping) for entry in value):
            return "".join(["[\n", *(f"  {entry},\n" for entry in entries), "]"])
        return f"[{', '.join(entries)}]"
    return repr(value)
