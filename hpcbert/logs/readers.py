"""Functions outside hpcbert that read logs: where they may come from.

A recipe names one, and a recipe may come with somebody's campaign. So a module is searched only in
the interpreter's installation: not in the working directory, which `python -m` and an empty part of
PYTHONPATH put first, nor in PYTHONPATH, nor next to the recipe.
"""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hpcbert.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Entry points of this group are readers.
GROUP = "hpcbert.grammars"
_ENTRY_POINT = "entry-point:"


def find(name: str, *, returns: type) -> Callable[..., Any]:
    """Return a function that reads logs.

    Args:
        name: `module:function`, or `entry-point:name` for one that a package offers in the group.
        returns: The return annotation that it must have.

    Raises:
        ConfigError: It is not installed, or is not annotated as a reader of logs.
    """
    target = name
    if name.startswith(_ENTRY_POINT):
        target = _entry_point(name.removeprefix(_ENTRY_POINT))
    module, _, attribute = target.partition(":")
    try:
        with _installed_only():
            function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"log.grammar = {name!r} can't be used: {error}.",
            hint="Install its package in hpcbert's environment.",
        ) from error
    # A recipe that came with somebody's campaign may name any function at all: one that is
    # annotated to return a Reading was written to be named here.
    returned = getattr(function, "__annotations__", {}).get("return")
    if returned is not returns and str(returned).rpartition(".")[2] != returns.__name__:
        raise ConfigError(
            f"log.grammar = {name!r} can't be used: it is not annotated as a reader of logs.",
            hint="Annotate the function: it returns a hpcbert.logs.scan.Reading.",
        )
    return function


def _entry_point(name: str) -> str:
    """Return the `module:function` that an installed package offers under a name.

    Raises:
        ConfigError: None does.
    """
    from importlib.metadata import distributions

    found = {
        one.name: one.value
        for distribution in distributions(path=installed())
        for one in distribution.entry_points
        if one.group == GROUP
    }
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise ConfigError(
            f"log.grammar = {_ENTRY_POINT + name!r} can't be used: no installed package has an "
            f"entry point of that name in the group {GROUP}.",
            hint=f"There are: {known}. Or write module:function.",
        )
    return found[name]


def installed() -> list[str]:
    """Return the part of sys.path from the installation.

    It begins with the standard library: before it are the working directory, the script's own and
    PYTHONPATH (docs.python.org, The initialization of the sys.path module search
    path). Editable installs follow it by way of .pth files.
    """
    library = os.path.realpath(sysconfig.get_path("stdlib"))
    start = [at for at, one in enumerate(sys.path) if os.path.realpath(one) == library]
    after = sys.path[start[0] :] if start else []
    return [one for one in after if os.path.isabs(one)]  # noqa: PTH117 - a text, as sys.path has it


@contextmanager
def _installed_only() -> Iterator[None]:
    before = sys.path
    sys.path = installed()
    try:
        yield
    finally:
        sys.path = before
