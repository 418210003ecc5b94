"""Hatchling's build hook: man pages of the program that is built, into share/man/man1."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ManPages(BuildHookInterface[Any]):
    """Adds them to a wheel; an editable installation gets none, because they would stay behind."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the pages before the wheel is assembled."""
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        from hpcbert.cli.help import pages

        folder = Path(self._folder.name)
        for name, text in pages().items():
            (folder / name).write_text(text, encoding="utf-8")
            build_data["shared_data"][str(folder / name)] = f"share/man/man1/{name}"

    @property
    def _folder(self) -> tempfile.TemporaryDirectory[str]:
        if not hasattr(self, "_made"):
            self._made = tempfile.TemporaryDirectory(prefix="hpcbert-man-")
        return self._made

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the pages."""
        self._folder.cleanup()
