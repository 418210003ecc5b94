"""Functions outside hpcbert that read logs: installed packages offer them as entry points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcbert.errors import ConfigError
from hpcbert.system.entry_points import list_entry_points, load_entry_point

# Entry points of this group are readers.
GROUP = "hpcbert.grammars"
PREFIX = "entry-point:"


def find_reader(name: str) -> Callable[..., Any]:
    """Return the function that reads logs, by the name of its entry point.

    Raises:
        ConfigError: No installed package offers the name, or what it offers can't be imported.
    """
    entry_points = list_entry_points(GROUP)
    if name not in entry_points:
        names = ", ".join(sorted(entry_points)) or "none"
        raise ConfigError(
            f"log.grammar = {PREFIX + name!r} can't be used: no installed package has an "
            f"entry point of that name in the group {GROUP}.",
            hint=f"There are: {names}. Install its package in hpcbert's environment.",
        )
    try:
        function: Callable[..., Any] = load_entry_point(entry_points[name])
    except ImportError as error:
        raise ConfigError(
            f"log.grammar = {PREFIX + name!r} can't be used: {error}.",
            hint="Install its package in hpcbert's environment again.",
        ) from error
    return function
