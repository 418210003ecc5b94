"""Plain values as TOML."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def written(values: Mapping[str, Any]) -> str:
    """Return a document: plain values, then a table for each mapping and each list of mappings.

    Args:
        values: Texts, numbers, booleans, lists and mappings; None is left out.
    """
    return "\n".join(_table(values, ())).strip("\n") + "\n"


def _table(values: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    inner = {name: one for name, one in values.items() if isinstance(one, Mapping)}
    several = {name: one for name, one in values.items() if _is_tables(one)}
    for name, one in values.items():
        if name not in inner and name not in several and one is not None:
            yield f"{_key(name)} = {_value(one)}"
    for name, one in inner.items():
        lines = list(_table(one, (*path, name)))
        # A table that has only tables needs no line of its own.
        yield from lines if lines and not lines[0] else ("", f"[{_dotted(*path, name)}]", *lines)
    for name, tables in several.items():
        for table in tables:
            plain = {key: value for key, value in table.items() if value is not None}
            lines = [f"{_key(key)} = {_value(value)}" for key, value in plain.items()]
            yield from ("", f"[[{_dotted(*path, name)}]]", *lines)


def _is_tables(value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(one, Mapping) for one in value)
    )


def _dotted(*path: str) -> str:
    return ".".join(map(_key, path))


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _text(text: str) -> str:
    # JSON's escapes are TOML's, except for DEL, which TOML also requires escaped (v1.0.0, String).
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_key(name)} = {_value(one)}" for name, one in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return repr(value)
