"""The models with names: the facts that a log of each must have, and its name."""

from __future__ import annotations

import re
from typing import Any

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


def model_facts(model: str) -> dict[str, Any]:
    """Return the facts of a model's run, by their names in FACTS; none for an unknown model."""
    match = _SPELLING.fullmatch(model.lower())
    name = f"bert-{match[1]}" if match else ""
    if name not in SIZES:
        return {}
    hidden_size, layers = SIZES[name]
    return {"model": name, "hidden_size": hidden_size, "layers": layers}


def model_name(setting: Setting) -> str:
    """Return the name of a run's model; empty if unknown."""
    if setting.model:
        return setting.model
    model_names = _matching_models(setting)
    return model_names[0] if len(model_names) == 1 else ""


def model_heading(setting: Setting) -> str:
    """Return what a log says about its model: its name, else its sizes; empty if nothing."""
    log_sizes = {"hidden size": setting.hidden_size, "layers": setting.layers}
    sizes = (f"{name} {size}" for name, size in log_sizes.items() if size)
    return model_name(setting) or ", ".join(sizes)


def _matching_models(setting: Setting) -> list[str]:
    log_sizes = (setting.hidden_size, setting.layers)
    return [
        name
        for name, sizes in SIZES.items()
        if all(
            size in (None, model_size) for size, model_size in zip(log_sizes, sizes, strict=True)
        )
    ]
