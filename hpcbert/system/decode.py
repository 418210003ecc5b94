"""Plain values to dataclasses by their annotations: the one reader of TOML and JSON documents.

A field is a key, and its default is the meaning of an absent key. `Annotated` adds what a type
can't express: `Range`, or any function that returns the value or raises `Invalid`; `GIVEN` marks a
field that no document has, `EncodedAs` one with another form in documents, `TableKeys` a tuple that
documents write as a table. A class with a `FORM` is written as the text that its `parse` takes. A
classmethod `narrowed` returns annotations that other keys of the same table narrow. Unknown keys
are refused, except in tables that are `IgnoreUnknown`. `__post_init__` checks what involves several
keys.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from math import isfinite
from types import MappingProxyType, NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from hpcbert.errors import ConfigError, join_names

T = TypeVar("T")
N = TypeVar("N", int, float)

# Of integers: what every TOML reader can hold (toml.io, v1.0.0, Integer).
MAX_INTEGER = (1 << 63) - 1
# Of counts: iterations, samples, nodes.
MAX_COUNT = 1_000_000_000
# Marks a field that the caller gives; `name` of a table in a mapping is given by its key.
GIVEN = object()

_NAMES: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number"}
_NAMES |= {str: "a text"}


def did_you_mean(word: str, known_words: Iterable[str]) -> str:
    """Return a hint with the known words nearest to an unknown one, or else with all of them."""
    choices = list(known_words)
    return suggest_similar(word, filter(None, choices)) or list_choices(choices)


def list_choices(known_words: Iterable[str]) -> str:
    """Return a hint with all known words; none if there is no word."""
    choices = sorted(filter(None, known_words))
    return f"Known here: {join_names(choices)}." if choices else ""


def suggest_similar(word: str, known_words: Iterable[str]) -> str:
    """Return a hint with the known words nearest to an unknown one, if the message lists all."""
    matches = difflib.get_close_matches(word, sorted(known_words), n=2, cutoff=0.6)
    return f"Did you mean {' or '.join(matches)}?" if matches else ""


class Invalid(ValueError):  # noqa: N818  its message is about a value
    """A value does not match its annotation.

    Args:
        message: The text after the key's name, without the full stop.
        value: The value, if the message is to end with it.
        key: The key below the one being read, if the error is there.
    """

    def __init__(
        self, message: str, hint: str = "", *, value: Any = MISSING, key: str = ""
    ) -> None:
        super().__init__(message)
        self.message = message.removesuffix(".")
        self.hint = hint
        self.value = value
        # None for the value itself: a key may be empty.
        self.path = key or None

    def under(self, key: str) -> Invalid:
        """Return it with its place one level further up; a number in brackets counts from one."""
        path = self.path
        dot = "" if path is None or path.startswith("[") else "."
        self.path = f"{key}{dot}{path or ''}"
        return self

    def __str__(self) -> str:
        text = "" if self.value is MISSING else f", not {self.value!r}"
        return f"{self.path or ''} {self.message}{text}.".lstrip()


class _Mismatch(Invalid):
    """A value has another type than its annotation."""


@dataclass(frozen=True)
class Range:
    """Refuses numbers outside the range.

    Attributes:
        says: The requirement, instead of `must be at least 1, not 0`.
    """

    low: float
    most: float = MAX_COUNT
    says: str = ""

    def __call__(self, value: N) -> N:
        """Return the number."""
        if self.low <= value <= self.most:
            return value
        bound = f"least {self.low:,}" if value < self.low else f"most {self.most:,}"
        raise Invalid(self.says or f"must be at {bound}, not {value:,}")


Count = Annotated[int, Range(1)]


def require_filled(text: str) -> str:
    """Return a text unless it is blank."""
    if not text.strip():
        raise Invalid("must not be empty", "Leave it out for the default.")
    return text


Filled = Annotated[str, require_filled]


class IgnoreUnknown:
    """Marks a dataclass that ignores keys it doesn't know, as newer versions may add them."""


