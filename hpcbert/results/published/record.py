"""The published record: one TOML file a source, in `data/`; docs/reference/record.md describes it.

A table of the record has a name, `dlperf:oneflow-fp32-b32`. A common beginning selects all tables
that have it: `dlperf:oneflow-fp32`, `dlperf:oneflow`, `dlperf:`. Only its whole name selects a
table with an edition.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from hpcbert.config import toml
from hpcbert.errors import UsageError
from hpcbert.logs.arithmetic import median
from hpcbert.model import (
    Counted,
    Group,
    Measured,
    Origin,
    Run,
    ShapeText,
    Speed,
    SpeedupTable,
    Whole,
)
from hpcbert.results.document import ResultSet, Source
from hpcbert.results.reduce import FOREIGN, tabulate
from hpcbert.system.decode import GIVEN, Count, decode, did_you_mean

DATA = Path(__file__).parent / "data"
# The facts that name what computed; the first one that a table has.
ACCELERATORS = ("GPU", "accelerator", "CPU")
_NAME = re.compile(r"([a-z][a-z0-9-]*):([a-z0-9.-]*)")
# The rounding error of a published median: two decimals are usual.
_ROUNDING = 0.006


@dataclass(frozen=True)
class PublishedWindow:
    """The measured part of a run, as in `collect --skip --iters`."""

    skip: Whole
    iters: Count | Literal["end"]


@dataclass(frozen=True)
class PublishedPoint:
    """One number.

    Attributes:
        shape: Nodes and accelerators per node; sockets, if CPUs computed.
        value: Samples or tokens per second over all devices; None if only minutes are known.
        runs: Throughputs of single runs, if those were published too.
        rule: The recipe's rule that gives it from its log, if not the table's rule.
        window: The iterations that the number covers.
        minutes: Time to train, if that was measured.
    """

    shape: ShapeText
    value: Speed | None = None
    runs: tuple[Speed, ...] = ()
    minutes: Speed | None = None
    rule: str = ""
    window: PublishedWindow | None = None


@dataclass(frozen=True)
class KnownError:
    """An error in a published result.

    Attributes:
        shape: The point; empty for all of the table.
        what: The error, a sentence.
        proof: The proof, a sentence.
    """

    what: str
    proof: str
    shape: str = ""


@dataclass(frozen=True)
class PublishedTable:
    """Numbers that differ only in their shape.

    Attributes:
        name: Within its source.
        framework: The recipe that reads its logs, or another name of the program.
        precision, batch_size_per_device: Empty or None if the source states neither.
        unit: What `value` counts.
        task: How it differs from pre-training that model, a sentence; empty if it does not.
        year: When it was published; None for the source's.
        edition: The difference from another table of the same points, such as an older version.
            Only a name with the edition selects the table.
        rule: Name of the recipe's rule that gave them; empty if unknown.
        commit, path, heading: Its place in the source.
        sequence_length: Tokens of a sample; None if unknown.
        facts: Hardware and software, by the names in fingerprints.
    """

    name: str
    framework: str
    model: str
    commit: str
    path: str
    points: tuple[PublishedPoint, ...]
    precision: str = ""
    batch_size_per_device: Count | None = None
    unit: Literal["samples", "tokens"] = "samples"
    task: str = ""
    year: Count | None = None
    heading: str = ""
    edition: str = ""
    variant: str = ""
    rule: str = ""
    window: PublishedWindow | None = None
    sequence_length: Count | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    errors: tuple[KnownError, ...] = ()

    @property
    def obstacle(self) -> str:
        """Why no ratio can be taken of its numbers, a clause; empty if one can."""
        if self.task:
            return f"it is another task: {self.task}"
        if self.unit != "samples":
            return f"it counts {self.unit}, not samples"
        if not any(point.value for point in self.points):
            return "only the minutes to train were published"
        unknown = [] if self.precision else ["precision"]
        unknown += [] if self.batch_size_per_device else ["batch size"]
        return f"its {' and '.join(unknown)} is unknown" if unknown else ""


@dataclass(frozen=True)
class Publication:
    """Everything that one source published.

    Attributes:
        name: Its name here.
        about: What it measured and how, in a few sentences.
        year: When it was published, for tables without their own.
        layout: `mlperf` if its logs are MLPerf's result folders; else recipes read them.
        facts: The facts of all its tables, unless one states otherwise.
    """

    name: Annotated[str, GIVEN]
    title: str
    repository: str
    about: str
    tables: tuple[PublishedTable, ...]
    year: Count | None = None
    layout: Literal["", "mlperf"] = ""
    facts: Mapping[str, str] = field(default_factory=dict)

    def facts_of(self, table: PublishedTable) -> dict[str, str]:
        """Return the facts of a table and its source; those of the table win."""
        length = table.sequence_length
        length_fact = {"sequence_length": str(length)} if length else {}
        return {**self.facts, **table.facts, **length_fact}

    def year_of(self, table: PublishedTable) -> int | None:
        """Return the year in which a table was published; None if unknown."""
        return table.year or self.year

    def accelerator_of(self, table: PublishedTable) -> str:
        """Return the name of a table's GPU, other accelerator, or CPU; empty if unknown."""
        facts = self.facts_of(table)
        return next((facts[kind] for kind in ACCELERATORS if kind in facts), "")

    def location(self, table: PublishedTable) -> str:
        """Return a table's place in its source as text: commit, path, heading."""
        heading = f", {table.heading}" if table.heading else ""
        commit = f"@{table.commit[:7]}" if table.commit else ""
        # MLPerf has a repository for each round, and a table's name begins with its round.
        suffix = f"_{table.name.partition('-')[0]}" if self.layout == "mlperf" else ""
        return f"{self.repository}{suffix}{commit}, {table.path}{heading}"

    def full_name(self, table: PublishedTable) -> str:
        """Return a table's name in the record, `SOURCE:TABLE`, without its edition."""
        return f"{self.name}:{table.name}"


