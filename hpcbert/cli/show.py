"""hpcbert show."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hpcbert.campaign import overview, preflight, store
from hpcbert.campaign.attempts import Ends, find_end, read_ends
from hpcbert.campaign.overview import Overview, PointResult
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.cli.campaigns import (
    COLLECT_AGAIN,
    PROVISIONAL,
    OpenedCampaign,
    find_runs,
    format_age,
    open_named,
)
from hpcbert.cli.options import RUNS, SITE
from hpcbert.cli.output import Result, join_results, returns_result
from hpcbert.errors import format_count
from hpcbert.model import Campaign, Point
from hpcbert.results.grid import align_rows, format_number
from hpcbert.results.wording import describe_iterations, describe_repeats, describe_stop


@click.command(epilog="\b\nExamples:\n  hpcbert show\n  hpcbert show 3f9a1c --json")
@click.argument("campaigns", nargs=-1, metavar="[CAMPAIGN]...")
@RUNS
@SITE
@returns_result
def show(*, campaigns: tuple[str, ...], runs: str, site_file: str) -> Result:
    """Show a campaign and its results so far.

    CAMPAIGN is a campaign's directory or archive, its id or a part of the id, or the name of a
    file's campaigns; the newest one by default. show asks no scheduler: it reads the campaign's
    files.
    """
    now = time.time()
    opened_campaigns = open_named(campaigns, find_runs(runs, site_file))
    return join_results([_show_campaign(campaign, now) for campaign in opened_campaigns])


def _show_campaign(opened_campaign: OpenedCampaign, now: float) -> Result:
    manifest = store.read_manifest(opened_campaign.directory)
    summary = overview.read_overview(opened_campaign.directory)
    numbers = overview.read_results(opened_campaign.directory, manifest)
    ended = read_ends(opened_campaign.directory)
    points = [
        _point_data(opened_campaign.directory, manifest, point, numbers, ended)
        for point in manifest.of_point
    ]
    data = {
        **asdict(summary),
        "directory": str(opened_campaign.shown),
        "age_seconds": overview.compute_age(summary.created, now=now),
        "source": "files",
        "site": manifest.site,
        "image": manifest.image,
        "command": list(manifest.command),
        "hpcbert": manifest.hpcbert,
        "protocol": asdict(manifest.protocol),
        "points": points,
        "preflight": preflight.describe_preflight(
            TrackedCampaign(opened_campaign.directory, manifest)
        ),
    }
    text = "\n".join(_format_campaign(summary, manifest, data, now))
    return Result(data, text, warnings=store.warn_about_writers(opened_campaign.shown))


def _point_data(
    directory: Path,
    manifest: Campaign,
    point: Point,
    numbers: Mapping[Point, PointResult],
    repeat_ends: Ends,
) -> dict[str, Any]:
    repeats = [(array, number) for array, number in manifest.current if array.point == point]
    point_result, adaptive = numbers.get(point), manifest.protocol.precision_of_median is not None
    return {
        "point": point.key,
        "variant": point.variant,
        "shape": str(point.shape),
        "model": point.model,
        "precision": point.precision,
        "batch_size_per_device": None if point.largest else point.batch_size_per_device,
        "device": point.device,
        "jobs": list(dict.fromkeys(array.job_id for array, _ in repeats if array.job_id)),
        "repeats": dict(
            Counter(
                overview.find_phase(directory, *array_repeat, recorded_ends=repeat_ends)
                for array_repeat in repeats
            )
        ),
        "ended": [
            {"repeat": end.repeat, "state": end.state, "detail": end.detail}
            for array_repeat in repeats
            if (end := find_end(repeat_ends, *array_repeat))
        ],
        "asked": point_result.asked if point_result and adaptive else len(repeats),
        "valid": point_result.valid if point_result else None,
        "median": point_result.median if point_result else None,
        "refused": [
            {"repeat": number, "why": reason}
            for number, reason in (point_result.refused if point_result else ())
        ],
        "unneeded": list(point_result.unneeded) if point_result else [],
    }


def _format_campaign(
    summary: Overview, manifest: Campaign, data: Mapping[str, Any], now: float
) -> Iterator[str]:
    protocol, goal = manifest.protocol, describe_stop(manifest.protocol)
    noun = "repeat" if protocol.repeats == 1 else "repeats"
    age = format_age(overview.compute_age(summary.created, now=now))
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
        "protocol": f"{describe_repeats(protocol)} {noun} of {describe_iterations(protocol)}, the "
        f"first {protocol.skip} of them warm-up" + (f"; {goal}" if goal else ""),
        "command": shlex.join(manifest.command),
        "preflight": " ".join(data["preflight"]),
    }
    yield from (f"{name + ':':<11}{value}" for name, value in facts.items() if value)
    titles = ("point", "job", "repeats", "valid", "median samples/s", "")
    rows = [titles, *(_format_row(point, summary.provisional) for point in data["points"])]
    yield ""
    yield from align_rows(rows, right=(3, 4))
    if summary.provisional:
        yield COLLECT_AGAIN
    for point in data["points"]:
        repeats_by_end: dict[str, list[str]] = {}
        for end in () if point["refused"] else point["ended"]:
            repeats_by_end.setdefault(f"{end['state']}: {end['detail']}", []).append(
                str(end["repeat"])
            )
        for end_text, numbers in repeats_by_end.items():
            yield f"{point['point']} repeat {', '.join(numbers)}: {end_text}"
        for refusal in point["refused"]:
            yield f"{point['point']} repeat {refusal['repeat']}: {refusal['why']}"
        if count := len(point["unneeded"]):
            repeats = format_count(count, "repeat was", "repeats were")
            yield f"{point['point']}: {repeats} not needed"
    yield ""
    yield "These states come from files; hpcbert monitor asks the scheduler."


def _format_row(point: Mapping[str, Any], provisional: bool) -> tuple[str, ...]:
    valid = "-" if point["valid"] is None else point["valid"]
    return (
        point["point"],
        ",".join(point["jobs"]) or "-",
        ", ".join(f"{count} {phase}" for phase, count in point["repeats"].items()),
        f"{valid}/{point['asked']}{PROVISIONAL * provisional}",
        format_number(point["median"]),
        point["variant"],
    )
