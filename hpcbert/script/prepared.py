"""What `prepare` wrote down: where the records of a source and of data lie, and what they hold."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcbert.campaign import store
from hpcbert.errors import UsageError

if TYPE_CHECKING:
    from hpcbert.config.recipe import Recipe
    from hpcbert.config.site import Site

SCHEMA = 1


def record(path: Path) -> dict[str, Any]:
    """Return what was written down; nothing where it is missing, damaged or of another schema."""
    try:
        data = store.read_json(path)
    except UsageError:
        return {}
    return data if isinstance(data, dict) and data.get("schema") == SCHEMA else {}


def source_record(site: Site, recipe: Recipe) -> Path:
    """Return where a checkout's record lies: beside the checkout, which has its name."""
    name = recipe.source.repository.rstrip("/").rpartition("/")[2].removesuffix(".git")
    name = re.sub(r"[^A-Za-z0-9._-]", "_", name) + f"-{recipe.source.commit[:12]}"
    if recipe.source.patches:
        total = hashlib.sha256()
        for patch in recipe.source.patches:
            total.update((Path(recipe.folder) / patch).read_bytes())
        name += f"+{total.hexdigest()[:8]}"
    return Path(site.sources) / f"{name}.json"


def data_record(site: Site, recipe: Recipe) -> Path:
    """Return where it is written down what the data of a framework were found to be."""
    return Path(site.sources) / f"{recipe.name}+data.json"
