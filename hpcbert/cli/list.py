"""hpcbert list."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import click

from hpcbert.campaign import store
from hpcbert.campaign.overview import STATES, Overview, compute_age, read_overview
from hpcbert.cli import streams
from hpcbert.cli.campaigns import (
    COLLECT_AGAIN,
    PROVISIONAL,
    find_runs,
    format_age,
    format_best,
    format_shapes,
)
from hpcbert.cli.options import RUNS, SITE
from hpcbert.cli.output import Result, returns_result
from hpcbert.results.grid import align_rows

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_AGE = re.compile(r"(\d{1,9})([smhdw])")
_TITLES = (
    "campaign",
    "name",
    "framework",
    "shapes",
    "state",
    "valid",
    "best samples/s",
    "age",
    "note",
)
# Columns by number: those aligned on the right, and those left out if they are empty.
_RIGHT: tuple[int, ...] = (5, 6, 7)
_NAME = 1
_FROM_FILES = "These states come from files; hpcbert monitor asks the scheduler."


class Filter(NamedTuple):
    """The campaigns that the user wants to see; an empty or None field excludes none.

    Attributes:
        frameworks, states: One of these.
        name: A part of the id, name or note, in upper or lower case.
        newer, older: Created less, or more, than this many seconds ago.
        limit: Only the newest of them.
        everyone: Whether to include other users' campaigns.
    """

    frameworks: Collection[str] = ()
    states: Collection[str] = ()
    name: str = ""
    newer: float | None = None
    older: float | None = None
    limit: int | None = None
    everyone: bool = False


def list_overviews(runs: Path, criteria: Filter, *, now: float) -> tuple[Overview, ...]:
    """Return the campaigns under a directory, newest first.

    Args:
        now: Seconds since the epoch.
    """
    paths = store.find_all_campaigns(runs) if criteria.everyone else store.find_campaigns(runs)
    overviews = [
        overview
        for overview in map(read_overview, paths)
        if _matches_filter(overview, criteria, now)
    ]
    # Those of one submission stay in its order.
    overviews.sort(key=lambda entry: entry.position)
    overviews.sort(
        key=lambda entry: (entry.created, entry.submission or entry.campaign), reverse=True
    )
    return tuple(overviews[: criteria.limit])


def _matches_filter(overview: Overview, criteria: Filter, now: float) -> bool:
    has_age_limit = (criteria.newer, criteria.older) != (None, None)
    since = compute_age(overview.created, now=now) if has_age_limit else None
    text = f"{overview.campaign}\n{overview.name}\n{overview.note}".lower()
    return (
        (not criteria.frameworks or overview.framework in criteria.frameworks)
        and (not criteria.states or overview.state in criteria.states)
        and criteria.name.lower() in text
        and (criteria.newer is None or (since is not None and since < criteria.newer))
        and (criteria.older is None or (since is not None and since > criteria.older))
    )


def _read_age(_ctx: click.Context, _param: click.Parameter, value: str) -> float | None:
    if not value:
        return None
    match = _AGE.fullmatch(value.strip())
    if not match:
        raise click.BadParameter(f"{value!r} is not an age. Write 90m, 12h, 7d or 4w.")
    return float(int(match[1]) * _UNITS[match[2]])


@click.command(
    "list",
    epilog="\b\nExamples:\n"
    "  hpcbert list\n"
    "  hpcbert list --fw oneflow --state incomplete --newer 7d\n"
    "  hpcbert list --name nccl --json",
)
@click.option("--fw", multiple=True, metavar="NAME", help="Only this framework.")
@click.option(
    "--state", multiple=True, type=click.Choice(STATES), metavar="STATE",
    help=f"Only this state: {', '.join(STATES)}.",
)  # fmt: skip
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the newest N.")
@click.option("--name", default="", metavar="TEXT", help="Only with this text in id, name or note.")
@click.option(
    "--newer", default="", metavar="AGE", callback=_read_age, help="Only newer than 12h, 7d, 4w."
)
@click.option(
    "--older", default="", metavar="AGE", callback=_read_age, help="Only older than that."
)
@click.option("--everyone", is_flag=True, help="Include other users' campaigns.")
@RUNS
@SITE
@returns_result
def list_(
    *,
    fw: tuple[str, ...],
    state: tuple[str, ...],
    limit: int | None,
    name: str,
    newer: float | None,
    older: float | None,
    everyone: bool,
    runs: str,
    site_file: str,
) -> Result:
    """List your campaigns, newest first.

    list asks no scheduler: it reads the files of the campaigns. complete and incomplete campaigns
    were collected; an ended one was not yet. Of campaigns that wait or run it knows what their jobs
    wrote. The line of a damaged campaign gives the reason.
    """
    directory, now = find_runs(runs, site_file), time.time()
    criteria = Filter(fw, state, name, newer, older, limit, everyone)
    overviews = list_overviews(directory, criteria, now=now)
    data = {
        "runs": str(directory.absolute()),
        "source": "files",
        "campaigns": [
            {**asdict(overview), "age_seconds": compute_age(overview.created, now=now)}
            for overview in overviews
        ],
    }
    text = _format_table(overviews, directory, now, narrowed=criteria != Filter())
    if not overviews and list_overviews(directory, criteria._replace(everyone=True), now=now):
        text = f"None of yours in {directory}; --everyone lists those of others."
    return Result(data, text)


def _format_table(overviews: Sequence[Overview], runs: Path, now: float, *, narrowed: bool) -> str:
    if not overviews:
        start = "Start one with hpcbert submit."
        return f"No campaign in {runs} {'matches.' if narrowed else f'yet. {start}'}"
    rows = [_TITLES, *(_format_row(overview, now) for overview in overviews)]
    right = _RIGHT
    if not any(row[_NAME] for row in rows[1:]):
        rows = [(*row[:_NAME], *row[_NAME + 1 :]) for row in rows]
        right = tuple(column - 1 for column in right)
    lines = [*align_rows(rows, streams.line_width(sys.stdout), right=right), "", _FROM_FILES]
    if any(overview.provisional for overview in overviews):
        lines.append(COLLECT_AGAIN)
    return "\n".join(lines)


def _format_row(overview: Overview, now: float) -> tuple[str, ...]:
    rehearsal = "rehearsal" if overview.rehearse and overview.state != "rehearsed" else ""
    return (
        overview.campaign,
        overview.name if overview.name != overview.campaign else "",
        f"{overview.framework} {overview.variant}".strip() or "-",
        format_shapes(overview.shapes),
        overview.state,
        _format_valid(overview),
        format_best(overview.best),
        format_age(compute_age(overview.created, now=now)),
        " · ".join(filter(None, (rehearsal, overview.problem, overview.note))),
    )


def _format_valid(overview: Overview) -> str:
    valid = "-" if overview.valid is None else overview.valid
    asked = "-" if overview.asked is None else overview.asked
    return f"{valid}/{asked}{PROVISIONAL * overview.provisional}"
