"""Hatchling's metadata hook: README.md as a package index can show it.

An index has no other file of the checkout. So pictures and links that lead to one are left out: of
a link its words stay.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_HERE = r"\((?![a-z]+:)[^)\s]*\)"
# A picture and what is said about it, up to the next heading; a link that is a line of its own; the
# list of further pages; any other link.
_PICTURE = re.compile(rf"^!\[[^\]]*\]{_HERE}\n.*?(?=^## )", re.MULTILINE | re.DOTALL)
_ALONE = re.compile(rf"^\[[^\]]*\]{_HERE}\n\n", re.MULTILINE)
_PAGES = re.compile(rf"^(\[[^\]]*\]{_HERE} ·\n)+\[[^\]]*\]{_HERE}$", re.MULTILINE)
_LINK = re.compile(rf"\[([^\]]*)\]{_HERE}")


class Readme(MetadataHookInterface):
    """Sets the long description."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Add it to what pyproject.toml says."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = _PAGES.sub("The source distribution contains all documents, in `docs`.", text)
        text = _LINK.sub(r"\1", _ALONE.sub("", _PICTURE.sub("", text)))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
