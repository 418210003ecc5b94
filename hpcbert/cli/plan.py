"""hpcbert plan."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from hpcbert.campaign import store
from hpcbert.cli.campaigns import announce_runs
from hpcbert.cli.options import SectionedCommand, add_submit_options
from hpcbert.cli.output import Result, returns_result
from hpcbert.cli.request import plan_campaigns
from hpcbert.commands.plan import (
    Missing,
    Outlook,
    PointOutlook,
    find_own_campaigns,
    forecast,
    list_refusals,
)
from hpcbert.config import campaignfile
from hpcbert.config.options import Options
from hpcbert.errors import CheckError, UsageError, format_count
from hpcbert.model import format_utc
from hpcbert.results.grid import align_rows
from hpcbert.scheduler.base import Supply
from hpcbert.script.request import Cost, format_hours, hours_unit, refuse_expensive, sum_hours
from hpcbert.system.runner import PrefetchingRunner, run

_NOTHING = "-"
# Campaigns that one sentence names.
_MAX_CAMPAIGNS = 3
_TITLES = ("shape", "precision", "batch", "repeats", "limit", "node-hours")
# The names of hours in the document, and their unit.
_HOURS = {
    "device_hours": ("GPU", "rank", "device"),
    "gpu_hours": ("GPU",),
    "rank_hours": ("rank",),
}


@click.command(
    cls=SectionedCommand,
    epilog="\b\nExamples:\n"
    "  hpcbert plan --fw oneflow --nodes 4 --gpus-per-node 8 --scaling\n"
    "  hpcbert plan --fw pytorch --nodes 1 --gpus-per-node 2 --max-gpu-hours 20\n"
    "  hpcbert plan --init\n"
    "  hpcbert plan campaign.toml",
)
@add_submit_options
@click.option("--rehearse", is_flag=True, help="Plan a rehearsal: everything but the training.")
@click.option("--like", default="", metavar="CAMPAIGN", help="Plan the same measurements again.")
@click.option("--init", is_flag=True, help="Write an example of FILE with every key explained.")
@click.argument("file", required=False, type=click.Path(path_type=Path), metavar="[FILE]")
@returns_result
def plan(options: Options, *, rehearse: bool, like: str, init: bool, file: Path | None) -> Result:
    """Show what submit would cost, what is available and what is missing; submit nothing.

    Node-hours and GPU-hours are the most that the time limit allows; next to them stands the
    time that earlier runs took. The exit code is 5 if the campaign (everything that one submit
    starts) can't run. FILE is a campaign.toml.
    """
    if init:
        return _write_example(file or Path("campaign.toml"))

    announce_runs(options.runs, options.site_file)
    with closing(PrefetchingRunner(run)) as ahead:
        submission = plan_campaigns(
            options, file=file, like=like, rehearse=rehearse, ahead=ahead, planned=True
        )
    runs, skipped = find_own_campaigns(Path(submission.site.runs))
    outlooks = [forecast(draft, runs, run=run) for draft in submission.drafts]
    doubts = (doubt for outlook in outlooks for doubt in outlook.doubts)
    warnings = [
        *submission.warnings,
        *(f"{doubt.detail} {doubt.hint}".rstrip() for doubt in doubts),
    ]
    warnings += store.describe_left_out("the times of earlier runs", skipped)
    errors = [error for outlook in outlooks for error in list_refusals(outlook)]
    if submission.options.max_gpu_hours is not None:
        try:
            refuse_expensive(
                [point.cost for outlook in outlooks for point in outlook.points],
                submission.options.max_gpu_hours,
            )
        except UsageError as error:
            errors.append(CheckError(error.message, where=error.where, hint=error.hint))
    can_run = not errors
    text = "\n\n".join([*map(_format_campaign, outlooks), *_format_sum(outlooks)])
    text += "\n\nIt can run: nothing was submitted." if can_run else "\n\nIt can't run as it is."
    data = {"can_run": can_run, "campaigns": [_campaign_data(outlook) for outlook in outlooks]}
    data["total"] = _sum_points([point for outlook in outlooks for point in outlook.points])
    distinct_errors = {(str(error), error.hint): error for error in errors}
    return Result(data, text, tuple(distinct_errors.values()), tuple(dict.fromkeys(warnings)))


def _write_example(path: Path) -> Result:
    if path.exists() or path.is_symlink():
        hint = "Name another file, or remove it."
        raise UsageError("The file exists already.", where=str(path), hint=hint)
    store.write_text(path, campaignfile.EXAMPLE.read_text(encoding="utf-8"))
    where = shlex.quote(str(path))
    text = f"{path}: an example. Change it, then: hpcbert plan {where}"
    return Result({"path": str(path)}, text)


# --- As data ------------------------------------------------------------------------------------


def _campaign_data(outlook: Outlook) -> dict[str, Any]:
    campaign = outlook.draft.campaign
    return {
        "framework": campaign.framework,
        "model": outlook.points[0].cost.point.model,
        "variant": outlook.points[0].cost.point.variant,
        "scheduler": campaign.scheduler,
        "site": campaign.site,
        "points": [_point_data(point) for point in outlook.points],
        "total": _sum_points(outlook.points),
        "partitions": [{**vars(supply), "limit": str(supply.limit)} for supply in outlook.supplies],
        "missing": [vars(missing) for missing in outlook.lacks],
        "can_run": outlook.can_run,
    }


def _point_data(point_outlook: PointOutlook) -> dict[str, Any]:
    cost, point, earlier = point_outlook.cost, point_outlook.cost.point, point_outlook.earlier
    start = point_outlook.start if point_outlook.start and point_outlook.start.when else None
    return {
        "point": point.key,
        "shape": str(point.shape),
        "precision": point.precision,
        "device": point.device,
        "batch_size_per_device": None if point.largest else point.batch_size_per_device,
        "repeats": cost.repeats,
        "least_repeats": point_outlook.least,
        "jobs": cost.jobs,
        "preflight": cost.preflight,
        "nodes": point.shape.nodes,
        "limit": str(cost.limit),
        **_sum_hours([point_outlook]),
        "earlier": earlier
        and {
            "median_seconds": earlier.typical,
            "runs": len(earlier.seconds),
            "campaigns": earlier.campaigns,
        },
        "start": format_utc(start.when) if start and start.when else None,
        "start_nodes": start.nodes if start else "",
    }


def _sum_points(points: Sequence[PointOutlook]) -> dict[str, Any]:
    training = [point for point in points if not point.cost.preflight]
    sums: dict[str, Any] = {
        "points": len(training),
        "repeats": sum(point.cost.repeats for point in training),
        "least_repeats": sum(point.least for point in training),
        "jobs": sum(point.cost.jobs for point in points),
    }
    return {**sums, **_sum_hours(points)}


def _sum_hours(points: Sequence[PointOutlook]) -> dict[str, float | None]:
    """Return hours by kind: the maximum, and those expected if all points have run before."""
    hours = _sum_kind("node_hours", points, Cost.on_nodes)
    for name, units in _HOURS.items():
        counted = [point for point in points if point.cost.unit in units]
        hours |= _sum_kind(name, counted, Cost.on_devices)
    return hours


def _sum_kind(
    name: str,
    points: Sequence[PointOutlook],
    convert: Callable[[Cost, float | None], float | None],
) -> dict[str, float | None]:
    training = [point for point in points if not point.cost.preflight]
    return {
        name: sum_hours(convert(point.cost, point.cost.hours) for point in points),
        f"least_{name}": sum_hours(convert(point.cost, point.least_hours) for point in points),
        f"expected_{name}": sum_hours(
            convert(point.cost, point.expected_hours) for point in training
        ),
    }


# --- As text ------------------------------------------------------------------------------------


def _format_campaign(outlook: Outlook) -> str:
    campaign, points = outlook.draft.campaign, outlook.points
    first_point, sums = points[0].cost.point, _sum_points(points)
    measured = (campaign.framework, first_point.model, first_point.variant)
    head = (
        f"{' · '.join(filter(None, measured))} · site {campaign.site} ({campaign.scheduler})\n"
        f"{format_count(sums['points'], 'point')} (one row each), "
        f"{format_count(sums['repeats'], 'repeat')} (runs of a point), "
        f"{format_count(sums['jobs'], 'job')}"
    )
    unit = hours_unit(point.cost for point in points)
    rows = [(*_TITLES, unit, "expected", "start"), *map(_format_row, points), _format_total(sums)]
    table = align_rows(rows, right=range(len(_TITLES) + 2))
    table[0] = click.style(table[0], dim=True)
    parts = [head, "\n".join(table), _format_notes(outlook, unit, sums)]
    lines = [*map(_format_partition, outlook.supplies), *map(_format_missing, outlook.lacks)]
    return "\n\n".join([*parts, "\n".join(lines)] if lines else parts)


def _format_sum(outlooks: Sequence[Outlook]) -> list[str]:
    """Return the sum over several campaigns; nothing for one: its table has it."""
    if len(outlooks) == 1:
        return []
    points = [point for outlook in outlooks for point in outlook.points]
    sums = _sum_points(points)
    unit = hours_unit(point.cost for point in points)
    counts = ", ".join(format_count(sums[f"{noun}s"], noun) for noun in ("point", "repeat", "job"))
    nodes, most = format_hours(sums["node_hours"]), format_hours(sums["device_hours"])
    campaigns = format_count(len(outlooks), "campaign")
    return [f"{campaigns}: {counts}; {nodes} node-hours, {most} {unit} at most."]


def _format_row(point_outlook: PointOutlook) -> tuple[str, ...]:
    cost, point = point_outlook.cost, point_outlook.cost.point
    return (
        str(point.shape),
        "preflight" if cost.preflight else point.precision,
        _NOTHING if cost.preflight else point.batch,
        str(cost.repeats)
        if point_outlook.least == cost.repeats
        else f"{point_outlook.least} to {cost.repeats}",
        str(cost.limit),
        format_hours(cost.on_nodes(cost.hours)),
        format_hours(cost.on_devices(cost.hours)),
        format_hours(cost.on_devices(point_outlook.expected_hours)),
        _format_start(point_outlook),
    )


def _format_total(sums: Mapping[str, Any]) -> tuple[str, ...]:
    names = ("node_hours", "device_hours", "expected_device_hours")
    hours = [format_hours(sums[name]) for name in names]
    return ("total", "", "", str(sums["repeats"]), "", *hours, "")


def _format_notes(outlook: Outlook, unit: str, sums: Mapping[str, Any]) -> str:
    """Return the meaning of the columns: the runs behind expectations, the cost of whole nodes."""
    lines = [f"Node-hours and {unit} are the maximum: each job uses its whole time limit."]
    if unit == "rank-hours":
        lines.append("A rank is one process of the distributed program.")
    if any(point.least < point.cost.repeats for point in outlook.points):
        least = format_hours(sums["least_device_hours"])
        lines.append(
            f"Repeats stop as soon as the median is precise enough: at least {least} {unit}."
        )
    lines.append(_format_expectation(outlook.points, unit))
    site = outlook.draft.resolved.site
    if site.slurm.exclusive and outlook.draft.resolved.scheduler.srun:
        lines += _format_whole_nodes(outlook.points, site.nodes.gpus_per_node)
    return "\n".join(lines)


def _format_expectation(points: Sequence[PointOutlook], unit: str) -> str:
    earlier_times = [point.earlier for point in points if point.earlier]
    if not earlier_times:
        return "No expected hours: the directory of campaigns has no run of these points yet."
    names = list(dict.fromkeys(name for earlier in earlier_times for name in earlier.campaigns))
    more = len(names) - _MAX_CAMPAIGNS
    text = ", ".join(names[:_MAX_CAMPAIGNS])
    text += f" and {more} more, which --json names" if more > 0 else ""
    runs = format_count(sum(len(earlier.seconds) for earlier in earlier_times), "earlier run")
    return f"Expected {unit} are based on the median of {runs} of the same points: {text}."


def _format_whole_nodes(points: Sequence[PointOutlook], gpus_per_node: int) -> list[str]:
    costs = [point.cost for point in points if point.cost.unit == "GPU"]
    if not costs:
        return []
    hours = sum_hours(cost.on_nodes(cost.hours) for cost in costs)
    bill = format_hours(hours and hours * gpus_per_node)
    text = "Jobs take whole nodes (slurm.exclusive): a site that bills whole nodes, with "
    text += f"{format_count(gpus_per_node, 'GPU')} each, bills up to {bill} GPU-hours."
    return [text]


def _format_start(point_outlook: PointOutlook) -> str:
    """Return when a point would start, in local time as Slurm's own commands print it."""
    if point_outlook.start is None:
        return _NOTHING
    if point_outlook.start.absence:
        return f"waits for {point_outlook.start.absence}"
    if point_outlook.start.when is None:
        return _NOTHING
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(point_outlook.start.when))
    return f"{when} on {point_outlook.start.nodes}" if point_outlook.start.nodes else when


def _format_partition(supply: Supply) -> str:
    node_limit = ""
    if supply.most_nodes is not None:
        node_limit = f", at most {format_count(supply.most_nodes, 'node')} a job"
    usable = "" if supply.usable is None else f", {supply.usable} usable, {supply.free} free now"
    resources = f", with {' or '.join(supply.resources)}" if supply.resources else ""
    return (
        f"partition {supply.name}: {supply.state}, {format_count(supply.nodes, 'node')}{usable}"
        f"{resources}; {supply.fitting} fit; limit {supply.limit}{node_limit}"
    )


def _format_missing(missing: Missing) -> str:
    status = (
        "missing" if missing.blocks else "not there yet" if missing.command else "perhaps missing"
    )
    part = f"{missing.kind} of {missing.framework}: {missing.detail}"
    return f"{status}: {part}\n  {missing.command or missing.hint}"
