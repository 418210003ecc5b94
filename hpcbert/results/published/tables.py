"""Tables of the published record in the form of measured ones."""

from __future__ import annotations

from collections.abc import Iterable

from hpcbert.logs.arithmetic import median
from hpcbert.model import Counted, Group, Measured, Origin, Run, SpeedupTable
from hpcbert.results.published.record import (
    Publication,
    PublishedPoint,
    PublishedTable,
    find_tables,
)
from hpcbert.results.reduce import FOREIGN, tabulate
from hpcbert.results.resultset import ResultSet, Source

# The rounding error of a published median: two decimals are usual.
_ROUNDING = 0.006


def published_results(words: Iterable[str]) -> ResultSet:
    """Return the tables that names of the record select, each once.

    Raises:
        UsageError: As `record.find`.
    """
    tables_by_name = {
        source.called(table): (source, table)
        for word in words
        for source, table in find_tables(word)
    }
    selected = tuple(tables_by_name.values())
    sources = tuple(
        Source("record", source.called(table), path=source.place(table))
        for source, table in selected
    )
    return ResultSet(
        tables=tuple(
            speedup_table
            for source, table in selected
            for speedup_table in convert_table(source, table)
        ),
        sources=sources,
        warnings=tuple(
            f"{source.called(table)}{f' {error.shape}' if error.shape else ''}: {error.what}"
            for source, table in selected
            for error in table.errors
        ),
    )


def convert_table(source: Publication, table: PublishedTable) -> tuple[SpeedupTable, ...]:
    """Return a published table in a measured one's form, with only the runs behind its median."""
    group = published_group(table)
    facts = tuple((name, (value,)) for name, value in source.facts_of(table).items())
    origin = Origin("record", source.called(table), source.place(table))
    points = [
        Measured(
            group,
            point.shape,
            len(published_runs(point)),
            tuple(
                Run(number, 0, speed, True, (), FOREIGN, "none", "")
                for number, speed in enumerate(published_runs(point), 1)
            ),
            counted=_counted_window(table),
            origin=origin,
            facts=facts,
        )
        for point in table.points
    ]
    return tabulate(points)


def published_group(table: PublishedTable) -> Group:
    """Return the common settings of a published table's rows."""
    return Group(
        table.framework,
        table.model,
        table.precision,
        table.batch_size_per_device,
        table.rule,
        table.variant,
    )


def published_runs(point: PublishedPoint) -> tuple[float, ...]:
    """Return the runs behind a published median; if there are none, the median itself."""
    runs_agree = point.runs and abs(median(point.runs) - point.value) <= _ROUNDING
    return point.runs if runs_agree else (point.value,)


def _counted_window(table: PublishedTable) -> Counted | None:
    if table.window is None:
        return None
    skip, iters = table.window.skip, table.window.iters
    last = None if iters == "end" else iters
    return Counted(skip, last, f"iterations {skip + 1} to {iters}")
