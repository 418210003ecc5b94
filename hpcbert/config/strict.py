"""Reading tables strictly: every key known, every value of its type, every error with its place."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any, TypeVar

from hpcbert.config.decode import MOST_COUNT, did_you_mean
from hpcbert.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

T = TypeVar("T")
N = TypeVar("N", int, float)

# Of integers: what everything that reads TOML can hold (toml.io, v1.0.0, Integer).
_MOST = (1 << 63) - 1

_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


class Table:
    """One table of a configuration file, read key by key and then closed.

    Args:
        values: The table as TOML or JSON gave it.
        where: The file, for messages.
        path: The table's dotted name within the file; empty for the top level.
    """

    def __init__(self, values: Mapping[str, Any], *, where: str, path: str = "") -> None:
        self.values = values
        self.where = where
        self.path = path
        self._known: set[str] = set()

    def error(self, key: str, message: str, hint: str = "") -> ConfigError:
        """Return (not raise) the error that says what is wrong with a key."""
        name = f"{self.path}.{key}" if self.path else key
        return ConfigError(f"{name} {message}", where=self.where, hint=hint)

    def has(self, key: str) -> bool:
        """Say whether the key is present."""
        self._known.add(key)
        return key in self.values

    def _typed(self, key: str, value: Any, kind: type[T]) -> T:
        if isinstance(value, int) and abs(value) > _MOST:
            raise self.error(key, "is out of range: at most 9,223,372,036,854,775,807.")
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return self._typed(key, float(value), kind)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.error(key, f"must be {_NAMES[kind]}, not {value!r}.")
        if isinstance(value, float) and not isfinite(value):
            raise self.error(key, f"must be a finite number, not {value}.")
        if kind is str and "\0" in str(value):
            raise self.error(key, "holds a NUL character, which no path or variable can.")
        return value

    def get(self, key: str, kind: type[T], default: T) -> T:
        """Return a value of the given type (bool, int, float or str), or the default."""
        self._known.add(key)
        if key not in self.values:
            return default
        return self._typed(key, self.values[key], kind)

    def need(self, key: str, kind: type[T]) -> T:
        """Return a value that must be there."""
        self._known.add(key)
        if key not in self.values:
            raise self.error(key, "is missing.")
        return self._typed(key, self.values[key], kind)

    def choice(self, key: str, choices: Iterable[str], default: str | None = None) -> str:
        """Return a text that must be one of the choices; without a default it must be there."""
        value = self.need(key, str) if default is None else self.get(key, str, default)
        known = tuple(choices)
        if value not in known:
            listed = ", ".join(known)
            raise self.error(
                key, f"must be one of {listed}, not {value!r}.", did_you_mean(value, known)
            )
        return value

    def at_least(self, key: str, low: int, default: int, *, most: int = MOST_COUNT) -> int:
        """Return a whole number from `low` to `most`; the default may be another."""
        return self.within(key, int, low, most, default)

    def within(self, key: str, kind: type[N], low: N, most: N, default: N) -> N:
        """Return a number from `low` to `most`; the default may be another."""
        value = self.get(key, kind, default)
        if key in self.values and value < low:
            raise self.error(key, f"must be at least {low:,}, not {value:,}.")
        if key in self.values and value > most:
            raise self.error(key, f"must be at most {most:,}, not {value:,}.")
        return value

    def items(self, key: str, kind: type[T], default: tuple[T, ...] = ()) -> tuple[T, ...]:
        """Return an array whose elements all have one type."""
        self._known.add(key)
        if key not in self.values:
            return default
        value = self.values[key]
        if not isinstance(value, list):
            raise self.error(key, f"must be an array, not {value!r}.")
        return tuple(self._typed(key, element, kind) for element in value)

    def table(self, key: str) -> Table:
        """Return a table inside this one; an absent one reads as empty."""
        self._known.add(key)
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise self.error(key, f"must be a table, not {value!r}.")
        path = f"{self.path}.{key}" if self.path else key
        return Table(value, where=self.where, path=path)

    def tables(self, key: str) -> tuple[Table, ...]:
        """Return an array of tables inside this one, `[[key]]` in TOML."""
        self._known.add(key)
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise self.error(key, "must be an array of tables.")
        path = f"{self.path}.{key}" if self.path else key
        return tuple(
            Table(one, where=self.where, path=f"{path}[{number}]")
            for number, one in enumerate(value, start=1)
        )

    def mapping(self, key: str, kind: type[T]) -> dict[str, T]:
        """Return a table with free names and values of one type."""
        inner = self.table(key)
        return {name: inner.need(name, kind) for name in inner.values}

    def close(self) -> None:
        """Refuse every key that nobody asked for.

        Raises:
            ConfigError: A key is unknown; the hint names the nearest known ones.
        """
        for key in self.values:
            if key not in self._known:
                raise self.error(key, "is not known.", did_you_mean(key, self._known))
