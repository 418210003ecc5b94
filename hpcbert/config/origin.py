"""Where each value of a site comes from."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcbert.config.toml import read

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hpcbert.config.inventory import Site

_SECTIONS = {
    "gpus_per_node": "nodes",
    "cpus_per_gpu": "nodes",
    "interface": "nodes",
    "runtime": "container",
    "images": "container",
    "mounts": "container",
    "home": "container",
    "remap_root": "container",
    "entrypoint": "container",
    "scratch": "container",
}
_TOP = ("name", "scheduler", "runs", "sources")


def settings(site: Site, env: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    """Return every setting's value and origin by its dotted key in site.toml.

    Args:
        site: The site as read.
        env: Environment, for HPCBERT_RUNS.
    """
    written = set(_flat(read(Path(site.where)).values, ""))
    overridden = {"runs": "HPCBERT_RUNS"} if env.get("HPCBERT_RUNS") else {}
    return {
        key: (value, overridden.get(key) or (site.where if key in written else "default"))
        for key, value in _values(site)
    }


def _values(site: Site) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(site):
        value = getattr(site, field.name)
        if field.name in _TOP:
            yield field.name, value
        elif field.name == "env":
            yield from ((f"env.{name}", text) for name, text in value)
        elif field.name == "container_env":
            yield "container.env", value
        elif field.name == "frameworks":
            for name, one in value:
                yield from _flat(_as_dict(one), f"frameworks.{name}.").items()
        elif field.name != "where":
            yield f"{_SECTIONS.get(field.name, 'slurm')}.{field.name}", value


def _as_dict(settings_of_one: Any) -> dict[str, Any]:
    values = dataclasses.asdict(settings_of_one)
    tables = {name: dict(values[name]) for name in ("batch_sizes", "options")}
    return {**values, **tables}


def _flat(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat
