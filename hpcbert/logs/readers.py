"""Functions outside hpcbert that read logs: installed packages offer them as entry points.

A recipe names one, and a recipe may come with somebody's campaign or archive. So hpcbert imports
nothing that the recipe names: it looks the name up among the entry points of the interpreter's
installation. The working directory, which `python -m` and an empty part of PYTHONPATH put first,
PYTHONPATH and the recipe's folder are not part of it.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hpcbert.errors import ConfigError

# Entry points of this group are readers.
GROUP = "hpcbert.grammars"
PREFIX = "entry-point:"


def find_reader(name: str) -> Callable[..., Any]:
    """Return the function that reads logs, by the name of its entry point.

    Raises:
        ConfigError: No installed package offers the name, or what it offers can't be imported.
    """
    from importlib.metadata import distributions

    entry_points = {
        entry.name: entry
        for distribution in distributions(path=installed_paths())
        for entry in distribution.entry_points
        if entry.group == GROUP
    }
    if name not in entry_points:
        names = ", ".join(sorted(entry_points)) or "none"
        raise ConfigError(
            f"log.grammar = {PREFIX + name!r} can't be used: no installed package has an "
            f"entry point of that name in the group {GROUP}.",
            hint=f"There are: {names}. Install its package in hpcbert's environment.",
        )
    try:
        with _installed_only():
            function: Callable[..., Any] = entry_points[name].load()
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"log.grammar = {PREFIX + name!r} can't be used: {error}.",
            hint="Install its package in hpcbert's environment again.",
        ) from error
    return function


def installed_paths() -> list[str]:
    """Return the part of sys.path from the installation.

    It begins with the standard library: before it are the working directory, the script's own and
    PYTHONPATH (docs.python.org, The initialization of the sys.path module search
    path). Editable installs follow it by way of .pth files.
    """
    library = os.path.realpath(sysconfig.get_path("stdlib"))
    start = [index for index, folder in enumerate(sys.path) if os.path.realpath(folder) == library]
    library_and_later = sys.path[start[0] :] if start else []
    return [folder for folder in library_and_later if os.path.isabs(folder)]  # noqa: PTH117 - a text, as sys.path has it


@contextmanager
def _installed_only() -> Iterator[None]:
    previous_path = sys.path
    sys.path = installed_paths()
    try:
        yield
    finally:
        sys.path = previous_path
