"""What one check of the doctor found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        status: `ok`, `warn` or `fail`.
        hint: What to do about it; empty if all is well.
        change: Name of the setting, package or file to change, where there is one.
    """

    name: str
    status: str
    detail: str
    hint: str = ""
    change: str = ""
