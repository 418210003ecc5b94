"""The nodes' fingerprints in a campaign: read, and compared with each other."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from hpcbert.campaign import fingerprint
from hpcbert.campaign.fingerprint import Fingerprint, NodeSample, between, known_of, within
from hpcbert.results.reduce import BASELINE
from hpcbert.system import files

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from hpcbert.model import Group, Measured

FOLDER = "env"
_MOST = 100_000


class Environments:
    """The fingerprints of a campaign; its folder is listed once.

    Args:
        directory: The campaign.
    """

    def __init__(self, directory: Path) -> None:
        self.folder = directory / FOLDER

    @cached_property
    def _names(self) -> list[str]:
        try:
            names = (path.name for path in self.folder.iterdir())
            some = [name for name, _ in zip(names, range(_MOST), strict=False)]
        except OSError:
            return []
        return sorted(name for name in some if not name.startswith("."))

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
                raw = files.read(self.folder / name, most=fingerprint.LARGEST)
                fingerprints.append(fingerprint.parse(raw))
        return tuple(one for one in fingerprints if one is not None)


def compared(points: Iterable[tuple[Measured, Sequence[NodeSample]]]) -> tuple[Measured, ...]:
    """Return points with the facts of their nodes, and with the differences between these.

    A table's points are also compared with its baseline, the unit of its speedups.

    Args:
        points: Each with the fingerprints of its valid runs.
    """
    known = [(point, tuple(node_samples)) for point, node_samples in points]
    bases: dict[Group, tuple[NodeSample, ...]] = {}
    ranked = sorted(known, key=lambda one: (one[0].shape.gpus, one[0].shape.nodes))
    for point, node_samples in sorted(ranked, key=lambda one: one[0].shape != BASELINE):
        if node_samples:
            bases.setdefault(point.group, node_samples)
    return tuple(
        replace(
            point,
            differences=(*within(node_samples), *between(bases.get(point.group, ()), node_samples)),
            facts=known_of(node_samples),
        )
        for point, node_samples in known
    )
