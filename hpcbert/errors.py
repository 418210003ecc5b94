"""Every error that hpcbert raises on purpose.

HpcbertError                exit code 1
├── UsageError              2   a flag or an argument is wrong
│   └── ConfigError         2   site.toml, recipe.toml or a campaign file is wrong
├── SchedulerError          3   Slurm refused, or could not be reached
├── IncompleteError         4   part of what was asked for is missing; the rest was written
└── CheckError              5   a check that was asked for failed
"""

from __future__ import annotations


class HpcbertError(Exception):
    """An error with what happened, where, and one hint on how to mend it.

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

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


class UsageError(HpcbertError):
    """A flag or an argument is wrong."""

    exit_code = 2
    code = "usage"


class ConfigError(UsageError):
    """A configuration file is wrong; `where` names file, and line or key."""

    code = "config"


class SchedulerError(HpcbertError):
    """Slurm refused what it was asked, or could not be reached."""

    exit_code = 3
    code = "scheduler"


class IncompleteError(HpcbertError):
    """Part of what was asked for is missing; what there is has been written."""

    exit_code = 4
    code = "incomplete"


class CheckError(HpcbertError):
    """A check that was asked for failed."""

    exit_code = 5
    code = "check"
