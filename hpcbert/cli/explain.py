"""hpcbert explain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hpcbert.campaign import store
from hpcbert.cli.campaigns import open_campaigns
from hpcbert.cli.output import Result, returns_result
from hpcbert.errors import IncompleteError
from hpcbert.flows.explain import explained
from hpcbert.flows.results import find_places
from hpcbert.model import ARCHIVE
from hpcbert.results.words import on_cpu, plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hpcbert.flows.results import Places
    from hpcbert.model import Group
    from hpcbert.results.explained import Observation


@click.command(
    epilog="\b\nExamples:\n"
    "  hpcbert explain\n"
    "  hpcbert explain 3f9a1c --network 20261121T120000Z-nccl-tests-77b0c2"
)
@click.argument("paths", nargs=-1)
@click.option("--network", multiple=True, metavar="CAMPAIGN", help="Campaign of nccl-tests.")
@click.option("--templates", multiple=True, help="A folder with recipes of your own.")
@click.option("--site", "site_file", default="", help="Site whose runs are read without a path.")
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
    at = find_places(site_file, templates)
    found, warnings = explained(_unpacked(paths, at), at, network=_unpacked(network, at))
    errors = () if found else (IncompleteError("There is no table to explain."),)
    data = {
        "tables": [
            {
                **vars(group),
                "findings": [
                    {**vars(one), "shape": str(one.shape) if one.shape else None}
                    for one in findings
                ],
            }
            for group, findings in found
        ]
    }
    text = "\n\n".join("\n".join(_lines(group, findings)) for group, findings in found)
    return Result(data, text, errors, warnings)


def _unpacked(words: Sequence[str], at: Places) -> list[str]:
    """Return words with archives replaced by the directories that hold their content meanwhile."""
    archives = {word: store.archived(word, at.runs) for word in words if word.endswith(ARCHIVE)}
    return [
        str(open_campaigns([str(packed)], at.runs)[0].directory)
        if (packed := archives.get(word))
        else word
        for word in words
    ]


def _lines(group: Group, findings: Sequence[Observation]) -> Iterator[str]:
    title = f"{group.framework} · {group.model} · {group.precision}{on_cpu(group, ' · ')}"
    yield click.style(plain(f"{title} · {group.batch} samples per device"), bold=True)
    for one in findings:
        sign = click.style("?", fg="yellow") if one.missing else "·"
        yield f"  {sign} {one.text}"