@cache
def source_names() -> tuple[str, ...]:
    """Return the names of all sources, sorted."""
    return tuple(sorted(path.stem for path in DATA.glob("*.toml")))


@cache
def load_source(name: str) -> Publication:
    """Read one source.

    Raises:
        UsageError: No source has that name.
        ConfigError: Its file is damaged.
    """
    if name not in source_names():
        raise UsageError(
            f"The record has no source {name!r}.", hint=did_you_mean(name, source_names())
        )
    path = DATA / f"{name}.toml"
    return decode(Publication, toml.read(path), file=str(path), name=name)


def is_record_name(word: str) -> bool:
    """Return whether a word is a table name of the record, `SOURCE:TABLE`, and not a path."""
    match = _NAME.fullmatch(word)
    return match is not None and match[1] in source_names()


def find_all_tables(word: str) -> tuple[tuple[Publication, PublishedTable], ...]:
    """Return the tables with a name that begins with a word, also those with an edition."""
    name, _, start = word.partition(":")
    source = load_source(name)
    prefix = f"{start}-" if start else ""
    tables = tuple(
        (source, table) for table in source.tables if f"{table.name}-".startswith(prefix)
    )
    if not tables:
        hint = did_you_mean(start, [table.name for table in source.tables])
        raise UsageError(f"The record has no table {word!r}.", hint=hint)
    return tables


def find_tables(word: str) -> tuple[tuple[Publication, PublishedTable], ...]:
    """Return the tables that a name selects: a source's, or those that begin with it.

    Only a name that ends with an edition selects tables that have one.

    Raises:
        UsageError: It selects none.
    """
    candidates = find_all_tables(word)
    selected = tuple(
        (source, table)
        for source, table in candidates
        if not table.edition or word.endswith(f"-{table.edition}")
    )
    if not selected:
        full_names = [source.full_name(table) for source, table in candidates]
        raise UsageError(
            f"{word!r} has tables of several editions only.",
            hint=f"Name one: {', '.join(full_names)}.",
        )
    return selected


