"""The published record: others' results on BERT's throughput, as data with their sources.

One TOML file a source, in `published/data/`; docs/reference/record.md describes it.

A table of the record has a name, `dlperf:oneflow-fp32-b32`. A common beginning selects all tables
that have it: `dlperf:oneflow-fp32`, `dlperf:oneflow`, `dlperf:`. Only its whole name selects a
table with an edition.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import click

from hpcbert.config import toml
from hpcbert.errors import UsageError
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
from hpcbert.results.compare import Side, find_contrasts, list_sides, side_data
from hpcbert.results.document import ResultSet, Source
from hpcbert.results.grid import Cell, Column, Grid, TableView, make_columns
from hpcbert.results.reduce import FOREIGN, tabulate
from hpcbert.results.wording import sanitize
from hpcbert.system import grouping
from hpcbert.system.decode import GIVEN, Count, decode, did_you_mean

DATA = Path(__file__).parent / "published" / "data"
# The facts that name what computed; the first one that a table has.
ACCELERATORS = ("GPU", "accelerator", "CPU")
_NAME = re.compile(r"([a-z][a-z0-9-]*):([a-z0-9.-]*)")

_COLUMNS = make_columns(
    "point", "framework", "samples/s:.2f", "per GPU:.2f", "of yours:.1%", "published in"
)
# The text names only differences between machines; --json has all.
_HARDWARE = ("GPU", "CPU", "InfiniBand", "network")
# By the keys of `row_data`, and by units for its value.
_ROW_COLUMNS = {
    "year": Column("year", "d"),
    "program": Column("program"),
    "accelerator": Column("accelerator"),
    "shape": Column("shape", ">"),
    "precision": Column("precision"),
    "sequence_length": Column("tokens", "d"),
    "samples": Column("samples/s", ".1f"),
    "tokens": Column("tokens/s", ".0f"),
    "per_device": Column("per device", ".1f"),
    "minutes": Column("min to train", "g"),
    "name": Column("published in"),
}


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
        rule: The recipe's rule that gives it from its log, if not the table's rule.
    """

    shape: ShapeText
    value: Speed | None = None
    runs: tuple[Speed, ...] = ()
    minutes: Speed | None = None
    rule: str = ""
    window: PublishedWindow | None = None

    @property
    def per_device(self) -> float | None:
        """The value over the number of accelerators."""
        return self.value / self.shape.gpus if self.value else None


@dataclass(frozen=True)
class KnownError:
    """An error in a published result, a sentence, and its proof; without a shape, in all points."""

    what: str
    proof: str
    shape: str = ""


@dataclass(frozen=True)
class PublishedTable:
    """Numbers that differ only in their shape.

    Attributes:
        framework: The recipe that reads its logs, or another name of the program.
        precision, batch_size_per_device: Empty or None if the source states neither.
        task: How it differs from pre-training that model, a sentence; empty if it does not.
        edition: The difference from another table of the same points, such as an older version.
            Only a name with the edition selects the table.
        commit, path, heading: Its place in the source.
        facts: Hardware and software, by the names in fingerprints.
        source, location: Name of its source, and its place there as text: commit, path, heading.
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
    source: Annotated[str, GIVEN] = ""
    location: Annotated[str, GIVEN] = ""

    @property
    def full_name(self) -> str:
        """Its name in the record, `SOURCE:TABLE`."""
        return f"{self.source}:{self.name}"

    @property
    def accelerator(self) -> str:
        """The name of its GPU, other accelerator, or CPU; empty if unknown."""
        return next((self.facts[kind] for kind in ACCELERATORS if kind in self.facts), "")

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
        about: What it measured and how, in a few sentences.
        year, facts: Of all its tables, unless one states otherwise.
        layout: `mlperf` if its logs are MLPerf's result folders; else recipes read them.
    """

    name: Annotated[str, GIVEN]
    title: str
    repository: str
    about: str
    tables: tuple[PublishedTable, ...]
    year: Count | None = None
    layout: Literal["", "mlperf"] = ""
    facts: Mapping[str, str] = field(default_factory=dict)

    def complete(self, table: PublishedTable) -> PublishedTable:
        """Return a table with what it has from its source."""
        heading = f", {table.heading}" if table.heading else ""
        commit = f"@{table.commit[:7]}" if table.commit else ""
        # MLPerf has a repository for each round, and a table's name begins with its round.
        suffix = f"_{table.name.partition('-')[0]}" if self.layout == "mlperf" else ""
        length = table.sequence_length
        length_fact = {"sequence_length": str(length)} if length else {}
        return replace(
            table,
            source=self.name,
            location=f"{self.repository}{suffix}{commit}, {table.path}{heading}",
            year=table.year or self.year,
            facts={**self.facts, **table.facts, **length_fact},
        )


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
    source = decode(Publication, toml.read(path), file=str(path), name=name)
    return replace(source, tables=tuple(map(source.complete, source.tables)))


