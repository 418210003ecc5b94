"""Data classes and patterns that are made at their first use, without generated code.

The standard library generates and compiles six methods of each data class at its definition, and
compiles each pattern. Together that took a third of a command's time to start.
"""

from __future__ import annotations

import dataclasses
import operator
import re
import reprlib
from functools import partial
from typing import TYPE_CHECKING, Any, AnyStr, Generic, cast

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - type checkers know that one
else:

    def dataclass(made: type | None = None, /, **words: bool) -> Any:
        """Make a data class, as `dataclasses.dataclass` does; a frozen one at its first use."""
        return _put_off if words == {"frozen": True} else dataclasses.dataclass(made, **words)


_FIELDS = "__dataclass_fields__"
_METHODS = ("__init__", "__repr__", "__eq__", "__hash__")

# Names in a class whose values are made later.
_waiting: dict[type, tuple[str, ...]] = {}
_at_once = False


def _put_off(made: type) -> type:
    if not _is_derived(made):
        frozen = cast("Any", made)
        frozen.__setattr__, frozen.__delattr__ = _refuse_to_set, _refuse_to_delete
    if _at_once:
        _finish(made)
        return made
    later = tuple(name for name in _METHODS if name not in made.__dict__)
    for name in later:
        setattr(made, name, _stand_in(made, name))
    setattr(made, _FIELDS, _Fields())
    _waiting[made] = (*later, _FIELDS)
    return made


def _is_derived(made: type) -> bool:
    """Return whether a base is a data class, without making it ready."""
    return any(_FIELDS in vars(one) for one in made.__mro__[1:])


def _refuse_to_set(_self: object, name: str, _value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(_self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _stand_in(made: type, name: str) -> Callable[..., Any]:
    """Return a method that, when called, replaces itself by the real one and calls that."""

    def method(self: Any, /, *words: Any, **named: Any) -> Any:
        _make_ready(made)
        return getattr(made, name)(self, *words, **named)

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
    """Make a data class with shared functions as its methods.

    The standard library only finds the fields: the code that it generates and compiles is nine
    tenths of a data class's cost. It takes frozen classes from frozen bases only, and the other way
    round, so one that is derived has two methods from it.
    """
    derived = _is_derived(made)
    dataclasses.dataclass(init=False, repr=False, eq=False, frozen=derived)(made)
    cast("Any", made).__dataclass_params__.frozen = True
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

    methods = {"__init__": _initializer(made, fields), "__eq__": equal, "__repr__": text}
    methods["__hash__"] = lambda self: hash(values(self))
    for name, method in methods.items():
        # Python itself sets the hash of a class with its own equality to None.
        if made.__dict__.get(name) is None:
            setattr(made, name, method)


def _initializer(made: type, fields: tuple[dataclasses.Field[Any], ...]) -> Callable[..., None]:
    """Return `__init__`, with every field as an argument."""
    missing = dataclasses.MISSING
    made_each_time = {
        one.name: one.default_factory for one in fields if one.default_factory is not missing
    }
    optional = [one for one in fields if one.default is not missing or one.name in made_each_time]
    words = (f"{one.name}=0" if one in optional else one.name for one in fields)
    # Python itself matches arguments and fields: this function returns them by name.
    match = eval(f"lambda {', '.join(words)}: locals()")  # noqa: S307 - names of fields
    match.__defaults__ = tuple(one.default for one in optional)
    match.__qualname__ = f"{made.__qualname__}.__init__"
    completed = hasattr(made, "__post_init__")

    def initialize(self: Any, /, *values: Any, **named: Any) -> None:
        own = match(*values, **named)
        for name, make in made_each_time.items():
            if own[name] is missing:
                own[name] = make()
        self.__dict__.update(own)
        if completed:
            self.__post_init__()

    return initialize


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


class _Regex(Generic[AnyStr]):
    """A regular expression that is compiled on the first call of one of its methods."""

    def __init__(self, compiled: Callable[[], re.Pattern[AnyStr]]) -> None:
        self._compiled: Callable[[], re.Pattern[AnyStr]] = compiled

    def __getattr__(self, name: str) -> Any:
        """Return a method of the compiled expression, from now on without a detour."""
        found = getattr(self._compiled(), name)
        self.__dict__[name] = found
        return found


def regex(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return a regular expression, as `re.compile` does, that is compiled at its first use."""
    return cast("re.Pattern[AnyStr]", _Regex(partial(re.compile, text, flags)))
