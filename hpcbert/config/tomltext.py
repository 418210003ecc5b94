"""Plain values as TOML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


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