def is_record_name(word: str) -> bool:
    """Return whether a word is a table name of the record, `SOURCE:TABLE`, and not a path."""
    match = _NAME.fullmatch(word)
    return match is not None and match[1] in source_names()


def find_all_tables(word: str) -> tuple[PublishedTable, ...]:
    """Return the tables with a name that begins with a word, also those with an edition."""
    name, _, start = word.partition(":")
    source = load_source(name)
    prefix = f"{start}-" if start else ""
    tables = tuple(table for table in source.tables if f"{table.name}-".startswith(prefix))
    if not tables:
        hint = did_you_mean(start, [table.name for table in source.tables])
        raise UsageError(f"The record has no table {word!r}.", hint=hint)
    return tables


def find_tables(word: str) -> tuple[PublishedTable, ...]:
    """Return the tables that a name selects: a source's, or those that begin with it.

    Only a name that ends with an edition selects tables that have one.

    Raises:
        UsageError: It selects none.
    """
    candidates = find_all_tables(word)
    selected = tuple(
        table for table in candidates if not table.edition or word.endswith(f"-{table.edition}")
    )
    if not selected:
        raise UsageError(
            f"{word!r} has tables of several editions only.",
            hint=f"Name one: {', '.join(table.full_name for table in candidates)}.",
        )
    return selected


def published_results(words: Iterable[str]) -> ResultSet:
    """Return the tables that names of the record select, each once.

    Tables whose numbers give no ratio are left out, each with a warning.

    Raises:
        UsageError: A name selects none, or only such tables.
    """
    selected = {table.full_name: table for word in words for table in find_tables(word)}
    tables: list[SpeedupTable] = []
    sources, warnings = [], []
    for name, table in selected.items():
        if table.obstacle:
            warnings.append(f"{name} is left out: {table.obstacle}.")
            continue
        tables += convert_table(table)
        sources.append(Source("record", name, path=table.location))
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
    names = ("value", "runs", "minutes")
    points = [
        {"shape": str(point.shape), **{name: getattr(point, name) or None for name in names}}
        for point in table.points
    ]
    return f"[[tables]]\n{toml.format_toml({**values, 'points': points})}"


def convert_table(table: PublishedTable) -> tuple[SpeedupTable, ...]:
    """Return a published table in a measured one's form, with only the runs behind its median."""
    group = published_group(table)
    facts = tuple((name, (value,)) for name, value in table.facts.items())
    origin = Origin("record", table.full_name, table.location)
    counted = None
    if table.window:
        skip, iters = table.window.skip, table.window.iters
        last = None if iters == "end" else iters
        counted = Counted(skip, last, f"iterations {skip + 1} to {iters}")
    points = []
    for point in table.points:
        if point.value is not None:
            runs = tuple(
                Run(number, 0, speed, True, (), FOREIGN, "none", "")
                for number, speed in enumerate(point.runs or [point.value], 1)
            )
            measured = Measured(group, point.shape, len(runs), runs=runs, window=counted)
            points.append(replace(measured, origin=origin, facts=facts))
    return tabulate(points)


