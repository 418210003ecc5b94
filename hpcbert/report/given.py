"""What a report is made from, as the flow hands it over."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcbert.config.recipe import Recipe
    from hpcbert.model import Group, Provenance, Shape, SpeedupTable
    from hpcbert.results.resultset import ResultSet, Source


@dataclass(frozen=True)
class Backing:
    """What is read from the files of one source, as long as they are there.

    Attributes:
        script: One of a campaign's rendered scripts: name and text; empty where there is none.
        topologies: Lines of `nvidia-smi topo -m` by node.
        digests: SHA-256 of the files that numbers come from, by path.
    """

    script: tuple[str, str] = ("", "")
    topologies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stretch:
    """The steps inside one run.

    Attributes:
        repeat: The run's number.
        steps: Of each record the iteration that it ends with, and seconds of one iteration.
        window: First and last iteration that are measured.
    """

    group: Group
    shape: Shape
    repeat: int
    steps: tuple[tuple[int, float], ...]
    window: tuple[int, int]


@dataclass(frozen=True)
class Given:
    """All that a report says, in no language yet.

    Attributes:
        title: Of the report; empty for the usual one.
        made: By what, when and by which command.
        results: Tables and their sources.
        backings: What is known of the sources' files, in the sources' order.
        recipes: Of the frameworks in the tables, as far as there are any.
        stretches: Runs whose steps are shown.
    """

    title: str
    made: Provenance
    results: ResultSet
    backings: tuple[Backing, ...] = ()
    recipes: tuple[Recipe, ...] = ()
    stretches: tuple[Stretch, ...] = ()

    @property
    def tables(self) -> tuple[SpeedupTable, ...]:
        """The tables."""
        return self.results.tables

    @property
    def sources(self) -> tuple[tuple[Source, Backing], ...]:
        """The sources with what is known of their files."""
        bare = repeat(Backing())
        return tuple(zip(self.results.sources, chain(self.backings, bare), strict=False))
