"""click's options, made from the declarations in `hpcbert.config.options`."""

from __future__ import annotations

import functools
from dataclasses import fields
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import click

from hpcbert.config.options import Options, Spec, declared
from hpcbert.errors import UsageError
from hpcbert.system.decode import MOST_COUNT, Invalid, Range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Body = Callable[..., Any]


def pairs(words: Iterable[str], flag: str = "--set") -> dict[str, str]:
    """Read the arguments of `--set` and `--env`.

    Raises:
        UsageError: One does not have the form NAME=VALUE, or a variable has two values.
    """
    values: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{flag} needs NAME=VALUE, not {word!r}.")
        if flag == "--env" and name.strip() in values:
            hint = f'A campaign.toml can measure several: env = {{ {name} = ["a", "b"] }}'
            raise UsageError(f"{flag} gives {name} two values.", hint=hint)
        values[name.strip()] = value
    return values


def split(text: str) -> tuple[str, ...]:
    """Return the words of a comma-separated text; none of an empty text.

    Raises:
        UsageError: One of several is empty.
    """
    words = tuple(word.strip() for word in text.split(","))
    if words == ("",):
        return ()
    if "" in words:
        raise UsageError(f"{text!r} has an empty entry.", hint="Remove the comma too many.")
    return words


class _AliasedChoice(click.Choice[str]):
    """One of several names, or a common alias of one."""

    def __init__(self, names: Iterable[str], own_name: Callable[[str], str]) -> None:
        super().__init__(list(names))
        self._own_name = own_name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name without an alias."""
        return super().convert(self._own_name(value), param, ctx)


def shared_option(name: str, help: str = "", **words: Any) -> Callable[[Body], Body]:  # noqa: A002
    """Return click's option for a field of `Options`.

    Args:
        name: The field.
        help: Another sentence than the declaration's.
        words: Further arguments of `click.option`.
    """
    option = declared()[name]
    field = next(field for field in fields(Options) if field.name == name)
    kind, *marks = get_args(get_type_hints(Options, include_extras=True)[name])
    checks = [mark for mark in marks if callable(mark)]
    if get_origin(kind) in {Union, UnionType} and not option.read:
        kind = next(member for member in get_args(kind) if member is not NoneType)
    if get_origin(kind) is Annotated:
        kind, *checks = get_args(kind)
    words = {
        "default": field.default if option.default is None else option.default,
        "show_default": option.default is not None,
        "help": help or option.help,
        "metavar": option.metavar,
        "callback": _checked(option.read or _all_of(checks)),
        **_type_words(kind, checks, option),
        **words,
    }
    flag = option.flag or f"--{name.replace('_', '-')}"
    return click.option(flag, name, **words)


def _type_words(kind: Any, checks: Iterable[Any], option: Spec) -> dict[str, Any]:
    """Return the arguments of `click.option` for the values of a type."""
    bounds = next((check for check in checks if isinstance(check, Range)), None)
    words: dict[str, Any] = {}
    if option.choices and option.read:
        words = {"type": _AliasedChoice(option.choices, option.read), "callback": None}
    elif option.choices:
        words = {"type": click.Choice(list(option.choices))}
    elif option.read:
        words = {"type": str}
    elif kind is bool:
        words = {"is_flag": True}
    elif get_origin(kind) is tuple:
        words = {"multiple": True}
    elif get_origin(kind) is Literal:
        words = {"type": click.Choice(list(get_args(kind)))}
    elif bounds:
        number: Any = click.IntRange if kind is int else click.FloatRange
        most = None if bounds.most == MOST_COUNT else bounds.most
        words = {"type": number(bounds.low, most)}
    return words


def _all_of(checks: Iterable[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        for step in checks:
            value = step(value)
        return value

    return check


def _checked(read: Callable[[Any], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return click's callback for a function that reads a value or raises `Invalid`."""

    def callback(_ctx: click.Context, _param: click.Parameter, value: Any) -> Any:
        try:
            return read(value) if value or value == 0 else value
        except Invalid as error:
            raise click.BadParameter(f"{error} {error.hint}".rstrip()) from None

    return callback


def all_of(parameters: Mapping[str, Any]) -> Options:
    """Return the shared options among a command's parameters."""
    return Options(**{name: parameters[name] for name in declared()})


def submit_options(body: Callable[..., None]) -> Callable[..., None]:
    """Add all shared options to a command; they arrive as one argument."""

    def call(**parameters: Any) -> None:
        others = {name: parameters[name] for name in parameters.keys() - declared().keys()}
        body(all_of(parameters), **others)

    command: Body = functools.update_wrapper(call, body)
    for name in reversed(declared()):
        command = shared_option(name)(command)
    return command
