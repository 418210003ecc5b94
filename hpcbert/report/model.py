"""The input of a report, as the flow hands it over."""

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
    """The content of the files of one source, if they still exist.

    Attributes:
        script: One of a campaign's rendered scripts: name and text; empty if there is none.
        topologies: Lines of `nvidia-smi topo -m` by node.
        digests: SHA-256 of the files behind the numbers, by path.
    """

    script: tuple[str, str] = ("", "")
    topologies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stretch:
    """The steps inside one run.

    Attributes:
        repeat: The run's number.
        steps: For each record, its last iteration and the seconds of one iteration.
        window: First and last iteration that are measured.
    """

    group: Group
    shape: Shape
    repeat: int
    steps: tuple[tuple[int, float], ...]
    window: tuple[int, int]


@dataclass(frozen=True)
class ReportInput:
    """The contents of a report, before they are put in a language.

    Attributes:
        title: Of the report; empty for the usual one.
        made: By what, when and by which command.
        results: Tables and their sources.
        backings: The content of the sources' files, in the order of the sources.
        recipes: Those of the frameworks in the tables, where they exist.
        stretches: Runs of which the report shows the steps.
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
        """Each source with the content of its files."""
        bare = repeat(Backing())
        return tuple(zip(self.results.sources, chain(self.backings, bare), strict=False))
