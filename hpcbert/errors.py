"""Every error that hpcbert raises on purpose.

HpcbertError                exit code 1
├── Interruption            130 Ctrl-C
├── UsageError              2   a flag or an argument is wrong
│   ├── ConfigError         2   site.toml, recipe.toml or a campaign file is wrong
│   └── Refusals            2   several of these at once
├── SchedulerError          3   Slurm refused, or could not be reached
├── IncompleteError         4   part of the requested result is missing; the rest was written
├── UnfinishedError         6   all that is missing still waits or runs
├── RegressionError         7   a point is slower than a gate allows, or missing
│   └── PendingError        6   all that a gate lacks of a point waits or runs
└── CheckError              5   a requested check failed
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence

_REMEDIES = {
    errno.ENOSPC: "Free some space on the file system",
    errno.EDQUOT: "Free some space: your quota is used up",
    errno.EROFS: "The file system is read-only: name a path on another one",
    errno.EACCES: "Ask its owner for access, or name another place",
    errno.EPERM: "Ask its owner for access, or name another place",
    errno.ELOOP: "Its symbolic links lead in a circle: name the file itself",
    errno.ENAMETOOLONG: "Choose a shorter name",
    errno.ENOTDIR: "A part of the path is a file: name a path of directories",
    errno.EISDIR: "Name a file, not a directory",
    errno.ESTALE: "The file has vanished from the file server; restore it",
}


class HpcbertError(Exception):
    """An error with what happened in full sentences, where, and one hint on how to fix it.

    Attributes:
        where: The file, flag or command concerned; empty if the message has it.
    """

    exit_code = 1
    code = "error"

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def with_hint(self, hint: str) -> HpcbertError:
        """Return the same error with another hint."""
        return type(self)(self.message, where=self.where, hint=hint)

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


class Interruption(HpcbertError):  # noqa: N818 - not a failure
    """The user pressed Ctrl-C."""

    exit_code = 130
    code = "interrupted"


class UsageError(HpcbertError):
    """A flag or an argument is wrong."""

    exit_code = 2
    code = "usage"


class ConfigError(UsageError):
    """A configuration file is wrong; `where` names file, and line or key."""

    code = "config"


def refuse_ineffective(flag: str, context: str) -> UsageError:
    """Return the error about an option without an effect; `context` ends the sentence."""
    name = flag.partition("=")[0]
    return UsageError(f"{flag} has no effect {context}.", hint=f"Leave {name} out.")


class Refusals(UsageError):  # noqa: N818 - several errors
    """Several things are wrong at once; `each` has the errors, in the order of the checks."""

    def __init__(self, usage_errors: Sequence[UsageError]) -> None:
        super().__init__(" ".join(str(usage_error) for usage_error in usage_errors))
        self.each = tuple(usage_errors)


class SchedulerError(HpcbertError):
    """Slurm refused a request, or could not be reached."""

    exit_code = 3
    code = "scheduler"


class IncompleteError(HpcbertError):
    """Part of the requested result is missing; the rest has been written."""

    exit_code = 4
    code = "incomplete"


class UnfinishedError(HpcbertError):
    """Nothing of the requested result is missing but what still waits or runs."""

    exit_code = 6
    code = "unfinished"


class RegressionError(HpcbertError):
    """A point is slower than a gate allows, or missing.

    Args:
        case: The results that the point is of, and its name.
    """

    exit_code = 7
    code = "regression"

    def __init__(self, message: str, *, case: tuple[str, str], hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.case = case


class PendingError(RegressionError):
    """A gate can't judge a point yet: all repeats that it lacks wait or run."""

    exit_code = UnfinishedError.exit_code
    code = UnfinishedError.code


class CheckError(HpcbertError):
    """A requested check failed."""

    exit_code = 5
    code = "check"


def format_count(number: int, singular: str, plural: str = "") -> str:
    """Return a number with its words: `1 repeat`, `3 repeats`; `1 job waits`, `3 jobs wait`."""
    return f"{number} {singular if number == 1 else plural or f'{singular}s'}"


def join_names(names: Iterable[str], *, most: int = 20) -> str:
    """Return the first names, and the number of the others."""
    every = list(names)
    text = ", ".join(every[:most])
    return f"{text} and {len(every) - most} more" if len(every) > most else text


def find_remedy(error: OSError) -> str:
    """Return a remedy for what the system refused, without a full stop; often none."""
    return _REMEDIES.get(error.errno or 0, "")


def describe_error(error: BaseException) -> str:
    """Return what an error says, without the number and the path of one of the system's."""
    text = error.strerror if isinstance(error, OSError) else ""
    return (text or str(error) or type(error).__name__).rstrip(".")


def explain_os_error(error: OSError) -> HpcbertError:
    """Turn an error of the system into one of hpcbert that names the file."""
    filenames = (error.filename, error.filename2)
    names = [
        os.fsdecode(filename)
        for filename in filenames
        if isinstance(filename, str | bytes | os.PathLike) and filename
    ]
    if isinstance(error, FileNotFoundError):
        try:
            os.getcwd()  # noqa: PTH109 - pathlib is not loaded for this
        except OSError:
            return HpcbertError(
                "The working directory was removed.",
                hint="Change to another one, then run the command again.",
            )
    advice = find_remedy(error)
    hint = f"{advice}." if advice else ""
    return HpcbertError(f"{describe_error(error)}.", where=" -> ".join(names), hint=hint)
