"""Data classes and patterns that are made at their first use.

The standard library generates and compiles six methods of each data class at its definition, and
compiles each pattern. Together that took a third of a command's time to start.
"""

from __future__ import annotations

import dataclasses
import operator
import re
import reprlib
from functools import partial
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - type checkers know that one
else:

    def dataclass(made: type | None = None, /, **words: bool) -> Any:
        """Make a data class, as `dataclasses.dataclass` does; a frozen one at its first use."""
        return _put_off if words == {"frozen": True} else dataclasses.dataclass(made, **words)


_FIELDS = "__dataclass_fields__"
_METHODS = ("__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__")

# Names in a class whose values are made later.
_waiting: dict[type, tuple[str, ...]] = {}
_at_once = False


def _put_off(made: type) -> type:
    if _at_once:
        return dataclasses.dataclass(frozen=True)(made)
    names = tuple(name for name in _METHODS if name not in made.__dict__)
    for name in names:
        setattr(made, name, _stand_in(made, name))
    setattr(made, _FIELDS, _Fields())
    _waiting[made] = (*names, _FIELDS)
    return made


def _stand_in(made: type, name: str) -> Callable[..., Any]:
    """Return a method that, when called, replaces itself by the real one and calls that."""

    def method(*words: Any, **named: Any) -> Any:
        _make_ready(made)
        return getattr(made, name)(*words, **named)

    return method


class _Fields:
    """The fields, as `dataclasses.fields`, `replace` and derived data classes read them."""

    def __get__(self, _instance: object, owner: type) -> Any:
        """Make the class ready and return its fields."""
        _make_ready(owner)
        return getattr(owner, _FIELDS)


def _make_ready(made: type) -> None:
    """Make a class a data class, after its bases."""
    for one in reversed(made.__mro__):
        if names := _waiting.pop(one, ()):
            for name in names:
                delattr(one, name)
            _finish(one)


def _finish(made: type) -> None:
    """Make a data class with shared functions for comparison and text, without generated code.

    Generating and compiling code is most of a data class's cost, and most are never compared.
    """
    dataclasses.dataclass(frozen=True, repr=False, eq=False)(made)
    fields = dataclasses.fields(made)
    compared = _values([one.name for one in fields if one.compare])
    hashed = [one.name for one in fields if (one.compare if one.hash is None else one.hash)]
    values = _values(hashed)
    shown = [one.name for one in fields if one.repr]

    def equal(self: Any, other: Any) -> bool:
        same = other.__class__ is self.__class__
        return compared(self) == compared(other) if same else NotImplemented

    @reprlib.recursive_repr()
    def text(self: Any) -> str:
        words = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{self.__class__.__qualname__}({words})"

    methods = {"__eq__": equal, "__repr__": text, "__hash__": lambda self: hash(values(self))}
    for name, method in methods.items():
        # Python itself sets the hash of a class with its own equality to None.
        if made.__dict__.get(name) is None:
            setattr(made, name, method)


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns the values of some attributes."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda one: tuple(getattr(one, name) for name in names)


def make_all_ready() -> None:
    """Make all classes ready now, because two threads could be the first to use one."""
    global _at_once  # noqa: PLW0603 - of the process, as its threads are
    _at_once = True
    for made in tuple(_waiting):
        _make_ready(made)


class _Regex:
    """A regular expression that is compiled on the first call of one of its methods."""

    def __init__(self, compiled: Callable[[], re.Pattern[str]]) -> None:
        self._compiled = compiled

    def __getattr__(self, name: str) -> Any:
        """Return a method of the compiled expression, from now on without a detour."""
        found = getattr(self._compiled(), name)
        self.__dict__[name] = found
        return found


def regex(text: str, flags: int = 0) -> re.Pattern[str]:
    """Return a regular expression, as `re.compile` does, that is compiled at its first use."""
    return cast("re.Pattern[str]", _Regex(partial(re.compile, text, flags)))
