"""Results, wherever they come from: tables and their sources, as documents write them.

The numbers of the tables in a document are compared with their runs: a changed table is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isclose
from typing import Annotated, Literal

from hpcbert.logs.arithmetic import median
from hpcbert.model import (
    Group,
    Material,
    Protocol,
    Provenance,
    Row,
    ShapeText,
    SpeedupTable,
    Whole,
    valid_throughputs,
)
from hpcbert.system.decode import EncodedAs, IgnoreUnknown, Invalid, TableKeys

# hpcbert writes all digits; another program may have dropped the last one.
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class NodeFacts(IgnoreUnknown):
    """The facts of nodes that are equal in everything that can change a number.

    Attributes:
        digest: The same as in their runs.
        nodes: Their names.
        facts: The facts that matter, by name.
    """

    digest: str
    nodes: tuple[str, ...]
    facts: Mapping[str, str]


@dataclass(frozen=True)
class Source(IgnoreUnknown):
    """The source of points; for logs that hpcbert did not submit, most of it is unknown and empty.

    Attributes:
        kind, name, path: As in the points' `Origin`.
        created, hpcbert, command, site, scheduler, runtime, image, framework, recipe_digest,
            protocol, materials: As in the campaign.
    """

    kind: Literal["campaign", "logs", "record"]
    name: str
    path: str = ""
    created: str = ""
    hpcbert: str = ""
    command: tuple[str, ...] = ()
    site: str = ""
    scheduler: str = ""
    runtime: str = ""
    image: str = ""
    framework: str = ""
    recipe_digest: str = ""
    protocol: Protocol | None = None
    materials: tuple[Material, ...] = ()
    environments: tuple[NodeFacts, ...] = ()


def _not_empty(text: str) -> str:
    if not text:
        raise Invalid("is empty")
    return text


_NonEmpty = Annotated[str, _not_empty]


@dataclass(frozen=True, kw_only=True)
class _Table(Group, IgnoreUnknown):
    """A speedup table in a document: the keys of its group lie next to `rows`."""

    framework: _NonEmpty
    model: _NonEmpty
    precision: _NonEmpty
    batch_size_per_device: Whole
    baseline: ShapeText | None
    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        shapes = [row.shape for row in self.rows]
        base = next((row.median for row in self.rows if row.shape == self.baseline), None)
        for number, row in enumerate(self.rows, 1):
            place = f"rows[{number}]"
            if row.shape in shapes[: number - 1]:
                raise Invalid(f"is {row.shape}, which is there already", key=place)
            if not (row.origin and row.origin.kind == "record"):
                _check_runs(row, place)
            if row.speedup is not None and base and row.median:
                speedup = row.median / base
                _check_equal(f"{place}.speedup", row.speedup, speedup)
                _check_equal(f"{place}.efficiency", row.efficiency, speedup / row.shape.gpus)

    def speedup_table(self) -> SpeedupTable:
        """Return the table in the model's form."""
        group = Group(**{key.name: getattr(self, key.name) for key in fields(Group)})
        return SpeedupTable(group, self.baseline, self.rows)


@dataclass(frozen=True)
class ResultSet(IgnoreUnknown):
    """Tables, wherever they come from.

    Attributes:
        tables: Each row has an `origin`.
        made: The program, time and command that made them; None if they were made just now.
        sources: The sources that the origins name, in the same order.
        refused: Why some results have no table, a sentence each.
        left_out: Files that were read but are not in a table: each path with the reason.
    """

    tables: tuple[Annotated[SpeedupTable, EncodedAs(_Table, _Table.speedup_table)], ...]
    made: Provenance | None = None
    sources: tuple[Source, ...] = ()
    refused: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    left_out: tuple[Annotated[tuple[str, str], TableKeys("path", "why")], ...] = ()


@dataclass(frozen=True)
class Envelope(IgnoreUnknown):
    """The document that `--json` prints."""

    version: int
    command: str
    data: ResultSet


def _check_runs(row: Row, place: str) -> None:
    """Compare the numbers of a row with its runs.

    Raises:
        Invalid: They differ.
    """
    for number, run in enumerate(row.runs, 1):
        if run.valid and run.throughput is None:
            key = f"{place}.runs[{number}].throughput"
            raise Invalid("is missing, but the run is valid", key=key)
    speeds = valid_throughputs(row.runs)
    if row.ok != len(speeds):
        text = f"is {row.ok}, but {len(speeds)} of its runs are valid"
        raise Invalid(text, key=f"{place}.repeats.ok")
    if row.median is None:
        return
    if not speeds:
        text = f"is {row.median:g}, but none of its runs is valid"
        raise Invalid(text, key=f"{place}.median")
    _check_equal(f"{place}.median", row.median, median(speeds))
    _check_equal(f"{place}.min", row.min, min(speeds))
    _check_equal(f"{place}.max", row.max, max(speeds))


def _check_equal(key: str, stated: float | None, computed: float) -> None:
    if stated is not None and not isclose(stated, computed, rel_tol=_TOLERANCE):
        raise Invalid(f"is {stated!r}, but its runs give {computed!r}", key=key)