@dataclass(frozen=True)
class EncodedAs:
    """Gives the written form of a value, and how to read it."""

    kind: Any
    read: Callable[[Any], Any]


class TableKeys:
    """Marks a tuple that documents write as a table, with a key for each of its values."""

    def __init__(self, *keys: str) -> None:
        self.keys = keys


def decode(kind: type[T], values: Any, *, file: str, path: str = "", **extra_fields: Any) -> T:
    """Decode a document, or one part of it.

    Args:
        path: The part's dotted name in the document; empty for the whole document.
        extra_fields: The fields that no document has, and those that were read already.

    Raises:
        ConfigError: A key is unknown or missing, or its value does not match the annotation; the
            message names file and key, and the hint the nearest known ones.
    """
    try:
        return cast(
            "T", _read_table(kind, values, extra_fields) if extra_fields else _read(kind, values)
        )
    except Invalid as error:
        located = error.under(path) if path else error
        raise ConfigError(str(located), where=file, hint=located.hint) from None


@cache
def _take_apart(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(hint), get_args(hint)


def _read(hint: Any, value: Any) -> Any:
    origin, kinds = _take_apart(hint)
    if origin is Annotated:
        return _read_annotated(kinds[0], kinds[1:], value)
    if origin in _READERS:
        return _READERS[origin](kinds, value)
    if _is_table(hint):
        return _read_table(hint, value)
    if hint is Any:
        return value
    return _read_plain(hint, value) if hint in _NAMES else _parse_text(hint, value)


def _is_table(hint: Any) -> bool:
    return is_dataclass(hint) and not hasattr(hint, "FORM")


def _read_annotated(kind: Any, notes: tuple[Any, ...], value: Any) -> Any:
    if isinstance(notes[0], TableKeys):
        _require_table(value)
        pairs = zip(notes[0].keys, get_args(kind), strict=True)
        return tuple(_read_key(value, key, item_kind) for key, item_kind in pairs)
    result = _read(notes[0].kind if isinstance(notes[0], EncodedAs) else kind, value)
    for note in notes:
        check = note.read if isinstance(note, EncodedAs) else note
        result = check(result) if callable(check) else result
    return result


def _require_table(value: Any) -> None:
    if not isinstance(value, dict):
        raise _Mismatch("must be a table", value=value)


def _read_plain(kind: type, value: Any) -> Any:
    if isinstance(value, int) and abs(value) > MAX_INTEGER:  # JSON has no such limit
        raise Invalid(f"is out of range: at most {MAX_INTEGER:,}")
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise _Mismatch(f"must be {_NAMES[kind]}", value=value)
    if isinstance(value, float) and not isfinite(value):
        raise Invalid("must be a finite number", value=value)
    if isinstance(value, str) and "\0" in value:
        raise Invalid("contains a NUL character, which paths and variables can't")
    if isinstance(value, str) and has_surrogate(value):
        raise Invalid("contains half of a character (a lone surrogate)", value=ascii(value))
    return value


def has_surrogate(text: str) -> bool:
    """Return whether a text has half of a character, which JSON can encode and UTF-8 can't."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def check_choice(choices: tuple[Any, ...], value: Any) -> Any:
    """Return a value if it is one of those known.

    Raises:
        Invalid: It is not; the hint names the nearest.
    """
    if value not in choices:
        names = [str(choice) for choice in choices]
        hint = suggest_similar(str(value), names)
        raise _Mismatch(f"must be one of {', '.join(names)}", hint, value=value)
    return value


def _parse_text(kind: Any, value: Any) -> Any:
    text = _read_plain(str, value)
    try:
        return getattr(kind, "parse", kind)(text)
    except ValueError as error:
        form = getattr(kind, "FORM", "")
        raise Invalid(f"{form}{error}", getattr(kind, "FORMS", "")) from None


def _read_union(kinds: tuple[Any, ...], value: Any) -> Any:
    """Return a value as the first annotation that it has the type of."""
    if value is None and NoneType in kinds:
        return None
    mismatches: list[_Mismatch] = []
    for kind in kinds:
        if kind is NoneType:
            continue
        try:
            return _read(kind, value)
        except _Mismatch as mismatch:
            if mismatch.path is not None:
                raise
            mismatches.append(mismatch)
    words = dict.fromkeys(mismatch.message.removeprefix("must be ") for mismatch in mismatches)
    hint = " ".join(mismatch.hint for mismatch in mismatches).strip()
    raise Invalid(f"must be {' or '.join(words)}", hint, value=value)


def _read_array(kinds: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _Mismatch("must be an array", value=value)
    if kinds[-1] is ...:
        kinds = kinds[:1] * len(value)
    if len(kinds) != len(value):
        raise Invalid(f"must be an array of {len(kinds)}", value=value)
    pairs = zip(kinds, enumerate(value, 1), strict=True)
    return tuple(_read_element(kind, *item) for kind, item in pairs)


def _read_element(kind: Any, number: int, value: Any) -> Any:
    try:
        return _read(kind, value)
    except Invalid as error:
        if error.path is not None or not isinstance(value, str):
            raise error.under(f"[{number}]") from None
        raise Invalid(f"names {value!r}, which {error.message}", error.hint) from None


def _read_key(table: Mapping[str, Any], key: str, kind: Any) -> Any:
    if key not in table:
        raise Invalid("is missing", key=key)
    try:
        return _read(kind, table[key])
    except Invalid as error:
        raise error.under(key) from None


def _read_mapping(kinds: tuple[Any, ...], value: Any) -> dict[str, Any]:
    _require_table(value)
    name_kind, kind = kinds
    # A `name` that no document has is the key of its table.
    hints = type_hints(kind) if _is_table(kind) else {}
    has_name_field = GIVEN in get_args(hints.get("name"))
    mapping = {}
    for name, item in value.items():
        if get_origin(name_kind) is Literal and name not in get_args(name_kind):
            raise Invalid("is not known", did_you_mean(name, get_args(name_kind)), key=name)
        try:
            content = (
                _read_table(kind, item, {"name": name}) if has_name_field else _read(kind, item)
            )
            mapping[_read(name_kind, name)] = content
        except Invalid as error:
            raise error.under(name) from None
    return mapping


@cache
def type_hints(kind: Any) -> Mapping[str, Any]:
    """Return the annotations of a class, evaluated once."""
    return get_type_hints(kind, include_extras=True)


def document_fields(kind: Any) -> tuple[Field[Any], ...]:
    """Return the fields of a dataclass that a document has."""
    hints = type_hints(kind)
    return tuple(field for field in fields(kind) if GIVEN not in get_args(hints[field.name]))


def _read_table(
    kind: Any, value: Any, given_values: Mapping[str, Any] = MappingProxyType({})
) -> Any:
    _require_table(value)
    narrowed_hints = kind.narrowed(value) if hasattr(kind, "narrowed") else {}
    hints = {**type_hints(kind), **narrowed_hints}
    arguments, names = dict(given_values), []
    for field in fields(kind):
        if GIVEN in _take_apart(hints[field.name])[1]:
            continue
        names.append(field.name)
        required = field.default is MISSING and field.default_factory is MISSING
        if field.name not in given_values and (field.name in value or required):
            arguments[field.name] = _read_key(value, field.name, hints[field.name])
    if not issubclass(kind, IgnoreUnknown):
        for key in value:
            if key not in names:
                raise Invalid("is not known", did_you_mean(key, names), key=key)
    return kind(**arguments)


_READERS = {
    Literal: lambda choices, value: check_choice(choices, _read_plain(type(choices[0]), value)),
    Union: _read_union,
    UnionType: _read_union,
    tuple: _read_array,
    dict: _read_mapping,
    Mapping: _read_mapping,
}
