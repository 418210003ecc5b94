"""hpcbert plan."""

from __future__ import annotations

import shlex
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcbert.campaign import durations, store
from hpcbert.cli.options import submit_options
from hpcbert.cli.output import Result, returns_result
from hpcbert.cli.submit_plan import plan_campaigns
from hpcbert.config import campaignfile
from hpcbert.errors import CheckError, UsageError
from hpcbert.model import utc
from hpcbert.results.grid import aligned
from hpcbert.script import cost
from hpcbert.script.cost import devices, text, total
from hpcbert.system.runner import Ahead, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcbert.commands.plan import Missing, Outlook, PointOutlook
    from hpcbert.config.options import Options
    from hpcbert.scheduler.base import Supply

_NOTHING = "-"
# Campaigns that one sentence names.
_NAMED = 3
_TITLES = ("shape", "precision", "batch", "repeats", "limit", "node-hours")
# The names of hours in the document, and their unit.
_HOURS = {
    "device_hours": ("GPU", "rank", "device"),
    "gpu_hours": ("GPU",),
    "rank_hours": ("rank",),
}


@click.command(
    epilog="\b\nExamples:\n"
    "  hpcbert plan --fw oneflow --nodes 4 --gpus-per-node 8 --scaling\n"
    "  hpcbert plan --fw pytorch --nodes 1 --gpus-per-node 2 --max-gpu-hours 20\n"
    "  hpcbert plan --init\n"
    "  hpcbert plan campaign.toml"
)
@submit_options
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
        return _example(file or Path("campaign.toml"))

    from hpcbert.commands.plan import look, refusals  # imports Jinja, which --help does not need

    with closing(Ahead(run)) as ahead:
        planned = plan_campaigns(
            options, file=file, like=like, rehearse=rehearse, ahead=ahead, planned=True
        )
    runs, left_out = durations.campaigns(Path(planned.site.runs))
    outlooks = [look(draft, runs, run=run) for draft in planned.drafts]
    doubts = (doubt for outlook in outlooks for doubt in outlook.doubts)
    warnings = [*planned.warnings, *(f"{doubt.detail} {doubt.hint}".rstrip() for doubt in doubts)]
    warnings += store.describe_left_out("the times of earlier runs", left_out)
    errors = [error for one in outlooks for error in refusals(one)]
    if planned.options.max_gpu_hours is not None:
        try:
            cost.refuse(
                [point.cost for one in outlooks for point in one.points],
                planned.options.max_gpu_hours,
            )
        except UsageError as error:
            errors.append(CheckError(error.message, where=error.where, hint=error.hint))
    can_run = not errors
    text = "\n\n".join([*map(_text, outlooks), *_together(outlooks)])
    text += "\n\nIt can run: nothing was submitted." if can_run else "\n\nIt can't run as it is."
    data = {"can_run": can_run, "campaigns": [_data(one) for one in outlooks]}
    data["total"] = _sums([point for one in outlooks for point in one.points])
    hpcbert_errors = {
        (str(hpcbert_error), hpcbert_error.hint): hpcbert_error for hpcbert_error in errors
    }
    return Result(data, text, tuple(hpcbert_errors.values()), tuple(dict.fromkeys(warnings)))


def _example(path: Path) -> Result:
    """Write the example of a campaign.toml."""
    if path.exists() or path.is_symlink():
        hint = "Name another file, or remove it."
        raise UsageError("The file exists already.", where=str(path), hint=hint)
    store.write_text(path, campaignfile.EXAMPLE.read_text(encoding="utf-8"))
    where = shlex.quote(str(path))
    text = f"{path}: an example. Change it, then: hpcbert plan {where}"
    return Result({"path": str(path)}, text)


# --- As data ------------------------------------------------------------------------------------


def _data(outlook: Outlook) -> dict[str, Any]:
    campaign = outlook.draft.campaign
    return {
        "framework": campaign.framework,
        "model": outlook.points[0].cost.point.model,
        "variant": outlook.points[0].cost.point.variant,
        "scheduler": campaign.scheduler,
        "site": campaign.site,
        "points": [_point(point) for point in outlook.points],
        "total": _sums(outlook.points),
        "partitions": [{**vars(supply), "limit": str(supply.limit)} for supply in outlook.supplies],
        "missing": [vars(missing) for missing in outlook.lacks],
        "can_run": outlook.can_run,
    }


