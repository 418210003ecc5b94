"""Refuse typed options that would be ignored although they seem to change a number.

Only typed options are refused; a default has no effect silently.
"""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.core import ParameterSource

from hpcbert.errors import UsageError


def refuse_typed(options: Iterable[str], context: str) -> None:
    """Refuse those of some options that were typed.

    Args:
        options: The names of their parameters.
        context: The end of the sentence: `with --like`, `without --wait`.

    Raises:
        UsageError: One of them was typed.
    """
    flags = " and ".join(_format_flag(name) for name in options if is_typed(name))
    if flags:
        verb = "have" if " and " in flags else "has"
        raise UsageError(f"{flags} {verb} no effect {context}.", hint=f"Leave {flags} out.")


def refuse_others(allowed: Iterable[str], context: str) -> None:
    """Refuse all options but some.

    Raises:
        UsageError: Another one was typed.
    """
    parameters = click.get_current_context().params
    refuse_typed((name for name in parameters if name not in {*allowed, "as_json"}), context)


def is_typed(name: str) -> bool:
    """Return whether an option of the current command was typed."""
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.COMMANDLINE


def _format_flag(name: str) -> str:
    """Return a parameter as the help shows it."""
    for param in click.get_current_context().command.params:
        if param.name == name:
            return name.upper() if isinstance(param, click.Argument) else max(param.opts, key=len)
    return name
