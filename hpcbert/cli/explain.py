"""hpcbert explain."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from hpcbert.campaign import store
from hpcbert.cli.campaigns import open_selected
from hpcbert.cli.options import RESULTS_SITE, TEMPLATES
from hpcbert.cli.output import Result, returns_result
from hpcbert.commands.collect import CollectRequest, Places, find_places, load_result_set
from hpcbert.errors import IncompleteError
from hpcbert.logs.arithmetic import median
from hpcbert.logs.input_wait import read_wait_share
from hpcbert.model import ARCHIVE, Group, Row, Shape, SpeedupTable
from hpcbert.results.explain import Observation
from hpcbert.results.explain import explain as explain_table
from hpcbert.results.wording import sanitize, table_title

_SPEED = re.compile(r" is ([0-9.e+]{1,20}) GB/s")
# Logs of a point to read for waits for input.
_MAX_LOGS = 5
# The rule for large messages, such as the buckets in which gradients are sent.
_LARGE_MESSAGE_RULE = "busbw-32M"


@click.command(
    epilog="\b\nExamples:\n"
    "  hpcbert explain\n"
    "  hpcbert explain 3f9a1c --network 20261121T120000Z-nccl-tests-77b0c2"
)
@click.argument("paths", nargs=-1)
@click.option("--network", multiple=True, metavar="CAMPAIGN", help="Campaign of nccl-tests.")
@TEMPLATES
@RESULTS_SITE
@returns_result
def explain(
    paths: tuple[str, ...],
    *,
    network: tuple[str, ...],
    templates: tuple[str, ...],
    site_file: str,
) -> Result:
    """Explain the efficiency of a result.

    PATHS are campaigns, by directory, archive, id or a part of the id; logs, or saved results;
    without any, the newest campaign. It reports the loss inside a node and between nodes, a node
    that lowers the median, the time of all-reduce alone against the time that a step lost, uneven
    steps, and waits for input, each with its numbers. If data is missing, it names the run that
    would provide it.
    """
    result_places = find_places(site_file, templates)
    results = load_result_set(_unpack_archives(paths, result_places), result_places)
    speeds: dict[Shape, float] = {}
    if network:
        speeds = read_bandwidths(
            load_result_set(
                _unpack_archives(network, result_places),
                result_places,
                CollectRequest(rule=_LARGE_MESSAGE_RULE),
            ).tables
        )
    source_paths = {source.name: Path(source.path) for source in results.sources if source.path}
    tables = [
        (
            table.group,
            explain_table(table, bandwidths=speeds, waits=_read_waits(table, source_paths)),
        )
        for table in results.tables
    ]
    errors = () if tables else (IncompleteError("There is no table to explain."),)
    data = {
        "tables": [
            {
                **vars(group),
                "findings": [
                    {**vars(finding), "shape": str(finding.shape) if finding.shape else None}
                    for finding in findings
                ],
            }
            for group, findings in tables
        ]
    }
    text = "\n\n".join("\n".join(_format_findings(group, findings)) for group, findings in tables)
    return Result(data, text, errors, (*results.warnings, *results.refused))


def _unpack_archives(names: Sequence[str], places: Places) -> list[str]:
    """Return names with archives replaced by the directories that hold their content meanwhile."""
    paths = []
    for name in names:
        archive = store.find_archive(name, places.runs) if name.endswith(ARCHIVE) else None
        path = open_selected(str(archive), places.runs).directory if archive else name
        paths.append(str(path))
    return paths


def read_bandwidths(tables: Sequence[SpeedupTable]) -> dict[Shape, float]:
    """Return the bus bandwidth of each shape, GB/s: runs of nccl-tests give it as their reason."""
    speeds_by_shape: dict[Shape, list[float]] = {}
    for table in tables:
        for row in table.rows:
            for run in row.runs:
                for reason in run.reasons:
                    if match := _SPEED.search(reason.detail):
                        speeds_by_shape.setdefault(row.shape, []).append(float(match[1]))
    return {shape: median(speeds) for shape, speeds in speeds_by_shape.items()}


def _read_waits(table: SpeedupTable, places: Mapping[str, Path]) -> dict[Shape, list[float]]:
    shares = {row.shape: _read_row_waits(row, places) for row in table.rows}
    return {shape: share for shape, share in shares.items() if share}


def _read_row_waits(row: Row, places: Mapping[str, Path]) -> list[float]:
    logs = [run.log for run in row.runs if run.valid and run.log][:_MAX_LOGS]
    origin = row.origin
    directory = places.get(origin.name, Path()) if origin and origin.kind == "campaign" else Path()
    shares = (read_wait_share(directory / log) for log in logs)
    return [share for share in shares if share is not None]


def _format_findings(group: Group, findings: Sequence[Observation]) -> Iterator[str]:
    title = f"{table_title(group, ' · ')} · {group.batch} samples per device"
    options = f" · {sanitize(group.variant)}" if group.variant else ""
    yield click.style(title + options, bold=True)
    for finding in findings:
        sign = click.style("?", fg="yellow") if finding.missing else "·"
        yield f"  {sign} {finding.text}"
