"""hpcbert plan."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from hpcbert.campaign import store
from hpcbert.cli.campaigns import announce_runs
from hpcbert.cli.options import SectionedCommand, add_submit_options, flag_option, text_option
from hpcbert.cli.output import Result, pick, returns_result
from hpcbert.cli.request import plan_campaigns
from hpcbert.commands.monitor import read_campaigns
from hpcbert.commands.plan import Missing, Outlook, PointOutlook, forecast
from hpcbert.config import campaignfile
from hpcbert.config.options import Options
from hpcbert.errors import CheckError, UsageError, format_count
from hpcbert.model import format_utc
from hpcbert.results.grid import align_rows
from hpcbert.scheduler.base import Supply
from hpcbert.script.request import Cost, format_hours, hours_unit, refuse_expensive, sum_hours
from hpcbert.system.runner import MemoRunner, run

_NOTHING = "-"
_LEGEND = (
    "Hours are the maximum: each job uses its whole time limit. Expected hours are those of the "
    "median of earlier runs of the\nsame points in the directory of campaigns. A rank is one "
    "process of the distributed program."
)
_TITLES = ("shape", "precision", "batch", "repeats", "limit", "node-hours")
# The names of hours in the document, and the units of the points that have them; empty: all.
_HOURS: dict[str, tuple[str, ...]] = {
    "node_hours": (),
    "device_hours": ("GPU", "rank", "device"),
    "gpu_hours": ("GPU",),
    "rank_hours": ("rank",),
}


@click.command(cls=SectionedCommand)
@add_submit_options
@flag_option("--rehearse", "Plan a rehearsal: everything but the training.")
@text_option("--like", "Plan the same measurements again.", "CAMPAIGN")
@flag_option("--init", "Write an example of FILE with every key explained.")
@click.argument("file", required=False, type=click.Path(path_type=Path), metavar="[FILE]")
@returns_result
def plan(options: Options, *, rehearse: bool, like: str, init: bool, file: Path | None) -> Result:
    """Show what submit would cost, what is available and what is missing; submit nothing.

    Node-hours and GPU-hours are the most that the time limit allows; next to them stands the
    time that earlier runs took. The exit code is 5 if the campaign (everything that one submit
    starts) can't run. FILE is a campaign.toml.

    \b
    Examples:
      hpcbert plan --fw oneflow --nodes 4 --gpus-per-node 8 --scaling
      hpcbert plan --fw pytorch --nodes 1 --gpus-per-node 2 --max-gpu-hours 20
      hpcbert plan --init
      hpcbert plan campaign.toml
    """
    if init:
        return _write_example(file or Path("campaign.toml"))

    announce_runs(options.runs, options.site_file)
    submission = plan_campaigns(
        options, file=file, like=like, rehearse=rehearse, run=MemoRunner(run), planned=True
    )
    directories = store.find_campaigns(Path(submission.site.runs))
    campaigns, skipped = read_campaigns(reversed(directories))
    outlooks = [forecast(draft, campaigns, run=run) for draft in submission.drafts]
    points = [point for outlook in outlooks for point in outlook.points]
    doubts = [doubt for outlook in outlooks for doubt in outlook.doubts]
    warnings = [
        *submission.warnings,
        *(f"{entry.detail} {entry.hint}".rstrip() for entry in doubts),
    ]
    warnings += store.describe_left_out("the times of earlier runs", skipped)
    errors = [error for outlook in outlooks for error in outlook.refusals]
    try:
        refuse_expensive([point.cost for point in points], submission.options.max_gpu_hours)
    except UsageError as error:
        errors.append(CheckError(error.message, where=error.where, hint=error.hint))
    parts = [*map(_format_campaign, outlooks)]
    parts += [_format_sum(len(outlooks), points)] if len(outlooks) > 1 else []
    parts.append("It can't run as it is." if errors else "It can run: nothing was submitted.")
    data = {
        "can_run": not errors,
        "campaigns": [_campaign_data(outlook) for outlook in outlooks],
        "total": _sum_points(points),
    }
    distinct_errors = {(str(error), error.hint): error for error in errors}
    warnings = list(dict.fromkeys(warnings))
    return Result(data, "\n\n".join(parts), tuple(distinct_errors.values()), tuple(warnings))


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
    return {
        **pick(outlook.draft.campaign, "framework scheduler site"),
        **pick(outlook.points[0].cost.point, "model variant"),
        "points": [_point_data(point) for point in outlook.points],
        "total": _sum_points(outlook.points),
        "partitions": [{**vars(supply), "limit": str(supply.limit)} for supply in outlook.supplies],
        "missing": [vars(missing) for missing in outlook.lacks],
        "can_run": not outlook.refusals,
    }


def _point_data(point_outlook: PointOutlook) -> dict[str, Any]:
    cost, point, earlier = point_outlook.cost, point_outlook.cost.point, point_outlook.earlier
    start = point_outlook.start if point_outlook.start and point_outlook.start.when else None
    return {
        "point": point.key,
        "shape": str(point.shape),
        **pick(point, "precision device"),
        "batch_size_per_device": None if point.largest else point.batch_size_per_device,
        **pick(cost, "repeats jobs preflight"),
        "least_repeats": point_outlook.least,
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
    hours: dict[str, float | None] = {}
    for name, units in _HOURS.items():
        convert = Cost.on_devices if units else Cost.on_nodes
        counted = [point for point in points if not units or point.cost.unit in units]
        training = [point for point in counted if not point.cost.preflight]
        for kind, values in (
            (name, [convert(point.cost, point.cost.hours) for point in counted]),
            (f"least_{name}", [convert(point.cost, point.least_hours) for point in counted]),
            (f"expected_{name}", [convert(point.cost, point.expected_hours) for point in training]),
        ):
            hours[kind] = sum_hours(values)
    return hours


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
    hours = ("node_hours", "device_hours", "expected_device_hours")
    total = [format_hours(sums[name]) for name in hours]
    rows = [(*_TITLES, unit, "expected", "start"), *map(_format_row, points)]
    rows.append(("total", "", "", str(sums["repeats"]), "", *total, ""))
    table = align_rows(rows, right=range(len(_TITLES) + 2))
    table[0] = click.style(table[0], dim=True)
    parts = [head, "\n".join(table), _format_notes(outlook, unit, sums)]
    lines = [*map(_format_partition, outlook.supplies), *map(_format_missing, outlook.lacks)]
    return "\n\n".join([*parts, "\n".join(lines)] if lines else parts)


def _format_sum(campaign_count: int, points: Sequence[PointOutlook]) -> str:
    sums = _sum_points(points)
    unit = hours_unit(point.cost for point in points)
    counts = ", ".join(format_count(sums[f"{noun}s"], noun) for noun in ("point", "repeat", "job"))
    nodes, most = format_hours(sums["node_hours"]), format_hours(sums["device_hours"])
    campaigns = format_count(campaign_count, "campaign")
    return f"{campaigns}: {counts}; {nodes} node-hours, {most} {unit} at most."


def _format_row(point_outlook: PointOutlook) -> tuple[str, ...]:
    cost, point, start = point_outlook.cost, point_outlook.cost.point, point_outlook.start
    least, is_check = point_outlook.least, cost.preflight
    when = _NOTHING
    if start and start.absence:
        when = f"waits for {start.absence}"
    elif start and start.when is not None:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(start.when))
        when += f" on {start.nodes}" if start.nodes else ""
    return (
        str(point.shape),
        "preflight" if is_check else point.precision,
        _NOTHING if is_check else point.batch,
        str(cost.repeats) if least == cost.repeats else f"{least} to {cost.repeats}",
        str(cost.limit),
        format_hours(cost.on_nodes(cost.hours)),
        format_hours(cost.on_devices(cost.hours)),
        format_hours(cost.on_devices(point_outlook.expected_hours)),
        when,
    )


def _format_notes(outlook: Outlook, unit: str, sums: Mapping[str, Any]) -> str:
    lines = [_LEGEND]
    if any(point.least < point.cost.repeats for point in outlook.points):
        least = f"at least {format_hours(sums['least_device_hours'])} {unit}"
        lines.append(f"Repeats stop as soon as the median is precise enough: {least}.")
    resolved = outlook.draft.resolved
    if resolved.site.slurm.exclusive and resolved.scheduler.srun:
        gpus = format_count(resolved.site.nodes.gpus_per_node, "GPU")
        lines.append(
            "Jobs take whole nodes (slurm.exclusive): a site that bills whole nodes bills the "
            f"node-hours, with {gpus} each."
        )
    return "\n".join(lines)


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
    status = "not there yet" if missing.command else "perhaps missing"
    status = "missing" if missing.blocks else status
    part = f"{missing.kind} of {missing.framework}: {missing.detail}"
    return f"{status}: {part}\n  {missing.command or missing.hint}"
