"""hpcbert list, hpcbert show."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import click

from hpcbert.campaign import overview, preflight, store
from hpcbert.campaign.attempts import Ends, find_end, read_ends
from hpcbert.campaign.overview import STATES, Overview, PointResult, compute_age, read_overview
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.cli import streams
from hpcbert.cli.campaigns import OpenedCampaign, format_age, open_named, takes_runs
from hpcbert.cli.options import flag_option, make_reader, text_option
from hpcbert.cli.output import Result, join_results, pick, returns_result
from hpcbert.model import Campaign, Point
from hpcbert.results.grid import align_rows, format_number
from hpcbert.results.wording import describe_iterations, describe_repeats, describe_stop
from hpcbert.system.decode import Invalid

# Marks numbers that collect found before all repeats had ended.
_PROVISIONAL = "*"
_COLLECT_AGAIN = "* Provisional: collected before all repeats had ended; run hpcbert collect again."
# Up to this many shapes are named one by one.
_MAX_SHAPES = 3
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_AGE = re.compile(r"(\d{1,9})([smhdw])")
_TITLES = (
    *("campaign", "name", "framework", "shapes", "state"),
    *("valid", "best samples/s", "age", "note"),
)
# Columns aligned on the right, by number.
_RIGHT = (5, 6, 7)
_FROM_FILES = "These states come from files; hpcbert monitor asks the scheduler."


class Filter(NamedTuple):
    """The campaigns that the user wants to see; an empty or None field excludes none.

    Attributes:
        name: A part of the id, name or note, in upper or lower case.
        newer, older: Created less, or more, than this many seconds ago.
    """

    frameworks: Collection[str] = ()
    states: Collection[str] = ()
    name: str = ""
    newer: float | None = None
    older: float | None = None
    limit: int | None = None
    everyone: bool = False

    def matches(self, overview: Overview, now: float) -> bool:
        """Return whether the user wants to see a campaign."""
        age = compute_age(overview.created, now=now)
        text = f"{overview.campaign}\n{overview.name}\n{overview.note}".lower()
        return (
            (not self.frameworks or overview.framework in self.frameworks)
            and (not self.states or overview.state in self.states)
            and self.name.lower() in text
            and (self.newer is None or (age is not None and age < self.newer))
            and (self.older is None or (age is not None and age > self.older))
        )


def list_overviews(runs: Path, criteria: Filter, *, now: float) -> tuple[Overview, ...]:
    """Return the campaigns under a directory, newest first."""
    paths = store.find_all_campaigns(runs) if criteria.everyone else store.find_campaigns(runs)
    overviews = [entry for entry in map(read_overview, paths) if criteria.matches(entry, now)]
    # Those of one submission stay in its order.
    overviews.sort(
        key=lambda entry: (entry.created, entry.submission or entry.campaign, -entry.position),
        reverse=True,
    )
    return tuple(overviews[: criteria.limit])


def _read_age(text: str) -> float:
    match = _AGE.fullmatch(text.strip())
    if not match:
        raise Invalid(f"{text!r} is not an age", "Write 90m, 12h, 7d or 4w.")
    return float(int(match[1]) * _UNITS[match[2]])


_AGE_READER = make_reader(_read_age)


@click.command("list")
@click.option("--fw", multiple=True, metavar="NAME", help="Only this framework.")
@click.option(
    "--state", multiple=True, type=click.Choice(STATES), metavar="STATE",
    help=f"Only this state: {', '.join(STATES)}.",
)  # fmt: skip
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the newest N.")
@text_option("--name", "Only with this text in id, name or note.", "TEXT")
@click.option("--newer", metavar="AGE", callback=_AGE_READER, help="Only newer than 12h, 7d, 4w.")
@click.option("--older", metavar="AGE", callback=_AGE_READER, help="Only older than that.")
@flag_option("--everyone", "Include other users' campaigns.")
@returns_result
@takes_runs
def list_(*, fw: tuple[str, ...], state: tuple[str, ...], runs: Path, **values: Any) -> Result:
    """List your campaigns, newest first.

    list asks no scheduler: it reads the files of the campaigns. complete and incomplete campaigns
    were collected; an ended one was not yet. Of campaigns that wait or run it knows what their jobs
    wrote. The line of a damaged campaign gives the reason.

    \b
    Examples:
      hpcbert list
      hpcbert list --fw oneflow --state incomplete --newer 7d
      hpcbert list --name nccl --json
    """
    criteria, now = Filter(fw, state, **values), time.time()
    overviews = list_overviews(runs, criteria, now=now)
    rows = [
        {**asdict(entry), "age_seconds": compute_age(entry.created, now=now)} for entry in overviews
    ]
    data = {"runs": str(runs.absolute()), "source": "files", "campaigns": rows}
    table = _format_table(overviews, now)
    if not overviews:
        table = f"No campaign in {runs} matches; hpcbert submit starts one."
        table += "" if criteria.everyone else " --everyone lists those of other users, too."
    return Result(data, table)


def _format_table(overviews: Sequence[Overview], now: float) -> str:
    rows = [_TITLES, *(_format_overview(entry, now) for entry in overviews)]
    lines = [*align_rows(rows, streams.line_width(sys.stdout), right=_RIGHT), "", _FROM_FILES]
    lines += [_COLLECT_AGAIN] if any(entry.provisional for entry in overviews) else []
    return "\n".join(lines)


def _format_overview(overview: Overview, now: float) -> tuple[str, ...]:
    rehearsal = "rehearsal" if overview.rehearse and overview.state != "rehearsed" else ""
    valid = "-" if overview.valid is None else overview.valid
    asked = "-" if overview.asked is None else overview.asked
    shapes, best = overview.shapes, overview.best
    shown_shapes = ",".join(shapes) or "-"
    if len(shapes) > _MAX_SHAPES:
        shown_shapes = f"{shapes[0]}..{shapes[-1]} ({len(shapes)})"
    return (
        overview.campaign,
        overview.name if overview.name != overview.campaign else "-",
        f"{overview.framework} {overview.variant}".strip() or "-",
        shown_shapes,
        overview.state,
        f"{valid}/{asked}{_PROVISIONAL * overview.provisional}",
        f"{format_number(best.throughput)} {best.shape}" if best else "-",
        format_age(compute_age(overview.created, now=now)),
        " · ".join(filter(None, (rehearsal, overview.problem, overview.note))),
    )


@click.command()
@click.argument("campaigns", nargs=-1, metavar="[CAMPAIGN]...")
@returns_result
@takes_runs
def show(*, campaigns: tuple[str, ...], runs: Path) -> Result:
    """Show a campaign and its results so far.

    CAMPAIGN is a campaign's directory or archive, its id or a part of the id, or the name of a
    file's campaigns; the newest one by default. show asks no scheduler: it reads the campaign's
    files.

    \b
    Examples:
      hpcbert show
      hpcbert show 3f9a1c --json
    """
    now = time.time()
    return join_results([_show_campaign(entry, now) for entry in open_named(campaigns, runs)])


def _show_campaign(opened_campaign: OpenedCampaign, now: float) -> Result:
    directory = opened_campaign.directory
    manifest, summary = store.read_manifest(directory), read_overview(directory)
    results, ended = overview.read_results(directory, manifest), read_ends(directory)
    numbers = results.points if results else {}
    data = {
        **asdict(summary),
        "directory": str(opened_campaign.shown),
        "age_seconds": compute_age(summary.created, now=now),
        "source": "files",
        **pick(manifest, "site image command hpcbert"),
        "protocol": asdict(manifest.protocol),
        "points": [
            _point_data(directory, manifest, point, numbers.get(point), ended)
            for point in manifest.of_point
        ],
        "preflight": preflight.describe_preflight(TrackedCampaign(directory, manifest)),
    }
    lines = [*_format_facts(summary, manifest, data), "", *_format_points(data)]
    lines += ["", _FROM_FILES]
    warnings = store.warn_about_writers(opened_campaign.shown)
    return Result(data, "\n".join(lines), warnings=warnings)


def _point_data(
    directory: Path, manifest: Campaign, point: Point, result: PointResult | None, repeat_ends: Ends
) -> dict[str, Any]:
    repeats = [(array, number) for array, number in manifest.current if array.point == point]
    phases = Counter(
        overview.find_phase(directory, *array_repeat, repeat_ends) for array_repeat in repeats
    )
    recorded = [find_end(repeat_ends, *array_repeat) for array_repeat in repeats]
    is_adaptive = manifest.protocol.precision_of_median is not None
    return {
        "point": point.key,
        "shape": str(point.shape),
        **pick(point, "variant model precision device"),
        "batch_size_per_device": None if point.largest else point.batch_size_per_device,
        "jobs": list(dict.fromkeys(array.job_id for array, _ in repeats if array.job_id)),
        "repeats": dict(phases),
        "ended": [pick(end, "repeat state detail") for end in recorded if end],
        "asked": result.asked if result and is_adaptive else len(repeats),
        "valid": result.valid if result else None,
        "median": result.median if result else None,
        "refused": [
            {"repeat": number, "why": reason}
            for number, reason in (result.refused if result else ())
        ],
        "unneeded": list(result.unneeded) if result else [],
    }


def _format_facts(summary: Overview, manifest: Campaign, data: Mapping[str, Any]) -> Iterator[str]:
    protocol, age = manifest.protocol, format_age(data["age_seconds"])
    protocol_words = (
        f"repeats {describe_repeats(protocol)}",
        f"{describe_iterations(protocol)} each, the first {protocol.skip} of them warm-up",
        describe_stop(protocol),
    )
    facts = {
        "campaign": summary.campaign,
        "name": manifest.name,
        "note": summary.note,
        "directory": data["directory"],
        "state": summary.state + (", a rehearsal" if summary.rehearse else ""),
        "problem": summary.problem,
        "created": f"{summary.created}, {age} ago, by {summary.user} with hpcbert "
        f"{manifest.hpcbert}",
        "framework": summary.framework,
        "scheduler": f"{summary.scheduler}, site {manifest.site}",
        "image": manifest.image,
        "protocol": "; ".join(filter(None, protocol_words)),
        "command": shlex.join(manifest.command),
        "preflight": " ".join(data["preflight"]),
    }
    yield from (f"{name + ':':<11}{value}" for name, value in facts.items() if value)


def _format_points(data: Mapping[str, Any]) -> Iterator[str]:
    rows = [("point", "job", "repeats", "valid", "median samples/s", "")]
    for point in data["points"]:
        valid = "-" if point["valid"] is None else point["valid"]
        row = (
            point["point"],
            ",".join(point["jobs"]) or "-",
            ", ".join(f"{count} {phase}" for phase, count in point["repeats"].items()),
            f"{valid}/{point['asked']}{_PROVISIONAL * data['provisional']}",
            format_number(point["median"]),
            point["variant"],
        )
        rows.append(row)
    yield from align_rows(rows, right=(3, 4))
    if data["provisional"]:
        yield _COLLECT_AGAIN
    for point in data["points"]:
        for end in () if point["refused"] else point["ended"]:
            yield f"{point['point']} repeat {end['repeat']}: {end['state']}: {end['detail']}"
        for refusal in point["refused"]:
            yield f"{point['point']} repeat {refusal['repeat']}: {refusal['why']}"
        if point["unneeded"]:
            yield f"{point['point']}: repeats not needed: {len(point['unneeded'])}"