def published_results(words: Iterable[str]) -> ResultSet:
    """Return the tables that names of the record select, each once.

    Tables whose numbers give no ratio are left out, each with a warning.

    Raises:
        UsageError: A name selects none, or only such tables.
    """
    selected = {
        source.full_name(table): (source, table)
        for word in words
        for source, table in find_tables(word)
    }
    tables: list[SpeedupTable] = []
    sources, warnings = [], []
    for name, (source, table) in selected.items():
        if table.obstacle:
            warnings.append(f"{name} is left out: {table.obstacle}.")
            continue
        tables += convert_table(source, table)
        sources.append(Source("record", name, path=source.location(table)))
        for error in table.errors:
            point = f" {error.shape}" if error.shape else ""
            warnings.append(f"{name}{point}: {error.what}")
    if selected and not tables:
        raise UsageError(warnings[0], hint="hpcbert record show has its numbers.")
    return ResultSet(tables=tuple(tables), sources=tuple(sources), warnings=tuple(warnings))


def format_table(table: PublishedTable) -> str:
    """Return a table as its TOML in a source's file; what has its default is left out."""
    values = {
        entry.name: getattr(table, entry.name)
        for entry in fields(table)
        if getattr(table, entry.name) not in (entry.default, {}, ())
    }
    points = [
        {
            "shape": str(point.shape),
            "value": point.value,
            "runs": point.runs or None,
            "minutes": point.minutes,
        }
        for point in table.points
    ]
    return f"[[tables]]\n{toml.format_toml({**values, 'points': points})}"


def convert_table(source: Publication, table: PublishedTable) -> tuple[SpeedupTable, ...]:
    """Return a published table in a measured one's form, with only the runs behind its median."""
    group = published_group(source, table)
    facts = tuple((name, (value,)) for name, value in source.facts_of(table).items())
    origin = Origin("record", source.full_name(table), source.location(table))
    counted = _counted_window(table)
    points = []
    for point in table.points:
        if point.value is None:
            continue
        runs = tuple(
            Run(number, 0, speed, True, (), FOREIGN, "none", "")
            for number, speed in enumerate(published_runs(point), 1)
        )
        points.append(
            Measured(
                group, point.shape, len(runs), runs, counted=counted, origin=origin, facts=facts
            )
        )
    return tabulate(points)


def published_group(source: Publication, table: PublishedTable) -> Group:
    """Return the common settings of a published table's rows.

    The length of its samples is among them if the source has the same points at another length.
    """
    lengths = {
        other.sequence_length
        for other in source.tables
        if _published_settings(other) == _published_settings(table)
    }
    words = [table.variant] if table.variant else []
    words += [f"sequence_length={table.sequence_length}"] if len(lengths) > 1 else []
    framework, model, precision, batch_size = _published_settings(table)[:4]
    device: Literal["gpu", "cpu"] = (
        "gpu" if source.facts_of(table).keys() & {"GPU", "accelerator"} else "cpu"
    )
    return Group(
        framework, model, precision, batch_size, table.rule, ",".join(words), device=device
    )


def _published_settings(table: PublishedTable) -> tuple[str, str, str, int, str, str]:
    batch_size = table.batch_size_per_device or 0
    identity = (table.framework, table.model, table.precision, batch_size)
    return (*identity, table.variant, table.edition)


def published_runs(point: PublishedPoint) -> tuple[float, ...]:
    """Return the runs behind a published median; if there are none, the median itself."""
    if point.value is None:
        return ()
    runs_agree = point.runs and abs(median(point.runs) - point.value) <= _ROUNDING
    return point.runs if runs_agree else (point.value,)


def _counted_window(table: PublishedTable) -> Counted | None:
    if table.window is None:
        return None
    skip, iters = table.window.skip, table.window.iters
    last = None if iters == "end" else iters
    return Counted(skip, last, f"iterations {skip + 1} to {iters}")
