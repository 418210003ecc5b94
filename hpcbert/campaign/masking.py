"""Files of a campaign that are no longer what ran, because secrets were masked to archive them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcbert.campaign import store
from hpcbert.errors import UsageError
from hpcbert.system.lazy import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# What an archive says of itself; it stays in a directory that was unpacked.
INDEX = "archive.json"


@dataclass(frozen=True)
class Masking:
    """Bytes and SHA-256 of a file before its secrets were masked, and since."""

    then: Mapping[str, Any]
    now: Mapping[str, Any]


def masks(directory: Path) -> dict[str, Masking]:
    """Return which files of a campaign were masked when it was archived, by path."""
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
