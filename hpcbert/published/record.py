"""The published record: one TOML file a source, in `data/`; docs/reference/record.md describes it.

A table of the record has a name, `dlperf:oneflow-fp32-b32`; all that begin alike are meant by what
they begin with: `dlperf:oneflow-fp32`, `dlperf:oneflow`, `dlperf:`. A table with an edition is
meant by its whole name alone.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - the reader of documents looks it up
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from hpcbert.config import toml
from hpcbert.config.decode import GIVEN, Count, decode, did_you_mean
from hpcbert.errors import UsageError
from hpcbert.results.described import ShapeText, Speed, Whole  # noqa: TC001 - likewise
from hpcbert.system.lazy import dataclass, regex

DATA = Path(__file__).parent / "data"
_NAME = regex(r"([a-z][a-z0-9-]*):([a-z0-9.-]*)")


@dataclass(frozen=True)
class PublishedWindow:
    """What of a run was counted, as `collect --skip --iters` has it."""

    skip: Whole
    iters: Count | Literal["end"]


@dataclass(frozen=True)
class PublishedPoint:
    """One number.

    Attributes:
        value: Samples per second over all GPUs.
        runs: Throughputs of single runs, where those were published too.
        rule: By which rule of the recipe it follows from its log, if not by the table's.
        window: The iterations that the number covers.
        minutes: Time to train, where that is what was measured.
    """

    shape: ShapeText
    value: Speed
    runs: tuple[Speed, ...] = ()
    minutes: Speed | None = None
    rule: str = ""
    window: PublishedWindow | None = None


@dataclass(frozen=True)
class KnownError:
    """An error in a published result.

    Attributes:
        shape: The point; empty for all of the table.
        what: What is wrong, a sentence.
        proof: What shows it, a sentence.
    """

    what: str
    proof: str
    shape: str = ""


@dataclass(frozen=True)
class PublishedTable:
    """Numbers that share everything but their shape.

    Attributes:
        name: Within its source.
        edition: What sets it apart from another one of the same points: an older version, say. Only
            a name that has it means the table.
        rule: Name of the recipe's rule behind them; empty if unknown.
        commit, path, heading: Where it stands.
        sequence_length: Tokens of a sample; None if unknown.
        facts: Hardware and software, by the names that fingerprints have for them.
    """

    name: str
    framework: str
    model: str
    precision: str
    batch_size_per_device: Count
    commit: str
    path: str
    points: tuple[PublishedPoint, ...]
    heading: str = ""
    edition: str = ""
    variant: str = ""
    rule: str = ""
    window: PublishedWindow | None = None
    sequence_length: Count | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    errors: tuple[KnownError, ...] = ()


@dataclass(frozen=True)
class Publication:
    """All that one source published.

    Attributes:
        name: What it is called here.
        about: What it measured and how, in a few sentences.
        facts: What is true of all its tables, unless one says otherwise.
    """

    name: Annotated[str, GIVEN]
    title: str
    repository: str
    about: str
    tables: tuple[PublishedTable, ...]
    facts: Mapping[str, str] = field(default_factory=dict)

    def facts_of(self, table: PublishedTable) -> dict[str, str]:
        """Return what is known about a table's hardware and software."""
        length = table.sequence_length
        stated = {"sequence_length": str(length)} if length else {}
        return {**self.facts, **table.facts, **stated}

    def place(self, table: PublishedTable) -> str:
        """Return where a table was published, for people."""
        heading = f", {table.heading}" if table.heading else ""
        return f"{self.repository}@{table.commit[:7]}, {table.path}{heading}"

    def called(self, table: PublishedTable) -> str:
        """Return a table's full name."""
        return f"{self.name}:{table.name}"


@cache
def names() -> tuple[str, ...]:
    """Return the names of all sources."""
    return tuple(sorted(path.stem for path in DATA.glob("*.toml")))


@cache
def load(name: str) -> Publication:
    """Read one source.

    Raises:
        UsageError: There is none of that name.
        ConfigError: Its file is damaged.
    """
    if name not in names():
        raise UsageError(f"The record has no source {name!r}.", hint=did_you_mean(name, names()))
    path = DATA / f"{name}.toml"
    return decode(Publication, toml.read(path), file=str(path), name=name)


def is_name(word: str) -> bool:
    """Return whether a word has the form of a name of tables in the record."""
    match = _NAME.fullmatch(word)
    return match is not None and match[1] in names()


def every(word: str) -> tuple[tuple[Publication, PublishedTable], ...]:
    """Return the tables that begin with a name, those with an edition too.

    Raises:
        UsageError: There is none.
    """
    name, _, start = word.partition(":")
    source = load(name)
    begin = f"{start}-" if start else ""
    found = tuple((source, one) for one in source.tables if f"{one.name}-".startswith(begin))
    if not found:
        hint = did_you_mean(start, [one.name for one in source.tables])
        raise UsageError(f"The record has no table {word!r}.", hint=hint)
    return found


def find(word: str) -> tuple[tuple[Publication, PublishedTable], ...]:
    """Return the tables that a name means: a source's, or those that begin with it.

    Those with an edition are meant only by a name that ends with it.

    Raises:
        UsageError: It means none.
    """
    found = every(word)
    plain = tuple(
        (source, one)
        for source, one in found
        if not one.edition or word.endswith(f"-{one.edition}")
    )
    if not plain:
        names_ = [source.called(one) for source, one in found]
        raise UsageError(
            f"{word!r} has tables of several editions only.", hint=f"Name one: {', '.join(names_)}."
        )
    return plain
