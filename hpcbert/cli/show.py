"""hpcbert show."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcbert.campaign import ends, overview, preflight, store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.cli.campaigns import open_campaigns
from hpcbert.cli.layout import COLLECT_AGAIN, PROVISIONAL, since_text
from hpcbert.cli.output import Result, returns_result
from hpcbert.config.site import load
from hpcbert.results.grid import aligned, number
from hpcbert.results.words import repeats_of, until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hpcbert.campaign.ends import Ends
    from hpcbert.campaign.overview import Overview, PointResult
    from hpcbert.model import Campaign, Point


@click.command(epilog="\b\nExamples:\n  hpcbert show\n  hpcbert show 3f9a1c --json")
@click.argument("campaign", default="")
@click.option("--runs", default="", help="Directory of the campaigns.")
@click.option("--site", "site_file", default="", help="A site.toml, or its folder.")
@returns_result
def show(*, campaign: str, runs: str, site_file: str) -> Result:
    """Show a campaign and its results so far.

    CAMPAIGN is a campaign's directory or archive, its id or a part of the id; the newest one by
    default. show asks no scheduler: it reads the campaign's files.
    """
    (opened_campaign,) = open_campaigns(
        [campaign] if campaign else (), Path(runs or load(site_file).runs)
    )
    manifest = store.read_manifest(opened_campaign.directory)
    seen, now = overview.look(opened_campaign.directory), time.time()
    numbers = overview.numbers(opened_campaign.directory, manifest)
    ended = ends.read(opened_campaign.directory)
    points = [
        _point(opened_campaign.directory, manifest, point, numbers, ended)
        for point in manifest.of_point
    ]
    data = {
        **asdict(seen),
        "directory": str(opened_campaign.shown),
        "age_seconds": overview.age(seen.created, now=now),
        "source": "files",
        "site": manifest.site,
        "image": manifest.image,
        "command": list(manifest.command),
        "hpcbert": manifest.hpcbert,
        "protocol": asdict(manifest.protocol),
        "points": points,
        "preflight": preflight.sentences(TrackedCampaign(opened_campaign.directory, manifest)),
    }
    text = "\n".join(_lines(seen, manifest, data, now))
    return Result(data, text, warnings=store.caution(opened_campaign.shown))


def _point(
    directory: Path,
    manifest: Campaign,
    point: Point,
    numbers: Mapping[Point, PointResult],
    ended: Ends,
) -> dict[str, Any]:
    mine = [(array, number) for array, number in manifest.current if array.point == point]
    point_result, adaptive = numbers.get(point), manifest.protocol.precision_of_median is not None
    return {
        "point": point.key,
        "variant": point.variant,
        "shape": str(point.shape),
        "model": point.model,
        "precision": point.precision,
        "batch_size_per_device": None if point.largest else point.batch_size_per_device,
        "device": point.device,
        "jobs": list(dict.fromkeys(array.job_id for array, _ in mine if array.job_id)),
        "repeats": dict(Counter(overview.phase(directory, *one, on_record=ended) for one in mine)),
        "ended": [
            {"repeat": end.repeat, "state": end.state, "detail": end.detail}
            for one in mine
            if (end := ended.of(*one))
        ],
        "asked": point_result.asked if point_result and adaptive else len(mine),
        "valid": point_result.valid if point_result else None,
        "median": point_result.median if point_result else None,
        "refused": [
            {"repeat": number, "why": why}
            for number, why in (point_result.refused if point_result else ())
        ],
        "unneeded": list(point_result.unneeded) if point_result else [],
    }


def _lines(
    seen: Overview, manifest: Campaign, data: Mapping[str, Any], now: float
) -> Iterator[str]:
    protocol, goal = manifest.protocol, until(manifest.protocol)
    old = since_text(overview.age(seen.created, now=now))
    facts = {
        "campaign": seen.campaign,
        "name": manifest.name,
        "note": seen.note,
        "directory": data["directory"],
        "state": seen.state + (", a rehearsal" if seen.rehearse else ""),
        "problem": seen.problem,
        "created": f"{seen.created}, {old} ago, by {seen.user} with hpcbert {manifest.hpcbert}",
        "framework": seen.framework,
        "scheduler": f"{seen.scheduler}, site {manifest.site}",
        "image": manifest.image,
        "protocol": f"{repeats_of(protocol)} repeats of {protocol.iters} iterations, the first "
        f"{protocol.skip} of them warm-up" + (f"; {goal}" if goal else ""),
        "command": shlex.join(manifest.command),
        "preflight": " ".join(data["preflight"]),
    }
    yield from (f"{name + ':':<11}{value}" for name, value in facts.items() if value)
    titles = ("point", "job", "repeats", "valid", "median samples/s", "")
    rows = [titles, *(_row(point, seen.provisional) for point in data["points"])]
    yield ""
    yield from aligned(rows, right=(3, 4))
    if seen.provisional:
        yield COLLECT_AGAIN
    for point in data["points"]:
        alike: dict[str, list[str]] = {}
        for one in () if point["refused"] else point["ended"]:
            alike.setdefault(f"{one['state']}: {one['detail']}", []).append(str(one["repeat"]))
        for what, numbers in alike.items():
            yield f"{point['point']} repeat {', '.join(numbers)}: {what}"
        for one in point["refused"]:
            yield f"{point['point']} repeat {one['repeat']}: {one['why']}"
        if count := len(point["unneeded"]):
            yield f"{point['point']}: {count} repeats were not needed"
    yield ""
    yield "These states come from files; hpcbert monitor asks the scheduler."


def _row(point: Mapping[str, Any], provisional: bool) -> tuple[str, ...]:
    valid = "-" if point["valid"] is None else point["valid"]
    return (
        point["point"],
        ",".join(point["jobs"]) or "-",
        ", ".join(f"{count} {phase}" for phase, count in point["repeats"].items()),
        f"{valid}/{point['asked']}{PROVISIONAL * provisional}",
        number(point["median"]),
        point["variant"],
    )
