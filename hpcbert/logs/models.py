"""The models with names: the facts that a log of each must have, and its name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcbert.logs.setting import Setting

# Hidden size and layers (google-research/bert@eedf571, README.md).
SIZES = {
    "bert-tiny": (128, 2),
    "bert-mini": (256, 4),
    "bert-small": (512, 4),
    "bert-medium": (512, 8),
    "bert-base": (768, 12),
    "bert-large": (1024, 24),
}
_SPELLING = re.compile(r"(?:bert[-_])?([a-z]+)(?:[-_](?:un)?cased)?")


def stated_by(model: str) -> dict[str, Any]:
    """Return the facts of a model's run, by their names in FACTS; none for an unknown model."""
    spelt = _SPELLING.fullmatch(model.lower())
    name = f"bert-{spelt[1]}" if spelt else ""
    if name not in SIZES:
        return {}
    hidden_size, layers = SIZES[name]
    return {"model": name, "hidden_size": hidden_size, "layers": layers}


def name_of(setting: Setting) -> str:
    """Return the name of a run's model; empty if unknown."""
    if setting.model:
        return setting.model
    alike = _models_of(setting)
    return alike[0] if len(alike) == 1 else ""


def heading_of(setting: Setting) -> str:
    """Return what a log says about its model: its name, else its sizes; empty if nothing."""
    stated = {"hidden size": setting.hidden_size, "layers": setting.layers}
    sizes = (f"{name} {size}" for name, size in stated.items() if size)
    return name_of(setting) or ", ".join(sizes)


def _models_of(setting: Setting) -> list[str]:
    stated = (setting.hidden_size, setting.layers)
    return [
        name
        for name, sizes in SIZES.items()
        if all(size in (None, its) for size, its in zip(stated, sizes, strict=True))
    ]
