"""The `#SBATCH` options of a rendered script, read from its text."""

from __future__ import annotations

import functools
import re
import shlex
from typing import TYPE_CHECKING

from hpcbert.config.slurmwords import values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcbert.model import Array

DIRECTIVE = "#SBATCH "
_NAMES = frozenset({"array", "comment", "error", "job-name", "output"})
_QUOTED = re.compile(r"[\\\"']")
# The comments and empty lines before the first command: sbatch reads no further (sbatch(1)).
_HEAD = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\n)*(?:#[^\n]*)?")


def option(text: str, name: str) -> str:
    """Return the value of an option in a script's `#SBATCH` lines; the last one wins."""
    return _options(text).get(name, "")


def request(text: str) -> frozenset[tuple[str, str]]:
    """Return the options of a script that say what it requests, and not what it is called."""
    return frozenset(one for one in _options(text).items() if one[0] not in _NAMES)


@functools.lru_cache(maxsize=1)
def _options(text: str) -> Mapping[str, str]:
    """Return all options of a script; kept, because callers ask for many, one script at a time."""
    head = _HEAD.match(text)
    lines = head[0].split("\n") if head else ()
    lines = [line for line in lines if line.startswith(DIRECTIVE)]
    return values([word for line in lines for word in _words(line)[1:]])


def _words(line: str) -> list[str]:
    # shlex reads a letter at a time, which for a thousand scripts takes seconds.
    return shlex.split(line) if _QUOTED.search(line) else line.split()


def indices(numbers: Sequence[int]) -> str:
    """Return array indices as sbatch takes them: `1-5` or `2,4,7`."""
    first, last = min(numbers), max(numbers)
    if len(numbers) > 1 and sorted(numbers) == list(range(first, last + 1)):
        return f"{first}-{last}"
    return ",".join(map(str, numbers))


def narrowed(text: str, array: Array) -> list[str]:
    """Return sbatch's options for an array that is a part of its script's repeats."""
    spans, _, most = option(text, "array").partition("%")
    if array.together or spans == indices(array.indices):
        return []
    names = ["job-name"]
    names += ["comment"] if option(text, "comment") == option(text, "job-name") else []
    return [
        f"--array={indices(array.indices)}%{most or 1}",
        *(f"--{name}={array.name}" for name in names),
    ]


def asked(text: str, array: Array) -> dict[str, str]:
    """Return the request of an array's script, by the controller's keys."""
    nodes, each = option(text, "nodes"), option(text, "ntasks-per-node")
    return {
        "JobName": array.name,
        "ArrayTaskThrottle": option(text, "array").partition("%")[2],
        "NumNodes": nodes,
        "NumTasks": str(int(nodes) * int(each)) if nodes and each else "",
        "TimeLimit": option(text, "time"),
        "Partition": option(text, "partition"),
        "Account": option(text, "account"),
        "QOS": option(text, "qos"),
        "Requeue": str(int(f"\n{DIRECTIVE}--requeue\n" in text)),
        "StdOut": option(text, "output").replace("%%", "%"),
    }
