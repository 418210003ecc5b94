"""Refuse options that would be ignored, and name what they conflict with.

Only typed options can conflict; a default conflicts with nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from hpcbert.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


class Conflict(NamedTuple):
    """A case in which options have no effect.

    Attributes:
        options: Their parameters' names.
        when: Returns whether the case applies, from the values of all parameters.
        beside: The rest of the sentence: `with --dry-run`, `without --wait`.
    """

    options: tuple[str, ...]
    when: Callable[[Mapping[str, Any]], bool]
    beside: str


def refuse(*conflicts: Conflict) -> None:
    """Refuse the current command line if options of it conflict.

    Raises:
        UsageError: An option would be ignored.
    """
    context = click.get_current_context()
    for one in conflicts:
        if one.when(context.params):
            refuse_typed(one.options, one.beside)


def refuse_typed(options: Iterable[str], beside: str) -> None:
    """Refuse those of some options that were typed.

    Raises:
        UsageError: One of them was typed.
    """
    flags = [flag(name) for name in options if typed(name)]
    if not flags:
        return
    has = "has" if len(flags) == 1 else "have"
    raise UsageError(
        f"{' and '.join(flags)} {has} no effect {beside}.",
        hint=f"Leave {' and '.join(flags)} out.",
    )


def refuse_others(kept: Iterable[str], beside: str) -> None:
    """Refuse all options but some.

    Raises:
        UsageError: Another one was typed.
    """
    context = click.get_current_context()
    left = {*kept, "as_json"}
    refuse_typed((name for name in context.params if name not in left), beside)


def typed(name: str) -> bool:
    """Return whether an option of the current command was typed."""
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.COMMANDLINE


def flag(name: str) -> str:
    """Return how the command line spells an option, by its parameter's name.

    An argument has the name that the help shows.
    """
    command = click.get_current_context().command
    if any(one.name == name and isinstance(one, click.Argument) for one in command.params):
        return name.upper()
    words = [max(one.opts, key=len) for one in command.params if one.name == name]
    return words[0] if words else name
