"""hpcbert list."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from hpcbert.campaign import store
from hpcbert.campaign.overview import STATES, age, look
from hpcbert.cli import streams
from hpcbert.cli.layout import COLLECT_AGAIN, PROVISIONAL, best_text, since_text, span
from hpcbert.cli.output import Result, returns_result
from hpcbert.config.site import load
from hpcbert.results.grid import aligned

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from hpcbert.campaign.overview import Overview

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


def listed(runs: Path, wanted: Filter, *, now: float) -> tuple[Overview, ...]:
    """Return the campaigns under a directory, newest first.

    Args:
        runs: The directory.
        wanted: Which of them.
        now: Seconds since the epoch.
    """
    there = store.everyones(runs) if wanted.everyone else store.find_campaigns(runs)
    found = [one for one in map(look, there) if _fits(one, wanted, now)]
    found.sort(key=lambda one: (one.created, one.campaign), reverse=True)
    return tuple(found[: wanted.limit])


def _fits(one: Overview, wanted: Filter, now: float) -> bool:
    dated = (wanted.newer, wanted.older) != (None, None)
    since = age(one.created, now=now) if dated else None
    text = f"{one.campaign}\n{one.name}\n{one.note}".lower()
    return (
        (not wanted.frameworks or one.framework in wanted.frameworks)
        and (not wanted.states or one.state in wanted.states)
        and wanted.name.lower() in text
        and (wanted.newer is None or (since is not None and since < wanted.newer))
        and (wanted.older is None or (since is not None and since > wanted.older))
    )


def _seconds(_ctx: click.Context, _param: click.Parameter, value: str) -> float | None:
    """Read an age; click's callback."""
    if not value:
        return None
    found = _AGE.fullmatch(value.strip())
    if not found:
        raise click.BadParameter(f"{value!r} is not an age. Write 90m, 12h, 7d or 4w.")
    return float(int(found[1]) * _UNITS[found[2]])


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
    "--newer", default="", metavar="AGE", callback=_seconds, help="Only newer than 12h, 7d, 4w."
)
@click.option("--older", default="", metavar="AGE", callback=_seconds, help="Only older than that.")
@click.option("--everyone", is_flag=True, help="Include other users' campaigns.")
@click.option("--runs", default="", help="Directory of the campaigns.")
@click.option("--site", "site_file", default="", help="A site.toml, or its folder.")
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
    directory, now = Path(runs or load(site_file).runs), time.time()
    wanted = Filter(fw, state, name, newer, older, limit, everyone)
    found = listed(directory, wanted, now=now)
    data = {
        "runs": str(directory.absolute()),
        "source": "files",
        "campaigns": [{**asdict(one), "age_seconds": age(one.created, now=now)} for one in found],
    }
    if not found and not everyone and listed(directory, wanted._replace(everyone=True), now=now):
        return Result(data, f"None of yours in {directory}; --everyone lists those of others.")
    return Result(data, _text(found, directory, now, narrowed=wanted != Filter()))


def _text(found: Sequence[Overview], runs: Path, now: float, *, narrowed: bool) -> str:
    if not found:
        start = "Start one with hpcbert submit."
        return f"No campaign in {runs} {'matches.' if narrowed else f'yet. {start}'}"
    rows = [_TITLES, *(_row(one, now) for one in found)]
    right = _RIGHT
    if not any(row[_NAME] for row in rows[1:]):
        rows = [(*row[:_NAME], *row[_NAME + 1 :]) for row in rows]
        right = tuple(at - 1 for at in right)
    notes = ["", _FROM_FILES, *([COLLECT_AGAIN] if any(one.provisional for one in found) else [])]
    return "\n".join([*aligned(rows, streams.width(sys.stdout), right=right), *notes])


def _row(one: Overview, now: float) -> tuple[str, ...]:
    rehearsal = "rehearsal" if one.rehearse and one.state != "rehearsed" else ""
    return (
        one.campaign,
        one.name if one.name != one.campaign else "",
        one.framework or "-",
        span(one.shapes),
        one.state,
        _valid(one),
        best_text(one.best),
        since_text(age(one.created, now=now)),
        " · ".join(filter(None, (rehearsal, one.problem, one.note))),
    )


def _valid(one: Overview) -> str:
    known: dict[str, Any] = {"valid": one.valid, "asked": one.asked}
    text = "{valid}/{asked}".format(**{key: "-" if n is None else n for key, n in known.items()})
    return text + PROVISIONAL * one.provisional
