"""The end of a log, in a pane that shows it while it grows."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hpcbert.flows.following import newest_log
from hpcbert.logs.lines import NotALogError, open_log

if TYPE_CHECKING:
    from pathlib import Path

    from hpcbert.campaign.repeats import Repeat

_BYTES = 1 << 16


class Tail:
    """The last lines of the log of the repeat at the cursor.

    Attributes:
        lines: At least one.
        title: The repeat of the log.
        fresh: Whether the log is another one than before.
    """

    def __init__(self) -> None:
        self.lines: list[str] = [""]
        self.title = ""
        self.fresh = True
        self._known: tuple[Path | None, int] | None = None

    def read(self, repeat: Repeat) -> bool:
        """Look at a repeat's newest log, and return whether anything is new."""
        log = newest_log(repeat)
        path = log.path if log else None
        name = f"{repeat.array.point.key} repeat {repeat.number}"
        try:
            now = (path, path.stat().st_size if path else 0)
            if now == self._known and self.title.startswith(name):
                return False
            self.fresh = self._known is None or self._known[0] != path
            self._known = now
            self.lines = _end(path) if path else ["The repeat has no log yet."]
        except (NotALogError, OSError) as error:
            self.lines = [f"The log {error}."]
        self.title = f"{name}  {path.name if path else ''}".rstrip()
        return True


def _end(path: Path) -> list[str]:
    descriptor, size = open_log(path)
    with os.fdopen(descriptor, "rb") as file:
        file.seek(max(0, size - _BYTES))
        data = file.read(_BYTES)
    text = data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    lines = text.expandtabs().split("\n")
    return (lines[1:] if size > _BYTES and len(lines) > 1 else lines) or [""]
