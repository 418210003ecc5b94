"""The origin of each value of a site."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcbert.config.toml import read
from hpcbert.system.decode import keys
from hpcbert.timelimit import TimeLimit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcbert.config.site import Site


def settings(site: Site, env: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    """Return every setting's value and origin by its dotted key in site.toml.

    Args:
        site: The site as read.
        env: Environment, for HPCBERT_RUNS.
    """
    written = set(flat(read(Path(site.where))))
    overridden = {"runs": "HPCBERT_RUNS"} if env.get("HPCBERT_RUNS", "").strip() else {}
    return {
        key: (value, overridden.get(key) or (site.where if key in written else "default"))
        for key, value in flat(plain(site)).items()
    }


def plain(value: Any) -> Any:
    """Return a value as in a site.toml: tables as dicts, values written as text as text."""
    if isinstance(value, TimeLimit):
        return value.text
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in keys(value.__class__)}
    return {name: plain(one) for name, one in value.items()} if isinstance(value, dict) else value


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested tables by their dotted keys."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found.update(flat(value, f"{prefix}{name}."))
        else:
            found[f"{prefix}{name}"] = value
    return found
