"""The parts of a command's time, in a line for the table, next to a missed goal.

One run under cProfile on one core, so that the command does not start other processes. The cost of
cProfile itself makes many short calls look slower than they are.
"""

from __future__ import annotations

import os
import pstats
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

# A function in `pstats`: file, line, name.
Function = tuple[str, int, str]

_IMPORT = ("<frozen importlib._bootstrap>", "_find_and_load")
_WAITS = {
    "<built-in method posix.fsync>": "flushing files",
    "<built-in method time.sleep>": "waiting for the clock",
    "<built-in method posix.waitpid>": "other programs",
    "<method 'poll' of 'select.poll' objects>": "other programs",
    "<method 'poll' of 'select.epoll' objects>": "other programs",
    "<built-in method select.select>": "other programs",
    "<built-in method _posixsubprocess.fork_exec>": "other programs",
}
_LIBRARIES = "libraries"
_SHOWN, _LEAST = 5, 0.04


def shares(command: list[str], folder: Path, timeout: float) -> str:
    """Return the largest parts of a command's time.

    Args:
        command: `python -m hpcbert …`.
        folder: Its directory.
        timeout: Its limit in seconds.
    """
    python, *words = command
    core = str(min(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "profile")
        profiled = [python, "-m", "cProfile", "-o", str(file), *words]
        subprocess.run(
            ["taskset", "-c", core, *profiled],
            cwd=folder,
            capture_output=True,
            check=False,
            timeout=timeout,
        )
        stats = pstats.Stats(str(file)).stats  # type: ignore[attr-defined]
    found = parts(stats)
    whole = sum(found.values())
    longest = sorted(found.items(), key=lambda part: -part[1])[:_SHOWN]
    most = [(name, n / whole) for name, n in longest if n >= _LEAST * whole]
    return ", ".join(f"{name} {share:.0%}" for name, share in most)


def parts(
    stats: dict[Function, tuple[int, int, float, float, dict[Function, tuple[float, ...]]]],
) -> dict[str, float]:
    """Return the seconds of each part: imports, waiting, hpcbert's packages."""
    found: dict[str, float] = defaultdict(float)
    for function, (_, _, own, whole, callers) in stats.items():
        file, _, name = function
        if (file, name) == _IMPORT:
            found["imports"] += whole
        elif name in _WAITS:
            found[_WAITS[name]] += own
        elif file == "~" and callers:
            # The time of Python itself belongs to the caller.
            for caller, figures in callers.items():
                found[_package(caller)] += figures[2]
        else:
            found[_package(function)] += own
    found.pop("", None)
    # The rest belongs to libraries: the imports already include calls that modules make as they
    # load.
    rest = sum(figures[2] for figures in stats.values()) - sum(found.values())
    found[_LIBRARIES] = max(0.0, found[_LIBRARIES] + rest)
    return found


def _package(function: Function) -> str:
    file, _, name = function
    if name == "<module>" or "importlib" in file:
        return ""  # Included in the imports.
    names = Path(file).parts
    if "hpcbert" not in names:
        return _LIBRARIES
    at = len(names) - 1 - names[::-1].index("hpcbert")
    return "/".join(names[at : at + 2])


if __name__ == "__main__":
    print(shares([sys.executable, "-m", "hpcbert", *sys.argv[1:]], Path.cwd(), 600))