def published_group(table: PublishedTable) -> Group:
    """Return the common settings of a published table's rows.

    The length of its samples is among them if the source has the same points at another length.
    """
    settings = _published_settings(table)
    twins = (
        twin for twin in load_source(table.source).tables if _published_settings(twin) == settings
    )
    words = [table.variant] if table.variant else []
    if len({twin.sequence_length for twin in twins}) > 1:
        words.append(f"sequence_length={table.sequence_length}")
    on_gpus = table.facts.keys() & {"GPU", "accelerator"}
    return Group(
        *settings[:4], table.rule, variant=",".join(words), device="gpu" if on_gpus else "cpu"
    )


def _published_settings(table: PublishedTable) -> tuple[str, str, str, int, str, str]:
    size = table.batch_size_per_device or 0
    return table.framework, table.model, table.precision, size, table.variant, table.edition


# --- next to your own points ---------------------------------------------------------------------


def find_neighbours(tables: Iterable[SpeedupTable], word: str) -> list[dict[str, Any]]:
    """Return published results for the points of tables, in any framework.

    Each as docs/reference/json.md describes it, with the differences of the machines.

    Raises:
        UsageError: The record has nothing of that name.
    """
    published = grouping.group(
        ((side.work, side.row.shape), side) for side in list_sides(published_results([word]).tables)
    )
    return [
        {
            "point": side.name,
            "own": side_data(side),
            "published": side_data(published_side),
            "ratio": published_side.row.median / side.row.median,
            "differences": [
                contrast._asdict() for contrast in find_contrasts(published_side, side)
            ],
        }
        for side in list_sides(tables)
        for published_side in published.get((side.work, side.row.shape), ())
        if side.row.median and published_side.row.median
        if side.length == published_side.length or "" in (side.length, published_side.length)
    ]


def find_twins(tables: Iterable[SpeedupTable]) -> tuple[SpeedupTable, ...]:
    """Return for each of your own tables the published one that a figure shows next to it.

    Model, precision, batch size per device, accumulation and sequence length are the same. A table
    of the same framework goes before others, then one with more shapes.
    """
    own_tables = [table for table in tables if not any(row.published for row in table.rows)]
    published = published_results(source_names()).tables if own_tables else ()
    twins = {}
    for table in own_tables:
        work, framework = _describe_work(table), table.group.framework
        candidates = [twin for twin in published if _describe_work(twin) == work]
        if candidates and "sequence_length" in _stated_facts(table):
            twin = max(
                candidates, key=lambda twin: (twin.group.framework == framework, len(twin.rows))
            )
            twins[id(twin)] = twin
    return tuple(twins.values())


def _describe_work(table: SpeedupTable) -> tuple[object, ...]:
    accumulation = tuple(word for word in table.group.variant.split(",") if word.startswith("acc"))
    length = _stated_facts(table).get("sequence_length")
    return Side(table.group, table.rows[0]).work, accumulation, length


def _stated_facts(table: SpeedupTable) -> dict[str, tuple[str, ...]]:
    return {name: values for row in table.rows for name, values in row.facts}


def neighbour_view(neighbours: Iterable[Mapping[str, Any]], word: str) -> TableView:
    """Return neighbours as a table: your own line, then published results for the same point."""
    rows_by_point: dict[str, list[tuple[Cell, ...]]] = {}
    # The differences between the machines, each once.
    notes: dict[str, None] = {}
    for neighbour in neighbours:
        name, own, published = (neighbour[key] for key in ("point", "own", "published"))
        rows = rows_by_point.setdefault(name, [_side_cells(own, name, "", "yours")])
        rows.append(_side_cells(published, "", neighbour["ratio"], published["origin"]["name"]))
        for contrast in neighbour["differences"]:
            if contrast["what"].startswith(_HARDWARE):
                values = (" and ".join(contrast[key]) or "unknown" for key in ("base", "new"))
                notes["{}: {} there, {} here".format(contrast["what"], *values)] = None
    title = sanitize(f"Compared with {word}")
    cells = tuple(row for rows in rows_by_point.values() for row in rows)
    grid = Grid("neighbours", title, _COLUMNS, cells)
    return TableView((click.style(title, bold=True),), grid, tuple(notes))


