"""Results as one thing, wherever they come from: tables and their sources."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - the reader of documents looks it up
from typing import Literal

from hpcbert.model import Material, Protocol, Provenance, SpeedupTable  # noqa: TC001 - likewise
from hpcbert.system.lazy import dataclass


@dataclass(frozen=True)
class NodeFacts:
    """What nodes are that are equal in all that can change a number.

    Attributes:
        digest: As the runs have it.
        nodes: Their names.
        facts: What matters, by name.
    """

    digest: str
    nodes: tuple[str, ...]
    facts: Mapping[str, str]


@dataclass(frozen=True)
class Source:
    """The source of points; for logs that hpcbert did not submit, most of it is unknown and empty.

    Attributes:
        kind, name, path: As of the points' `Origin`.
        created, hpcbert, command, site, scheduler, runtime, image, framework, recipe_digest,
            protocol, materials: As of the campaign.
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
        tables: Each row has its `origin`.
        made: By what, when and how they were made; None of what was made right now.
        sources: What the origins name, in their order.
        refused: Why something has no table at all, a sentence each.
        left_out: Files that were looked at and are in no table: each path with the reason.
    """

    tables: tuple[SpeedupTable, ...]
    made: Provenance | None = None
    sources: tuple[Source, ...] = ()
    refused: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
