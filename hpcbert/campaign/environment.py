"""The nodes' fingerprints in a campaign: read, and compared with each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from hpcbert.campaign import fingerprint
from hpcbert.campaign.fingerprint import (
    Fingerprint,
    NodeSample,
    collect_facts,
    find_differences_between,
    find_differences_within,
)
from hpcbert.model import Group, Measured
from hpcbert.results.reduce import BASELINE
from hpcbert.system import files

ENV_FOLDER = "env"
_MAX_FILES = 100_000


class Environments:
    """The fingerprints of a campaign; its folder is listed once.

    Args:
        directory: The campaign.
    """

    def __init__(self, directory: Path) -> None:
        self.folder = directory / ENV_FOLDER

    @cached_property
    def _names(self) -> list[str]:
        try:
            names = (path.name for path in self.folder.iterdir())
            file_names = [name for name, _ in zip(names, range(_MAX_FILES), strict=False)]
        except OSError:
            return []
        return sorted(name for name in file_names if not name.startswith("."))

    def names(self, key: str, repeat: int, attempt: int, ending: str = ".json") -> tuple[str, ...]:
        """Return the names of the files that one attempt left, one per node, in order.

        An unfinished fingerprint is hidden or has another ending.
        """
        start = f"{key}.{repeat}.{attempt}."
        return tuple(
            name for name in self._names if name.startswith(start) and name.endswith(ending)
        )

    def of(self, key: str, repeat: int, attempt: int) -> tuple[Fingerprint, ...]:
        """Return the fingerprints of one attempt; damaged ones are skipped."""
        fingerprints = []
        for name in self.names(key, repeat, attempt):
            with suppress(OSError):
                raw = files.read(self.folder / name, max_bytes=fingerprint.LARGEST)
                fingerprints.append(fingerprint.parse(raw))
        return tuple(
            node_fingerprint for node_fingerprint in fingerprints if node_fingerprint is not None
        )


def compare_points(points: Iterable[tuple[Measured, Sequence[NodeSample]]]) -> tuple[Measured, ...]:
    """Return points with the facts of their nodes, and with the differences between these.

    A table's points are also compared with its baseline, the unit of its speedups.

    Args:
        points: Each with the fingerprints of its valid runs.
    """
    point_samples = [(point, tuple(node_samples)) for point, node_samples in points]
    baselines: dict[Group, tuple[NodeSample, ...]] = {}
    by_size = sorted(point_samples, key=lambda pair: (pair[0].shape.gpus, pair[0].shape.nodes))
    for point, node_samples in sorted(by_size, key=lambda pair: pair[0].shape != BASELINE):
        if node_samples:
            baselines.setdefault(point.group, node_samples)
    return tuple(
        replace(
            point,
            differences=(
                *find_differences_within(node_samples),
                *find_differences_between(baselines.get(point.group, ()), node_samples),
            ),
            facts=collect_facts(node_samples),
        )
        for point, node_samples in point_samples
    )