def _point(point_outlook: PointOutlook) -> dict[str, Any]:
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
        **_hours([point_outlook]),
        "earlier": earlier
        and {
            "median_seconds": earlier.typical,
            "runs": len(earlier.seconds),
            "campaigns": earlier.campaigns,
        },
        "start": utc(start.when) if start and start.when else None,
        "start_nodes": start.nodes if start else "",
    }


def _sums(points: Sequence[PointOutlook]) -> dict[str, Any]:
    point_outlooks = [point for point in points if not point.cost.preflight]
    counts = {
        "points": len(point_outlooks),
        "repeats": sum(point_outlook.cost.repeats for point_outlook in point_outlooks),
        "least_repeats": sum(point_outlook.least for point_outlook in point_outlooks),
    }
    return {**counts, "jobs": sum(point.cost.jobs for point in points), **_hours(points)}


def _hours(points: Sequence[PointOutlook]) -> dict[str, float | None]:
    """Return hours by kind: the maximum, and those expected if all points have run before."""
    found = {
        "node_hours": total(point.cost.on_nodes(point.cost.hours) for point in points),
        "least_node_hours": total(point.cost.on_nodes(point.least_hours) for point in points),
        "expected_node_hours": total(
            point.cost.on_nodes(point.expected_hours)
            for point in points
            if not point.cost.preflight
        ),
    }
    for name, units in _HOURS.items():
        point_outlooks = [point for point in points if point.cost.unit in units]
        found[name] = total(
            point_outlook.cost.on_devices(point_outlook.cost.hours)
            for point_outlook in point_outlooks
        )
        found[f"least_{name}"] = total(
            point_outlook.cost.on_devices(point_outlook.least_hours)
            for point_outlook in point_outlooks
        )
        found[f"expected_{name}"] = total(
            point_outlook.cost.on_devices(point_outlook.expected_hours)
            for point_outlook in point_outlooks
            if not point_outlook.cost.preflight
        )
    return found


# --- As text ------------------------------------------------------------------------------------


def _text(outlook: Outlook) -> str:

    campaign, points = outlook.draft.campaign, outlook.points
    first = points[0].cost.point
    measured = " · ".join(filter(None, (campaign.framework, first.model, first.variant)))
    sums = _sums(points)
    head = (
        f"{measured} · site {campaign.site} ({campaign.scheduler})\n"
        f"{_count(sums['points'], 'point')} (one row each), "
        f"{_count(sums['repeats'], 'repeat')} (runs of a point), "
        f"{_count(sums['jobs'], 'job')}"
    )
    unit = devices(point.cost for point in points)
    rows = [(*_TITLES, unit, "expected", "start"), *map(_row, points), _total(points)]
    table = aligned(rows, right=range(len(_TITLES) + 2))
    table[0] = click.style(table[0], dim=True)
    parts = [head, "\n".join(table), *_notes(outlook)]
    lines = [*map(_partition, outlook.supplies), *map(_missing, outlook.lacks)]
    return "\n\n".join([*parts, *(["\n".join(lines)] if lines else [])])


def _together(outlooks: Sequence[Outlook]) -> list[str]:
    """Return the sum over several campaigns; nothing for one: its table has it."""
    if len(outlooks) == 1:
        return []
    points = [point for outlook in outlooks for point in outlook.points]
    sums = _sums(points)
    unit = devices(point_outlook.cost for point_outlook in points)
    hours = text(
        total(point_outlook.cost.on_devices(point_outlook.cost.hours) for point_outlook in points)
    )
    counts = ", ".join(_count(sums[f"{one}s"], one) for one in ("point", "repeat", "job"))
    most = f"{text(sums['node_hours'])} node-hours, {hours} {unit} at most"
    return [f"{len(outlooks)} campaigns: {counts}; {most}."]


