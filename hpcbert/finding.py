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
        nodes: The nodes that it was found on; empty: on none, or on this machine.
        remedy: What to type, where that is known: options of hpcbert, a command, or what the
            site.toml is to say (`site.toml: KEY = VALUE`).
    """

    name: str
    status: str
    detail: str
    hint: str = ""
    change: str = ""
    nodes: tuple[str, ...] = ()
    remedy: str = ""
