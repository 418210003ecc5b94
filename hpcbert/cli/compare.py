"""hpcbert compare, hpcbert nodes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from hpcbert.campaign import store
from hpcbert.campaign.foreign import CollectRequest
from hpcbert.cli import streams
from hpcbert.cli.campaigns import find_runs
from hpcbert.cli.options import (
    RUNS,
    SITE,
    UNIT,
    VIEW_FORM,
    flag_option,
    make_reader,
    refuse_typed,
    text_option,
)
from hpcbert.cli.output import Result, returns_result
from hpcbert.cli.tables import takes_logs, write_output
from hpcbert.commands.collect import Places, find_places, load_result_set
from hpcbert.commands.compare import compare_results
from hpcbert.config.options import ShareRange
from hpcbert.errors import HpcbertError, IncompleteError, UsageError, join_names
from hpcbert.results.compare import DIMENSIONS, comparison_data, comparison_view, render_junit
from hpcbert.results.document import ResultSet
from hpcbert.results.grid import Grid, TableView, make_columns
from hpcbert.results.nodes import list_history
from hpcbert.slurm.hostlist import expand
from hpcbert.system.workers import track

_HISTORY_COLUMNS = make_columns(
    "node", "point", "date", "campaign", "runs:d", "samples/s:.2f", "of the one before:.2%"
)


@click.command()
@click.argument("base")
@click.argument("new", nargs=-1)
@click.option(
    "--by", type=click.Choice([*DIMENSIONS]), help="Compare points of one campaign by this."
)
@click.option(
    "--within",
    callback=make_reader(ShareRange(0.0001, 0.5)),
    default="2%",
    show_default=True,
    metavar="SHARE",
    help="Largest difference that counts as equal.",
)
@click.option(
    "--fail-under",
    "least",
    callback=make_reader(ShareRange(0.01, 10)),
    metavar="SHARE",
    help="Exit with 7 if a point has less than this share of BASE, or is missing.",
)
@text_option("--junit", "Write failures as JUnit XML.", "FILE")
@flag_option("--anyway", "Compare even what is not comparable, and mark it.")
@VIEW_FORM
@UNIT
@returns_result
@takes_logs
def compare(
    *,
    base: str,
    new: tuple[str, ...],
    request: CollectRequest,
    places: Places,
    by: str | None,
    within: float,
    least: float | None,
    junit: str,
    form: str,
    **values: Any,
) -> Result:
    """Compare results point by point, with a verdict on each.

    BASE and NEW are campaigns, logs, results that collect saved (*.json), or names from the
    published record. hpcbert matches points by framework, model, precision, batch size, options and
    shape. A verdict needs four valid runs on both sides. hpcbert refuses to compare results that
    were not measured in the same way.

    \b
    Examples:
      hpcbert compare 20261121 20261122
      hpcbert compare main.json runs/20261122-pytorch-1a2b3c --fail-under 97% --junit gate.xml
      hpcbert compare dlperf:oneflow-fp32 20261121-oneflow-1a2b3c
      hpcbert compare --by framework runs/20261121-oneflow-1a2b3c runs/20261121-pytorch-4d5e6f
    """
    if least is None:
        refuse_typed(("junit",), "without --fail-under")
    sides = (base, *new)
    result = compare_results(
        sides, places, request, by=by or "", within=within, least=least, **values
    )
    if junit:
        content = render_junit("hpcbert compare", result.comparisons, result.failures)
        write_output(Path(junit), content, "--junit")
    width = streams.line_width(sys.stdout)
    views = [comparison_view(entry, within) for entry in result.comparisons]
    comparisons = list(map(comparison_data, result.comparisons))
    return Result(
        data={"within": within, "fail_under": least, "comparisons": comparisons},
        text="\n\n".join(view.render(form, width) for view in views),
        errors=(*result.failures, *map(IncompleteError, result.refused)),
        warnings=result.warnings,
    )


@click.command()
@click.argument("names", nargs=-1, metavar="[NODE]...")
@RUNS
@SITE
@returns_result
def nodes(names: tuple[str, ...], *, runs: str, site_file: str) -> Result:
    """Show the history of nodes: rates and facts, campaign by campaign.

    It has the valid runs on one node in your campaigns: their median, that over the median of the
    same point in the campaign before, and the facts of the node that changed since then. A run on
    several nodes says nothing about one of them.

    \b
    Examples:
      hpcbert nodes
      hpcbert nodes n07
      hpcbert nodes 'n[01-04]' --json
    """
    root, places = find_runs(runs, site_file), find_places(site_file)
    warnings: list[str] = []
    results: list[ResultSet] = []
    for path in track(store.find_campaigns(root), "collecting campaigns"):
        try:
            results.append(load_result_set([str(path)], places))
        except HpcbertError as error:  # noqa: PERF203
            warnings.append(f"{path} is left out: {error}")
    records = list_history(result for result in results if result.sources)
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
    rows = tuple((*record[:2], record.created[:10], *record[3:7]) for record in shown)
    notes = dict.fromkeys(
        f"{record.node} in {record.campaign}: {change}"
        for record in shown
        for change in record.changes
    )
    view = TableView((), Grid("nodes", "Nodes", _HISTORY_COLUMNS, rows), tuple(notes))
    table = view.text(streams.line_width(sys.stdout))
    table = table if shown else "No campaign has a valid run on one node."
    return Result(data, table, warnings=tuple(dict.fromkeys(warnings)))
