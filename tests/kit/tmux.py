"""A program on its own terminal, driven by keys: tmux, and recorded screens."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.kit.paths import REPOSITORY
from tests.kit.waiting import until

SCREENS = REPOSITORY / "tests" / "cli" / "view" / "screens"


class Tmux:
    """A terminal in which one program runs.

    Args:
        folder: The directory of the program.
        argv: The program.
    """

    def __init__(self, folder: Path, argv: list[str], columns: int, rows: int) -> None:
        # A socket's path is short; the screen does not depend on this terminal's locale.
        self._socket = tempfile.mkdtemp(prefix="tmux")
        self._base = ["tmux", "-u", "-f", "/dev/null", "-S", f"{self._socket}/socket"]
        line = f"{shlex.join(argv)}; echo left $?; exec sleep 600"
        self.run(
            *("new-session", "-d", "-x", str(columns), "-y", str(rows)), "-c", str(folder),
            f"env -u NO_COLOR LC_ALL=C.UTF-8 bash -c {shlex.quote(line)}",
        )  # fmt: skip

    def run(self, *words: str) -> str:
        return subprocess.run(
            [*self._base, *words],
            check=True,
            capture_output=True,
            encoding="utf-8",
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        ).stdout

    def end(self) -> None:
        self.run("kill-server")
        shutil.rmtree(self._socket)

    def keys(self, *names: str) -> None:
        for name in names:
            self.run("send-keys", name)

    def screen(self) -> str:
        return self.run("capture-pane", "-p")

    def shows(self, words: str) -> str:
        """Wait until a text is on the screen, and return the screen.

        The rest of the screen may be half drawn.
        """
        return until(
            lambda: text if words in (text := self.screen()) else "",
            lambda: f"{words!r} on\n{self.screen()}",
        )

    def no_longer_shows(self, words: str) -> None:
        """Wait until a text has left the screen.

        This is needed after an escape: together with the next key it would be that key with Alt.
        """
        until(lambda: words not in self.screen(), lambda: f"no {words!r} on\n{self.screen()}")

    def shows_recorded(self, name: str) -> str:
        """Wait until the screen equals the recorded one, and return it.

        With RECORD_SCREENS in the environment it is recorded first.
        """
        path = SCREENS / f"{name}.txt"
        if os.environ.get("RECORD_SCREENS"):
            path.write_text(normal(self.screen()))
        expected = normal(path.read_text())
        return until(
            lambda: text if normal(text := self.screen()) == expected else "",
            lambda: f"{expected} on\n{normal(self.screen())}",
        )


def normal(screen: str) -> str:
    """Return a screen without the parts that differ from run to run."""
    screen = re.sub(r"\d{8}T\d{6}Z-[\w-]*", lambda match: "C" * len(match[0]), screen)
    screen = re.sub(r"\d{1,8}…[\w-]+", lambda match: "C" * len(match[0]), screen)
    screen = re.sub(r"CANCELLED .*", "CANCELLED", screen)
    screen = re.sub(r"\d:\d\d:\d\d", "H:MM:SS", screen)
    screen = re.sub(r"ends \d\d:\d\d", "ends HH:MM", screen)
    # Where the sentence on a repeat folds, and so the empty lines left, depends on how long its job's
    # name is.
    screen = re.sub(r"(repeat \d  job) .*\n(arrows)", r"\1 ...\n\2", screen, flags=re.DOTALL)
    text = "\n".join(line.rstrip() for line in screen.splitlines())
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"
