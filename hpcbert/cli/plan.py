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

    from hpcbert.config.options import Options
    from hpcbert.flows.plan import Missing, Outlook, PointOutlook
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

    from hpcbert.flows.plan import look, refusals  # imports Jinja, which --help does not need

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
    each = {(str(one), one.hint): one for one in errors}
    return Result(data, text, tuple(each.values()), tuple(dict.fromkeys(warnings)))


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
        "points": [_point(one) for one in outlook.points],
        "total": _sums(outlook.points),
        "partitions": [{**vars(one), "limit": str(one.limit)} for one in outlook.supplies],
        "missing": [vars(one) for one in outlook.lacks],
        "can_run": outlook.can_run,
    }


def _point(one: PointOutlook) -> dict[str, Any]:
    cost, point, earlier = one.cost, one.cost.point, one.earlier
    start = one.start if one.start and one.start.when else None
    return {
        "point": point.key,
        "shape": str(point.shape),
        "precision": point.precision,
        "device": point.device,
        "batch_size_per_device": None if point.largest else point.batch_size_per_device,
        "repeats": cost.repeats,
        "least_repeats": one.least,
        "jobs": cost.jobs,
        "preflight": cost.preflight,
        "nodes": point.shape.nodes,
        "limit": str(cost.limit),
        **_hours([one]),
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
    own = [one for one in points if not one.cost.preflight]
    counts = {
        "points": len(own),
        "repeats": sum(one.cost.repeats for one in own),
        "least_repeats": sum(one.least for one in own),
    }
    return {**counts, "jobs": sum(one.cost.jobs for one in points), **_hours(points)}


def _hours(points: Sequence[PointOutlook]) -> dict[str, float | None]:
    """Return hours by kind: the maximum, and those expected if all points have run before."""
    found = {
        "node_hours": total(one.cost.on_nodes(one.cost.hours) for one in points),
        "least_node_hours": total(one.cost.on_nodes(one.least_hours) for one in points),
        "expected_node_hours": total(
            one.cost.on_nodes(one.expected_hours) for one in points if not one.cost.preflight
        ),
    }
    for name, units in _HOURS.items():
        own = [one for one in points if one.cost.unit in units]
        found[name] = total(one.cost.on_devices(one.cost.hours) for one in own)
        found[f"least_{name}"] = total(one.cost.on_devices(one.least_hours) for one in own)
        found[f"expected_{name}"] = total(
            one.cost.on_devices(one.expected_hours) for one in own if not one.cost.preflight
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
    unit = devices(one.cost for one in points)
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
    points = [point for one in outlooks for point in one.points]
    sums = _sums(points)
    unit = devices(one.cost for one in points)
    hours = text(total(one.cost.on_devices(one.cost.hours) for one in points))
    counts = ", ".join(_count(sums[f"{one}s"], one) for one in ("point", "repeat", "job"))
    most = f"{text(sums['node_hours'])} node-hours, {hours} {unit} at most"
    return [f"{len(outlooks)} campaigns: {counts}; {most}."]


def _row(one: PointOutlook) -> tuple[str, ...]:

    cost, point = one.cost, one.cost.point
    return (
        str(point.shape),
        "preflight" if cost.preflight else point.precision,
        _NOTHING if cost.preflight else point.batch,
        str(cost.repeats) if one.least == cost.repeats else f"{one.least} to {cost.repeats}",
        str(cost.limit),
        text(cost.on_nodes(cost.hours)),
        text(cost.on_devices(cost.hours)),
        text(cost.on_devices(one.expected_hours)),
        _moment(one),
    )


def _total(points: Sequence[PointOutlook]) -> tuple[str, ...]:

    own = [one for one in points if not one.cost.preflight]
    most = total(one.cost.on_devices(one.cost.hours) for one in points)
    expected = total(one.cost.on_devices(one.expected_hours) for one in own)
    nodes = total(one.cost.on_nodes(one.cost.hours) for one in points)
    repeats = sum(one.cost.repeats for one in own)
    return ("total", "", "", str(repeats), "", text(nodes), text(most), text(expected), "")


def _notes(outlook: Outlook) -> list[str]:
    """Return the meaning of the columns: the runs behind expectations, the cost of whole nodes."""
    points = outlook.points
    unit = devices(one.cost for one in points)
    known = [one.earlier for one in points if one.earlier]
    names = list(dict.fromkeys(name for one in known for name in one.campaigns))
    runs = sum(len(one.seconds) for one in known)
    lines = [f"Node-hours and {unit} are the maximum: each job uses its whole time limit."]
    if unit == "rank-hours":
        lines.append("A rank is one process of the distributed program.")
    if any(one.least < one.cost.repeats for one in points):
        least = text(total(one.cost.on_devices(one.least_hours) for one in points))
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
    whole = [one for one in points if one.cost.unit == "GPU" and srun]
    if whole and site.slurm.exclusive:
        hours = total(one.cost.on_nodes(one.cost.hours) for one in whole)
        each = site.nodes.gpus_per_node
        lines.append(
            "Jobs take whole nodes (slurm.exclusive): a site that bills whole nodes, with "
            f"{_count(each, 'GPU')} each, bills up to {text(hours and hours * each)} GPU-hours."
        )
    return ["\n".join(lines)]


def _moment(one: PointOutlook) -> str:
    """Return when a point would start, in local time as Slurm's own commands print it."""
    if one.start is None or one.start.when is None:
        return _NOTHING
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.start.when))
    return f"{when} on {one.start.nodes}" if one.start.nodes else when


def _partition(one: Supply) -> str:
    most = "" if one.most_nodes is None else f", at most {_count(one.most_nodes, 'node')} a job"
    usable = "" if one.usable is None else f", {one.usable} usable, {one.free} free now"
    gear = f", with {' or '.join(one.resources)}" if one.resources else ""
    return (
        f"partition {one.name}: {one.state}, {_count(one.nodes, 'node')}{usable}{gear}; "
        f"{one.fitting} fit; limit {one.limit}{most}"
    )


def _missing(one: Missing) -> str:
    what = "missing" if one.blocks else "not there yet" if one.command else "perhaps missing"
    return f"{what}: {one.kind} of {one.framework}: {one.detail}\n  {one.command or one.hint}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
