"""Tables of the published record in the form of measured ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcbert.logs.arithmetic import median
from hpcbert.model import Counted, Group, Measured, Origin, Run
from hpcbert.results.published.record import find
from hpcbert.results.reduce import FOREIGN, tabulate
from hpcbert.results.resultset import ResultSet, Source

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hpcbert.model import SpeedupTable
    from hpcbert.results.published.record import Publication, PublishedPoint, PublishedTable

# The rounding error of a published median: two decimals are usual.
_ROUNDED = 0.006


def results(words: Iterable[str]) -> ResultSet:
    """Return the tables that names of the record select, each once.

    Raises:
        UsageError: As `record.find`.
    """
    named = {
        source.called(table): (source, table) for word in words for source, table in find(word)
    }
    found = tuple(named.values())
    sources = tuple(
        Source("record", source.called(table), path=source.place(table)) for source, table in found
    )
    return ResultSet(
        tables=tuple(
            speedup_table for source, table in found for speedup_table in measured(source, table)
        ),
        sources=sources,
        warnings=tuple(
            f"{source.called(table)}{f' {error.shape}' if error.shape else ''}: {error.what}"
            for source, table in found
            for error in table.errors
        ),
    )


def measured(source: Publication, table: PublishedTable) -> tuple[SpeedupTable, ...]:
    """Return a published table in a measured one's form, with only the runs behind its median."""
    group = group_of(table)
    facts = tuple((name, (value,)) for name, value in source.facts_of(table).items())
    origin = Origin("record", source.called(table), source.place(table))
    points = [
        Measured(
            group,
            point.shape,
            len(runs_of(point)),
            tuple(
                Run(number, 0, speed, True, (), FOREIGN, "none", "")
                for number, speed in enumerate(runs_of(point), 1)
            ),
            counted=_counted(table),
            origin=origin,
            facts=facts,
        )
        for point in table.points
    ]
    return tabulate(points)


def group_of(table: PublishedTable) -> Group:
    """Return the common settings of a published table's rows."""
    return Group(
        table.framework,
        table.model,
        table.precision,
        table.batch_size_per_device,
        table.rule,
        table.variant,
    )


def runs_of(point: PublishedPoint) -> tuple[float, ...]:
    """Return the runs behind a published median; if there are none, the median itself."""
    fitting = point.runs and abs(median(point.runs) - point.value) <= _ROUNDED
    return point.runs if fitting else (point.value,)


def _counted(table: PublishedTable) -> Counted | None:
    if table.window is None:
        return None
    skip, iters = table.window.skip, table.window.iters
    last = None if iters == "end" else iters
    return Counted(skip, last, f"iterations {skip + 1} to {iters}")
