"""TOML files: reading them strictly, and plain values as text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tomli

from hpcbert.errors import ConfigError
from hpcbert.system.decode import MAX_INTEGER, Invalid, decode
from hpcbert.system.files import read as read_file

SCHEMA = 1
MAX_FILE_SIZE = 1 << 20
_BARE = re.compile(r"[A-Za-z0-9_-]+")


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
        # Windows begins files with a byte order mark.
        text = read_file(path, max_bytes=MAX_FILE_SIZE).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"Can't read the file: {error.strerror}.", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise ConfigError("The file is not UTF-8.", where=str(path)) from error
    try:
        values = tomli.loads(text)
        for key, value in _list_leaves(values):
            if isinstance(value, int) and abs(value) > MAX_INTEGER:  # JSON has no such limit
                message = f"{key} is out of range: at most {MAX_INTEGER:,}."
                raise ConfigError(message, where=str(path))
    except tomli.TOMLDecodeError as error:
        raise ConfigError(f"The file is not valid TOML: {error}.", where=str(path)) from error
    except (RecursionError, ValueError) as error:
        # Nested too deeply, or a number of thousands of digits.
        raise ConfigError(f"The file's TOML can't be read: {error}.", where=str(path)) from error
    decode(_Head, {key: values.pop(key) for key in ("schema",) if key in values}, file=str(path))
    return values


def _list_leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the plain values of nested tables and arrays with their keys, `a.b[1]`."""
    if isinstance(value, dict):
        for name, entry in value.items():
            yield from _list_leaves(entry, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for number, entry in enumerate(value, 1):
            yield from _list_leaves(entry, f"{key}[{number}]")
    else:
        yield key, value


def format_toml(values: Mapping[str, Any]) -> str:
    """Return a document: plain values, then a table for each mapping and each list of mappings.

    Args:
        values: Texts, numbers, booleans, lists and mappings; None is left out.
    """
    return "\n".join(_format_table(values, ())).strip("\n") + "\n"


def _format_table(values: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    inner_tables = {name: entry for name, entry in values.items() if isinstance(entry, Mapping)}
    table_lists = {name: entry for name, entry in values.items() if _is_tables(entry)}
    for name, entry in values.items():
        if name not in inner_tables and name not in table_lists and entry is not None:
            yield f"{_format_key(name)} = {_format_value(entry)}"
    for name, entry in inner_tables.items():
        lines = list(_format_table(entry, (*path, name)))
        # A table that has only tables needs no line of its own.
        yield from (
            lines if lines and not lines[0] else ("", f"[{_format_path(*path, name)}]", *lines)
        )
    for name, tables in table_lists.items():
        for table in tables:
            pairs = {key: value for key, value in table.items() if value is not None}
            lines = [f"{_format_key(key)} = {_format_value(value)}" for key, value in pairs.items()]
            yield from ("", f"[[{_format_path(*path, name)}]]", *lines)


def _is_tables(value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(entry, Mapping) for entry in value)
    )


def _format_path(*path: str) -> str:
    return ".".join(map(_format_key, path))


def _format_key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _format_text(name)


def _format_text(text: str) -> str:
    # JSON's escapes are TOML's, except for DEL, which TOML also requires escaped (v1.0.0, String).
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _format_text(value)
    if isinstance(value, Mapping):
        pairs = ", ".join(
            f"{_format_key(name)} = {_format_value(entry)}" for name, entry in value.items()
        )
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_format_value, value))}]"
    return repr(value)
