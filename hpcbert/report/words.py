"""Words that come from paths and logs, made fit to be shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcbert.model import Run


def plain(text: str) -> str:
    """Return text on one line, without control characters that could steer a terminal."""
    flat = " ".join(text.split())
    return "".join(char if char.isprintable() else "�" for char in flat)


def why(run: Run) -> str:
    """Return the reasons why a repeat doesn't count."""
    return plain("; ".join(map(str, run.reasons)))
