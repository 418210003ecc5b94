"""The origin of each value of a site."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcbert.config.site import Site
from hpcbert.config.toml import read
from hpcbert.system.decode import document_fields
from hpcbert.timelimit import TimeLimit


def list_origins(site: Site, env: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    """Return every setting's value and origin by its dotted key in site.toml.

    Args:
        site: The site as read.
        env: Environment, for HPCBERT_RUNS.
    """
    file_keys = set(flatten(read(Path(site.where))))
    variable_names = {"runs": "HPCBERT_RUNS"} if env.get("HPCBERT_RUNS", "").strip() else {}
    return {
        key: (value, variable_names.get(key) or (site.where if key in file_keys else "default"))
        for key, value in flatten(to_plain(site)).items()
    }


def to_plain(value: Any) -> Any:
    """Return a value as in a site.toml: tables as dicts, values written as text as text."""
    if isinstance(value, TimeLimit):
        return value.text
    if dataclasses.is_dataclass(value):
        return {
            field.name: to_plain(getattr(value, field.name))
            for field in document_fields(value.__class__)
        }
    return (
        {name: to_plain(entry) for name, entry in value.items()}
        if isinstance(value, dict)
        else value
    )


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested tables by their dotted keys."""
    entries: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            entries.update(flatten(value, f"{prefix}{name}."))
        else:
            entries[f"{prefix}{name}"] = value
    return entries
