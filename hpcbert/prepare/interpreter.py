"""The Python for a virtual environment: one of the release that the recipe names."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpcbert.errors import IncompleteError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hpcbert.prepare.parts import Context

_QUESTION = "import sys; print('%d.%d %d.%d.%d' % (sys.version_info[:2] + sys.version_info[:3]))"
# Directories below the home directory where tools install several Pythons.
_COLLECTIONS = (".pyenv/versions/{}.*", ".local/share/uv/python/cpython-{}.*")


class Interpreter(NamedTuple):
    """An interpreter and its full version, `3.9.18`."""

    path: str
    version: str


def find(release: str, context: Context, env: Mapping[str, str]) -> Interpreter:
    """Return an interpreter of a release of Python: the named one, or one found here.

    Args:
        release: Such as `3.9`.
        context: The context.
        env: The environment to ask interpreters in.

    Raises:
        IncompleteError: There is none; the hint says how to name one.
    """
    seen = []
    for path in (context.python,) if context.python else _candidates(release, context):
        outcome = context.run([path, "-c", _QUESTION], env=env, timeout=30.0)
        found, _, version = outcome.stdout.strip().partition(" ")
        if outcome.ok and found == release:
            return Interpreter(path, version)
        seen.append(f"{path} is {version}" if outcome.ok else f"{path} does not run")
    where = "--python" if context.python else f"python{release} on PATH, pyenv's and uv's"
    looked = f"looked at {where}: {'; '.join(seen)}" if seen else f"looked for {where}"
    raise IncompleteError(
        f"there is no Python {release} here: {looked}",
        hint=f"Put python{release} on PATH, or name it: hpcbert prepare --python "
        f"/path/to/python{release}. For an environment that you made yourself, set "
        "frameworks.NAME.python in the site.toml.",
    )


def _candidates(release: str, context: Context) -> Iterator[str]:
    names = (f"python{release}", "python3", "python")
    found = [shutil.which(name, path=context.env.get("PATH")) for name in names]
    home = Path(context.env.get("HOME") or "/")
    for pattern in _COLLECTIONS:
        known = sorted(home.glob(f"{pattern.format(release)}/bin/python{release}"))
        found += map(str, reversed(known))
    yield from dict.fromkeys(path for path in (*found, sys.executable) if path)
