"""The inputs of a report, and its parts before they are a page, Markdown or LaTeX.

All texts are plain: each format escapes them by its own rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from hpcbert.config.recipe import Recipe
from hpcbert.model import Provenance, SpeedupTable, Unit
from hpcbert.results.document import ResultSet, Source
from hpcbert.results.grid import Grid
from hpcbert.results.metrics import convert_known, convert_tables
from hpcbert.results.record import find_twins


@dataclass(frozen=True)
class Heading:
    """A heading inside a section."""

    text: str


@dataclass(frozen=True)
class Code:
    """Text that is shown as it is.

    Attributes:
        file: The file with the text in the report's directory: Markdown links it, and a page shows
            the text when asked. Empty: both show the text.
    """

    title: str
    text: str
    file: str = ""


# x, y, the lowest and the highest y; x is a place on an axis of names if the figure has names.
Point = tuple[float, float, float, float]


@dataclass(frozen=True)
class PlotSeries:
    """One line, or one set of bars, of a figure.

    Attributes:
        published: Whether others measured it: it is drawn behind the rest, in grey.
    """

    label: str
    points: tuple[Point, ...]
    published: bool = False


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        kind: `scaling` (lines with ranges, log-log), `efficiency` (the same, y from 0),
            `bars` (side by side), `runs` (one mark per run), `steps` (a line, the window shaded).
        names: The places of an axis of names, from 0; empty for an axis of numbers.
        ideal: Points of the ideal line; empty without one.
        window: The part of x that is measured; empty without one.
        legend: Names of parts that are not series: the ideal line, the window.
    """

    kind: str
    x: str
    y: str
    series: tuple[PlotSeries, ...]
    names: tuple[str, ...] = ()
    ideal: tuple[tuple[float, float], ...] = ()
    window: tuple[float, ...] = ()
    legend: str = ""


@dataclass(frozen=True)
class Picture:
    """A figure: its panels, a description in words, and their numbers.

    Attributes:
        name: The name of its files in `figures/`, without ending.
        subject: What all of its lines have in common, below its title.
        grid: The numbers that are drawn.
    """

    name: str
    title: str
    subject: str
    alt: str
    panels: tuple[Panel, ...]
    grid: Grid


# A text is a paragraph, several are a list.
Block = str | tuple[str, ...] | Heading | Code | Grid | Picture


@dataclass(frozen=True)
class Section:
    """A part of a report.

    Attributes:
        folded: Whether a page shows its content when asked.
    """

    key: str
    title: str
    blocks: tuple[Block, ...]
    folded: bool = False


@dataclass(frozen=True)
class Report:
    """A whole report in one language: `en` or `zh`.

    Attributes:
        lead: The results in a paragraph.
    """

    language: str
    title: str
    lead: str
    origin: str
    sections: tuple[Section, ...]

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks of all sections."""
        return tuple(block for section in self.sections for block in section.blocks)

    @property
    def grids(self) -> tuple[Grid, ...]:
        """Every table, those of figures among them."""
        grids = (block.grid if isinstance(block, Picture) else block for block in self.blocks)
        return tuple(grid for grid in grids if isinstance(grid, Grid))

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """The figures of all sections."""
        return tuple(block for block in self.blocks if isinstance(block, Picture))

    @property
    def scripts(self) -> tuple[Code, ...]:
        """The texts with files of their own."""
        return tuple(block for block in self.blocks if isinstance(block, Code) and block.file)


@dataclass(frozen=True)
class SourceFiles:
    """The content of the files of one source, if they still exist.

    Attributes:
        script: One of a campaign's rendered scripts: name and text; empty if there is none.
        topologies: Lines of `nvidia-smi topo -m` by node.
    """

    script: tuple[str, str] = ("", "")
    topologies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ReportInput:
    """The inputs of a report.

    Attributes:
        results: In samples, or in the unit already.
        source_files: Those of each source of the results, in their order.
        unit: What the rates of the report count.
    """

    title: str
    provenance: Provenance
    results: ResultSet
    source_files: tuple[SourceFiles, ...] = ()
    recipes: tuple[Recipe, ...] = ()
    unit: Unit = "samples"

    @cached_property
    def tables(self) -> tuple[SpeedupTable, ...]:
        """The tables of the results, in the unit."""
        return convert_tables(self.results.tables, self.unit)

    @cached_property
    def published(self) -> tuple[SpeedupTable, ...]:
        """Tables of the published record for the same points, to draw behind them."""
        return convert_known(find_twins(self.results.tables), self.unit)

    @property
    def sources(self) -> tuple[tuple[Source, SourceFiles], ...]:
        """Each source with the content of its files."""
        return tuple(zip(self.results.sources, self.source_files, strict=True))
