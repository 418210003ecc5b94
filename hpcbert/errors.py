"""Every error that hpcbert raises on purpose.

HpcbertError                exit code 1
├── Interruption            130 Ctrl-C
├── UsageError              2   a flag or an argument is wrong
│   ├── ConfigError         2   site.toml, recipe.toml or a campaign file is wrong
│   └── Refusals            2   several of these at once
├── SchedulerError          3   Slurm refused, or could not be reached
├── IncompleteError         4   part of what was asked for is missing; the rest was written
├── RegressionError         4   a point is slower than a gate allows, or lacking
└── CheckError              5   a check that was asked for failed
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_REMEDIES = {
    errno.ENOSPC: "Make room on the file system",
    errno.EDQUOT: "Make room: your quota is used up",
    errno.EROFS: "The file system has to be writable",
    errno.EACCES: "Ask its owner for access, or name another place",
    errno.EPERM: "Ask its owner for access, or name another place",
    errno.ELOOP: "Its symbolic links lead in a circle: name the file itself",
    errno.ENAMETOOLONG: "Choose a shorter name",
    errno.ENOTDIR: "Something on the way to it is a file: name a path through directories",
    errno.EISDIR: "Name a file, not a directory",
    errno.ESTALE: "It has vanished from the file server; bring it back",
}


class HpcbertError(Exception):
    """An error with what happened, where, and one hint on how to fix it.

    Attributes:
        message: What is wrong, one or more full sentences.
        where: The file, flag or command that it is about; empty if the message says so.
        hint: What to do about it; empty if nothing helpful can be said.
    """

    exit_code = 1
    code = "error"

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def advising(self, hint: str) -> HpcbertError:
        """Return the same error with another hint."""
        return type(self)(self.message, where=self.where, hint=hint)

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


class Interruption(HpcbertError):  # noqa: N818 - nothing went wrong
    """Somebody pressed Ctrl-C."""

    exit_code = 130
    code = "interrupted"


class UsageError(HpcbertError):
    """A flag or an argument is wrong."""

    exit_code = 2
    code = "usage"


class ConfigError(UsageError):
    """A configuration file is wrong; `where` names file, and line or key."""

    code = "config"


class Refusals(UsageError):  # noqa: N818 - several errors
    """Several things are wrong at once.

    Attributes:
        each: What, in the order of who asked.
    """

    def __init__(self, each: Sequence[UsageError]) -> None:
        super().__init__(" ".join(str(one) for one in each))
        self.each = tuple(each)


class SchedulerError(HpcbertError):
    """Slurm refused what it was asked, or could not be reached."""

    exit_code = 3
    code = "scheduler"


class IncompleteError(HpcbertError):
    """Part of what was asked for is missing; what there is has been written."""

    exit_code = 4
    code = "incomplete"


class RegressionError(HpcbertError):
    """A point is slower than a gate allows, or has nothing that could be held against it.

    Attributes:
        point: Which one, among all that were compared.
    """

    exit_code = 4
    code = "regression"

    def __init__(self, message: str, *, where: str = "", hint: str = "", point: str = "") -> None:
        super().__init__(message, where=where, hint=hint)
        self.point = point


class CheckError(HpcbertError):
    """A check that was asked for failed."""

    exit_code = 5
    code = "check"


def remedy(error: OSError) -> str:
    """Return what helps where the system refused something, without a full stop; often nothing."""
    return _REMEDIES.get(error.errno or 0, "")


def refusal(error: OSError) -> HpcbertError:
    """Return the error that says what the system refused, and about which file."""
    names = [os.fsdecode(one) for one in (error.filename, error.filename2) if _named(one)]
    what = error.strerror or str(error) or type(error).__name__
    if isinstance(error, FileNotFoundError) and _homeless():
        return HpcbertError(
            "The working directory was removed.", hint="Change to another one, then repeat."
        )
    helps = remedy(error)
    return HpcbertError(
        f"{what.rstrip('.')}.", where=" -> ".join(names), hint=f"{helps}." if helps else ""
    )


def _named(filename: object) -> bool:
    return isinstance(filename, str | bytes | os.PathLike) and bool(filename)


def _homeless() -> bool:
    """Say whether the working directory is gone."""
    try:
        os.getcwd()  # noqa: PTH109 - pathlib is not loaded for this
    except OSError:
        return True
    return False