def _row(point_outlook: PointOutlook) -> tuple[str, ...]:

    cost, point = point_outlook.cost, point_outlook.cost.point
    return (
        str(point.shape),
        "preflight" if cost.preflight else point.precision,
        _NOTHING if cost.preflight else point.batch,
        str(cost.repeats)
        if point_outlook.least == cost.repeats
        else f"{point_outlook.least} to {cost.repeats}",
        str(cost.limit),
        text(cost.on_nodes(cost.hours)),
        text(cost.on_devices(cost.hours)),
        text(cost.on_devices(point_outlook.expected_hours)),
        _moment(point_outlook),
    )


def _total(points: Sequence[PointOutlook]) -> tuple[str, ...]:

    point_outlooks = [point for point in points if not point.cost.preflight]
    most = total(point.cost.on_devices(point.cost.hours) for point in points)
    expected = total(
        point_outlook.cost.on_devices(point_outlook.expected_hours)
        for point_outlook in point_outlooks
    )
    nodes = total(point.cost.on_nodes(point.cost.hours) for point in points)
    repeats = sum(point_outlook.cost.repeats for point_outlook in point_outlooks)
    return ("total", "", "", str(repeats), "", text(nodes), text(most), text(expected), "")


def _notes(outlook: Outlook) -> list[str]:
    """Return the meaning of the columns: the runs behind expectations, the cost of whole nodes."""
    points = outlook.points
    unit = devices(point.cost for point in points)
    known = [point.earlier for point in points if point.earlier]
    names = list(dict.fromkeys(name for earlier in known for name in earlier.campaigns))
    runs = sum(len(earlier.seconds) for earlier in known)
    lines = [f"Node-hours and {unit} are the maximum: each job uses its whole time limit."]
    if unit == "rank-hours":
        lines.append("A rank is one process of the distributed program.")
    if any(point.least < point.cost.repeats for point in points):
        least = text(total(point.cost.on_devices(point.least_hours) for point in points))
        lines.append(
            f"Repeats stop as soon as the median is precise enough: at least {least} {unit}."
        )
    more = f" and {len(names) - _NAMED} more, which --json names" if len(names) > _NAMED else ""
    if known:
        lines.append(
            f"Expected {unit} are based on the median of {_count(runs, 'earlier run')} of the same "
            f"points: {', '.join(names[:_NAMED])}{more}."
        )
    else:
        lines.append(
            "No expected hours: the directory of campaigns has no run of these points yet."
        )
    site = outlook.draft.resolved.site
    srun = outlook.draft.resolved.scheduler.srun
    point_outlooks = [point for point in points if point.cost.unit == "GPU" and srun]
    if point_outlooks and site.slurm.exclusive:
        hours = total(
            point_outlook.cost.on_nodes(point_outlook.cost.hours)
            for point_outlook in point_outlooks
        )
        gpus_per_node = site.nodes.gpus_per_node
        lines.append(
            "Jobs take whole nodes (slurm.exclusive): a site that bills whole nodes, with "
            f"{_count(gpus_per_node, 'GPU')} each, bills up to "
            f"{text(hours and hours * gpus_per_node)} GPU-hours."
        )
    return ["\n".join(lines)]


def _moment(point_outlook: PointOutlook) -> str:
    """Return when a point would start, in local time as Slurm's own commands print it."""
    if point_outlook.start is None or point_outlook.start.when is None:
        return _NOTHING
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(point_outlook.start.when))
    return f"{when} on {point_outlook.start.nodes}" if point_outlook.start.nodes else when


def _partition(supply: Supply) -> str:
    most = (
        "" if supply.most_nodes is None else f", at most {_count(supply.most_nodes, 'node')} a job"
    )
    usable = "" if supply.usable is None else f", {supply.usable} usable, {supply.free} free now"
    gear = f", with {' or '.join(supply.resources)}" if supply.resources else ""
    return (
        f"partition {supply.name}: {supply.state}, {_count(supply.nodes, 'node')}{usable}{gear}; "
        f"{supply.fitting} fit; limit {supply.limit}{most}"
    )


def _missing(missing: Missing) -> str:
    what = (
        "missing" if missing.blocks else "not there yet" if missing.command else "perhaps missing"
    )
    part = f"{missing.kind} of {missing.framework}: {missing.detail}"
    return f"{what}: {part}\n  {missing.command or missing.hint}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
