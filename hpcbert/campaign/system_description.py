"""The nodes and accelerators of a system as MLPerf's submitters describe it next to their logs.

`SUBMITTER/systems/SYSTEM.json` describes the system of `SUBMITTER/results/SYSTEM/BENCHMARK/*.txt`
(mlcommons/policies, submission_rules.adoc); a copy may lie in the folder of the logs or above it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from hpcbert.logs.layout import printable_path

_KEYS = {"nodes": "number_of_nodes", "gpus_per_node": "accelerators_per_node"}
_MAX_BYTES = 1 << 20
# Parents of a log whose `systems` folder may describe it: results/SYSTEM/BENCHMARK.
_LEVELS = 3


class SystemDescription(NamedTuple):
    """The shape of a system, and the file that states it; empty without one."""

    nodes: int | None = None
    gpus_per_node: int | None = None
    source: str = ""


@cache
def read_system(folder: Path) -> SystemDescription:
    """Return the description of the system whose logs a folder holds; empty if files differ."""
    for paths in _list_descriptions(folder.absolute()):
        systems = [system for path in paths if (system := _read_file(path))]
        if systems:
            shapes = {system[:2] for system in systems}
            return systems[0] if len(shapes) == 1 else SystemDescription()
    return SystemDescription()


def _read_file(path: Path) -> SystemDescription | None:
    try:
        if path.stat().st_size > _MAX_BYTES:
            return None
        document = json.loads(path.read_bytes())
        counts = {name: int(document[key]) for name, key in _KEYS.items()}
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return None
    return (
        SystemDescription(**counts, source=printable_path(path))
        if min(counts.values()) > 0
        else None
    )


def _list_descriptions(folder: Path) -> Iterator[Sequence[Path]]:
    """Yield the files that may describe the system, those of one place together."""
    for parent in (folder, *folder.parents[: _LEVELS - 1]):
        yield [parent.parent.parent / "systems" / f"{parent.name}.json"]
    for parent in (folder, folder.parent):
        yield sorted(parent.glob("*.json"))
