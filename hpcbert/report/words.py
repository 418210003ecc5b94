"""Words that come from paths and logs, made fit to be shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcbert.model import Row, Run

_SHOWN = 3


def plain(text: str) -> str:
    """Return text on one line, without control characters that could steer a terminal."""
    flat = " ".join(text.split())
    return "".join(char if char.isprintable() else "�" for char in flat)


def why(run: Run) -> str:
    """Return the reasons why a repeat doesn't count."""
    return plain("; ".join(map(str, run.reasons)))


def earlier(run: Run) -> tuple[str, ...]:
    """Return what became of a repeat's other attempts, a sentence each."""
    return tuple(
        plain(
            f"repeat {run.repeat} attempt {one.attempt}"
            + (f" on {','.join(one.nodes)}" if one.nodes else "")
            + f" was {one.state}"
            + (f": {one.detail}" if one.detail else "")
        )
        for one in run.attempts
        if one.attempt != run.attempt
    )


def differences(row: Row) -> tuple[str, ...]:
    """Return in what a row's nodes differ, the first few as a sentence each."""
    shown = [plain(str(one)) for one in row.differences[:_SHOWN]]
    more = len(row.differences) - len(shown)
    return (*shown, f"{more} more: --json has them all") if more else tuple(shown)