def _side_cells(side: Mapping[str, Any], name: str, ratio: Cell, origin: str) -> tuple[Cell, ...]:
    framework = f"{side['framework']} {side['variant']}".rstrip()
    return sanitize(name), sanitize(framework), side["median"], side["per_gpu"], ratio, origin


# One number of the record, with its table.
PublishedRow = tuple[PublishedTable, PublishedPoint]


def select_rows(model: str, gpus: int | None, accelerator: str) -> tuple[PublishedRow, ...]:
    """Return the rows of all sources that fit, the highest rate first.

    Rows of tokens per second come after those of samples, and those with minutes alone come last.

    Raises:
        UsageError: There is none.
    """
    tables = [table for name in source_names() for table in load_source(name).tables]
    selected = [
        (table, point)
        for table in tables
        for point in table.points
        if model in ("", table.model)
        and gpus in (None, point.shape.gpus)
        and accelerator.lower() in table.accelerator.lower()
    ]
    if not selected:
        models = {table.model for table in tables}
        hint = "Give fewer of --model, --gpus and --accelerator."
        if model and model not in models:
            hint = did_you_mean(model, models)
        raise UsageError("The record has no such row.", hint=hint)

    def rank(row: PublishedRow) -> tuple[bool, bool, bool, float, float]:
        table, point = row
        value, minutes = point.value or 0.0, point.minutes or 0.0
        return bool(table.task), not value, table.unit != "samples", -value, minutes

    return tuple(sorted(selected, key=rank))


def make_row_view(rows: Sequence[PublishedRow], *, show_all: bool) -> TableView:
    """Return rows as a table, with a note for each that is another task.

    Args:
        show_all: Whether to show all, or the first of each program on each accelerator.
    """
    best: dict[tuple[str, str], PublishedRow] = {}
    for table, point in rows:
        best.setdefault((table.framework, table.accelerator), (table, point))
    chosen = rows if show_all else [*best.values()]
    cells: list[tuple[Cell, ...]] = []
    for table, point in chosen:
        variant, task = f" {table.variant}" if table.variant else "", " *" if table.task else ""
        program = f"{table.framework}{variant}{task}"
        values = row_data(table, point) | {"program": program, table.unit: point.value}
        cells.append(tuple(values.get(key) for key in _ROW_COLUMNS))
    tasks = {table.task: table.model for table, _ in chosen if table.task}
    notes = tuple(f"* another task: {model}: {task}" for task, model in tasks.items())
    if len(chosen) < len(rows):
        notes += (
            f"{len(rows) - len(chosen)} lower rows of these programs and accelerators: --all",
        )
    title = f"{len(rows)} published rows"
    grid = Grid("rows", title, tuple(_ROW_COLUMNS.values()), tuple(cells)).without_empty()
    return TableView((click.style(title, bold=True),), grid, notes)


def row_data(table: PublishedTable, point: PublishedPoint) -> dict[str, Any]:
    """Return a row as docs/reference/json.md describes it."""
    return {
        "name": table.full_name,
        "year": table.year,
        "program": table.framework,
        "model": table.model,
        "accelerator": table.accelerator,
        "shape": str(point.shape),
        "devices": point.shape.gpus,
        "precision": table.precision or None,
        "sequence_length": table.sequence_length,
        "batch_size_per_device": table.batch_size_per_device,
        "unit": table.unit,
        "value": point.value,
        "per_device": point.per_device,
        "minutes": point.minutes,
        "task": table.task,
        "source": table.location,
    }
