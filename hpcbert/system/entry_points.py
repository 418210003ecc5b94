"""What installed packages offer hpcbert: their entry points.

Recipes and manifests name some of them, and may come with somebody's campaign or archive. So
hpcbert imports nothing that they name: it looks the name up among the entry points of the
interpreter's installation. The working directory, which `python -m` and an empty part of PYTHONPATH
put first, PYTHONPATH and the recipe's folder are not part of it.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def list_entry_points(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group by name."""
    return _scan_packages(group, tuple(_list_installed_paths()))


@cache
def _scan_packages(group: str, paths: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    from importlib.metadata import distributions

    return {
        entry.name: entry
        for distribution in distributions(path=list(paths))
        for entry in distribution.entry_points
        if entry.group == group
    }


def load_entry_point(entry: EntryPoint) -> Any:
    """Return what an entry point offers.

    Raises:
        ImportError: It can't be imported, whatever its package raises.
    """
    previous_path = sys.path
    sys.path = _list_installed_paths()
    try:
        return entry.load()
    except ImportError:
        raise
    except Exception as error:  # a syntax error, or what the package does when it is read
        raise ImportError(f"{type(error).__name__}: {error}") from error
    finally:
        sys.path = previous_path


def _list_installed_paths() -> list[str]:
    """Return the part of sys.path from the installation.

    It begins with the standard library: before it are the working directory, the script's own and
    PYTHONPATH (docs.python.org, The initialization of the sys.path module search
    path). Editable installs follow it by way of .pth files.
    """
    library = os.path.realpath(sysconfig.get_path("stdlib"))
    start = [index for index, folder in enumerate(sys.path) if os.path.realpath(folder) == library]
    library_and_later = sys.path[start[0] :] if start else []
    return [folder for folder in library_and_later if os.path.isabs(folder)]  # noqa: PTH117 - a text, as sys.path has it
