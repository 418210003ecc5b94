"""Results as one thing, wherever they come from: tables and their sources."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - the reader of documents looks it up
from dataclasses import dataclass
from typing import Literal

from hpcbert.model import Material, Protocol, Provenance, SpeedupTable  # noqa: TC001 - likewise


@dataclass(frozen=True)
class NodeFacts:
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
class Source:
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


@dataclass(frozen=True)
class ResultSet:
    """Tables, wherever they come from.

    Attributes:
        tables: Each row has an `origin`.
        made: The program, time and command that made them; None if they were made just now.
        sources: The sources that the origins name, in the same order.
        refused: Why some results have no table, a sentence each.
        left_out: Files that were read but are not in a table: each path with the reason.
    """

    tables: tuple[SpeedupTable, ...]
    made: Provenance | None = None
    sources: tuple[Source, ...] = ()
    refused: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
