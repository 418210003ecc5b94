"""A rendered script again: its campaign, and the same script for a retry."""

from __future__ import annotations

import contextlib
import re
import shlex
from typing import TYPE_CHECKING

from hpcbert.errors import UsageError
from hpcbert.script.directives import option

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_DIRECTIVE = "#SBATCH "
_ATTEMPT = re.compile(r"first_attempt=\d+\b")
_ARRAY = re.compile(rf"{_DIRECTIVE}--array=[\d,-]+(?:%(\d+))?")
_NAME = re.compile(r"array_name=.*(?= # )")
_COMMENT = re.compile(rf"{_DIRECTIVE}--comment=.*")
_TIME = re.compile(rf"{_DIRECTIVE}--time=.*")
_TOGETHER = re.compile(r"repeats=\([\d ]+\)")


def writes_to(text: str, directory: Path) -> bool:
    """Return whether a script belongs to the campaign that it is in, which may be a copy."""
    lines = [line for line in text.splitlines() if line.startswith("campaign=")]
    with contextlib.suppress(OSError, ValueError, IndexError):
        (word,) = shlex.split(lines[0])
        return directory.samefile(word.removeprefix("campaign="))
    return False


def retried(
    text: str,
    *,
    name: str,
    repeats: Sequence[int],
    first_attempt: int,
    exclude: Sequence[str],
    time_limit: str = "",
) -> str:
    """Return a script that runs some repeats again, and is the same otherwise, byte for byte.

    Args:
        text: The script of the point's first submission.
        name: The new job's.
        repeats: The repeats to run, as an array's indices.
        first_attempt: Number of their first attempt.
        exclude: Nodes to exclude, in addition to those that the script itself excludes.
        time_limit: Limit of one repeat; empty for the script's own.

    Raises:
        UsageError: It is not a script of this version's.
    """
    lines = text.splitlines(keepends=True)
    numbers = ",".join(map(str, repeats))
    together = not any(_ARRAY.match(line) for line in lines)
    _change(lines, re.compile(rf"{_DIRECTIVE}--job-name=.*"), lambda _: _sbatch("job-name", name))
    _change(lines, _NAME, lambda _: f"array_name={shlex.quote(name)}")
    if option(text, "comment") == option(text, "job-name"):
        _change(lines, _COMMENT, lambda _: _sbatch("comment", name))
    _change(lines, _ATTEMPT, lambda _: f"first_attempt={first_attempt}")
    if together:
        _change(lines, _TOGETHER, lambda _: f"repeats=({' '.join(map(str, repeats))})")
    else:
        _change(lines, _ARRAY, lambda old: f"{_DIRECTIVE}--array={numbers}%{old[1] or 1}")
    if time_limit:
        _change(lines, _TIME, lambda _: _sbatch("time", time_limit))
    if exclude:
        known = [node for node in [option(text, "exclude")] if node]
        last = max(at for at, line in enumerate(lines) if line.startswith(_DIRECTIVE))
        lines.insert(last + 1, _sbatch("exclude", ",".join([*known, *exclude])) + "\n")
    return "".join(lines)


def _sbatch(name: str, value: str) -> str:
    from hpcbert.script.render import directive  # imports Jinja, which watching does not need

    return f"{_DIRECTIVE}{directive(f'--{name}={value}')}"


def _change(
    lines: list[str], pattern: re.Pattern[str], new: Callable[[re.Match[str]], str]
) -> None:
    """Replace the beginning of the first line that matches a pattern.

    Raises:
        UsageError: No line does.
    """
    for at, line in enumerate(lines):
        if match := pattern.match(line):
            lines[at] = new(match) + line[match.end() :]
            return
    raise UsageError(
        f"The campaign's script has no line like {pattern.pattern}.",
        hint="Another version of hpcbert made it: submit the point again.",
    )
