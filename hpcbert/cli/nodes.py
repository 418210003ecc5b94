"""hpcbert nodes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from hpcbert.campaign import store
from hpcbert.cli import streams
from hpcbert.cli.campaigns import find_runs
from hpcbert.cli.options import RUNS, SITE
from hpcbert.cli.output import Result, returns_result
from hpcbert.commands.collect import find_places, load_result_set
from hpcbert.errors import HpcbertError, UsageError, join_names
from hpcbert.results.document import ResultSet
from hpcbert.results.grid import Column, Grid, TableView
from hpcbert.results.nodes import NodeRecord, list_history
from hpcbert.slurm.hostlist import expand
from hpcbert.system.progress import track

_COLUMNS = (
    Column("node"),
    Column("point"),
    Column("date"),
    Column("campaign"),
    Column("runs", "d"),
    Column("samples/s", ".2f"),
    Column("of the one before", ".2%"),
)


@click.command(
    epilog="\b\nExamples:\n  hpcbert nodes\n  hpcbert nodes n07\n  hpcbert nodes 'n[01-04]' --json"
)
@click.argument("names", nargs=-1, metavar="[NODE]...")
@RUNS
@SITE
@returns_result
def nodes(names: tuple[str, ...], *, runs: str, site_file: str) -> Result:
    """Show the history of nodes: rates and facts, campaign by campaign.

    It has the valid runs on one node in your campaigns: their median, that over the median of the
    same point in the campaign before, and the facts of the node that changed since then. A run on
    several nodes says nothing about one of them.
    """
    root = find_runs(runs, site_file)
    paths = store.find_campaigns(root)
    warnings: list[str] = []
    records = list_history(_load_results(paths, site_file, warnings))
    requested_nodes = [node for name in names for node in expand(name)]
    present = {record.node for record in records}
    if absent := [node for node in requested_nodes if node not in present]:
        raise UsageError(
            f"No campaign has a valid run on {join_names(absent)} alone.",
            where=str(root),
            hint=f"There are runs on {join_names(sorted(present))}." if present else "",
        )
    shown = [record for record in records if not names or record.node in requested_nodes]
    data = [
        {**record._asdict(), "changes": [change._asdict() for change in record.changes]}
        for record in shown
    ]
    return Result(data, _format_history(shown), warnings=tuple(dict.fromkeys(warnings)))


def _load_results(
    paths: Sequence[Path], site_file: str, warnings: list[str]
) -> Iterator[ResultSet]:
    """Yield the results of each campaign; those that can't be read are warnings."""
    places = find_places(site_file)
    for path in track(paths, "collecting campaigns"):
        try:
            result = load_result_set([str(path)], places)
        except HpcbertError as error:
            warnings.append(f"{path} is left out: {error}")
            continue
        if result.sources:
            yield result


def _format_history(records: Sequence[NodeRecord]) -> str:
    if not records:
        return "No campaign has a valid run on one node."
    rows = tuple((*record[:2], record.created[:10], *record[3:7]) for record in records)
    notes = [
        f"{record.node} in {record.campaign}: {change}"
        for record in records
        for change in record.changes
    ]
    view = TableView((), Grid("nodes", "Nodes", _COLUMNS, rows), tuple(dict.fromkeys(notes)))
    return view.text(streams.line_width(sys.stdout)).lstrip("\n")
