"""Files of a campaign that differ from what ran, because secrets were masked to archive them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcbert.campaign import store
from hpcbert.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# An archive's description of itself; it stays in a directory that was unpacked.
INDEX = "archive.json"


@dataclass(frozen=True)
class Masking:
    """Size and SHA-256 of a file before its secrets were masked, and after."""

    then: Mapping[str, Any]
    now: Mapping[str, Any]


def masks(directory: Path) -> dict[str, Masking]:
    """Return the files of a campaign that were masked when it was archived, by path."""
    try:
        index = store.read_json(directory / INDEX)
        return {
            name: Masking(
                {key: then[key] for key in ("bytes", "sha256")},
                {key: index["files"][name][key] for key in ("bytes", "sha256")},
            )
            for name, then in index["masked"].items()
        }
    except (UsageError, KeyError, TypeError, AttributeError):
        return {}
