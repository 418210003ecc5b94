"""A table read key by key, for a grammar in which one key decides which others there are.

That is the `[log]` table: a rule's kind, its record's groups and the rank that prints it say which
keys it has and what they may be. Everything else is a dataclass: `hpcbert.config.decode`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from hpcbert.config.decode import Range, choose, decode, did_you_mean
from hpcbert.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

T = TypeVar("T")


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
        return ConfigError(f"{self._place(key)} {message}", where=self.where, hint=hint)

    def _place(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def has(self, key: str) -> bool:
        """Say whether the key is present."""
        self._known.add(key)
        return key in self.values

    def get(self, key: str, kind: type[T], default: T) -> T:
        """Return a value of the given type, or the default."""
        if not self.has(key):
            return default
        return decode(kind, self.values[key], file=self.where, path=self._place(key))

    def need(self, key: str, kind: type[T]) -> T:
        """Return a value that must be there."""
        if not self.has(key):
            raise self.error(key, "is missing.")
        return decode(kind, self.values[key], file=self.where, path=self._place(key))

    def choice(self, key: str, choices: Iterable[str], default: str | None = None) -> str:
        """Return a text that must be one of the choices; without a default it must be there."""
        kind: Any = Annotated[str, partial(choose, tuple(choices))]
        found: str = self.need(key, kind) if default is None else self.get(key, kind, default)
        return found

    def at_least(self, key: str, low: int, default: int) -> int:
        """Return a whole number that is not below `low`; the default may be another."""
        kind: Any = Annotated[int, Range(low)]
        found: int = self.get(key, kind, default)
        return found

    def items(self, key: str, kind: type[T], default: tuple[T, ...] = ()) -> tuple[T, ...]:
        """Return an array whose elements all have one type."""
        return self.get(key, tuple[kind, ...], default)  # type: ignore[valid-type]

    def table(self, key: str) -> Table:
        """Return a table inside this one; an absent one reads as empty."""
        values: dict[str, Any] = self.get(key, dict[str, Any], {})
        return Table(values, where=self.where, path=self._place(key))

    def tables(self, key: str) -> tuple[Table, ...]:
        """Return an array of tables inside this one, `[[key]]` in TOML."""
        found = self.get(key, tuple[dict[str, Any], ...], ())
        place = self._place(key)
        return tuple(
            Table(one, where=self.where, path=f"{place}[{number}]")
            for number, one in enumerate(found, start=1)
        )

    def mapping(self, key: str, kind: type[T]) -> dict[str, T]:
        """Return a table with free names and values of one type."""
        return self.get(key, dict[str, kind], {})  # type: ignore[valid-type]

    def close(self) -> None:
        """Refuse every key that nobody asked for.

        Raises:
            ConfigError: A key is unknown; the hint names the nearest known ones.
        """
        for key in self.values:
            if key not in self._known:
                raise self.error(key, "is not known.", did_you_mean(key, self._known))
