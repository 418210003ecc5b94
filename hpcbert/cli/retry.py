"""hpcbert retry and cancel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hpcbert.campaign import store
from hpcbert.campaign.repeats import open_campaign
from hpcbert.campaign.suspects import MAX_RETRIES, RetryPolicy
from hpcbert.cli.campaigns import run_aloud, takes_runs
from hpcbert.cli.options import RUNS, SITE, count_option, flag_option, refuse_typed, shared_option
from hpcbert.cli.output import Result, confirm, convert_error, join_results, pick, returns_result
from hpcbert.cli.progress import Display, follow_with_retries, format_retry_plan
from hpcbert.commands import submit as flow
from hpcbert.commands.retry import InvalidRepeat, RetryPlan, resubmit
from hpcbert.config import site
from hpcbert.config.options import list_unused
from hpcbert.errors import HpcbertError, IncompleteError, Interruption, format_count, join_names
from hpcbert.slurm.hostlist import expand
from hpcbert.system.runner import run


@click.command()
@click.argument("campaigns", nargs=-1, metavar="[CAMPAIGN]...")
@flag_option("--dry-run", "Show what would be submitted, submit nothing.")
@flag_option("--wait", "Watch, and retry until all repeats are valid.")
@click.option("--exclude", multiple=True, metavar="NODELIST", help="Avoid these nodes too.")
@count_option(
    "--max-retries", "Retry each repeat at most this many times.", least=0, default=MAX_RETRIES
)
@flag_option("--no-exclude", "Do not avoid nodes that failed.")
@shared_option("time_limit", "Time limit of one repeat from now on.")
@RUNS
@SITE
@returns_result
def retry(
    *,
    campaigns: tuple[str, ...],
    max_retries: int,
    exclude: tuple[str, ...],
    no_exclude: bool,
    time_limit: str,
    dry_run: bool,
    wait: bool,
    runs: str,
    site_file: str,
) -> Result:
    """Resubmit repeats that are missing or invalid.

    CAMPAIGN is a campaign's directory, its id or a part of the id, or the name of a file's
    campaigns; the newest one by default. retry leaves repeats alone that wait, run or are valid.
    The new attempts avoid nodes that failed, and the earlier attempts stay on record.

    \b
    Examples:
      hpcbert retry
      hpcbert retry 20261121T100000Z-oneflow-3f9a1c --dry-run
      hpcbert retry 3f9a1c --exclude n[07-08] --wait
    """
    site_config = site.load(site_file)
    directories = store.resolve_all(campaigns, Path(runs or site_config.runs))
    nodes = tuple(node for node_list in exclude for node in expand(node_list))
    policy = RetryPolicy(max_retries, nodes, suspect=not no_exclude, time_limit=time_limit)
    for name in sorted({store.read_manifest(directory).scheduler for directory in directories}):
        if unused := list_unused(name):
            refuse_typed((*unused, "no_exclude"), f"on a campaign of the {name} scheduler")
    display = Display(err=True)
    waiting, floor = display.waiting if wait else None, site_config.slurm.poll_floor
    plans = [
        resubmit(directory, policy, run=run_aloud, floor=floor, dry=dry_run, waiting=waiting)
        for directory in directories
    ]
    if wait and not dry_run:
        display.retried(plans)
        return follow_with_retries(directories, policy, site_config)
    return _make_result(plans, dry=dry_run)


def _make_result(plans: Sequence[RetryPlan], *, dry: bool) -> Result:
    errors = []
    for plan in plans:
        name = plan.watched.campaign.id
        for repeat in plan.spent:
            message = f"has been retried as often as allowed: {repeat.why}"
            hint = "Find the cause, then raise --max-retries, or submit the point again."
            errors.append(_make_error(name, repeat, message, hint))
        for repeat in plan.too_large:
            message = "ran out of device memory, and would do so again."
            hint = "Submit the point with a smaller --batch-size; or, if another process used the "
            hint += "memory, avoid its node: --exclude NODE."
            errors.append(_make_error(name, repeat, message, hint))
    return Result(
        data={"campaigns": [_plan_data(plan) for plan in plans], "submitted": not dry},
        text="\n".join(format_retry_plan(plan, dry=dry) for plan in plans),
        errors=tuple(errors),
        warnings=tuple(
            f"{node} is suspected too ({reason}), but too few nodes would be left without it."
            for plan in plans
            for node, reason in plan.spared
        ),
    )


def _make_error(campaign: str, repeat: InvalidRepeat, message: str, hint: str) -> IncompleteError:
    text = f"{repeat.array.point.key} repeat {repeat.number} {message}"
    return IncompleteError(text, where=campaign, hint=hint)


def _plan_data(plan: RetryPlan) -> dict[str, Any]:
    return {
        "campaign": plan.watched.campaign.id,
        "directory": str(plan.watched.directory),
        "arrays": [
            {
                **pick(array, "name retry first_attempt script"),
                "point": array.point.key,
                "repeats": [
                    {"repeat": number, "state": state, "why": reason}
                    for number, state, reason in array.why
                ],
                "excluded": [{"node": node, "why": reason} for node, reason in array.excluded],
                "job_id": array.job_id or None,
            }
            for array in plan.arrays
        ],
        "spared": [{"node": node, "why": reason} for node, reason in plan.spared],
        "spent": list(map(_repeat_data, plan.spent)),
        "too_large": list(map(_repeat_data, plan.too_large)),
        "open": plan.open,
    }


def _repeat_data(repeat: InvalidRepeat) -> dict[str, Any]:
    point = repeat.array.point.key
    return {"point": point, "repeat": repeat.number, **pick(repeat, "state why")}


@click.command()
@click.argument("campaigns", nargs=-1, metavar="[CAMPAIGN]...")
@flag_option("--yes", "Do not ask.")
@returns_result
@takes_runs
def cancel(*, campaigns: tuple[str, ...], yes: bool, runs: Path) -> Result:
    """Cancel the jobs of campaigns.

    CAMPAIGN is a campaign's directory, its id or a part of the id, or the name of a file's
    campaigns; the newest one by default. hpcbert cancels only jobs that carry the campaign's name,
    belong to you and were submitted in its directory. Jobs that have ended stay as they are.

    \b
    Examples:
      hpcbert cancel
      hpcbert cancel 20261121T100000Z-oneflow-3f9a1c --yes
    """
    directories = store.resolve_all(campaigns, runs)
    if len(directories) == 1:
        return _cancel_campaign(directories[0], ask=not yes)
    results: list[Result] = []
    errors: list[HpcbertError] = []
    for directory in directories:
        try:
            results.append(_cancel_campaign(directory, ask=not yes))
        except (HpcbertError, OSError, KeyboardInterrupt, click.Abort) as error:  # noqa: PERF203
            errors.append(convert_error(error))
            if isinstance(errors[-1], Interruption):
                break
    data = {"campaigns": [result.data for result in results]} if results else None
    return replace(join_results(results), data=data, errors=tuple(errors))


def _cancel_campaign(directory: Path, *, ask: bool) -> Result:
    tracked_campaign = open_campaign(directory)
    name, target = tracked_campaign.campaign.id, flow.find_living(tracked_campaign, run=run)
    count = sum(not repeat.array.preflight for repeat in target.repeats)
    preflight = " and the preflight" if count < len(target.repeats) else ""
    targets = f"{format_count(count, 'repeat')}{preflight} of {name}"
    is_agreed = not ask or not target.jobs or confirm(f"Cancel {targets}?", "cancel")
    if is_agreed:
        flow.cancel(tracked_campaign, target, run=run)
    text = f"Cancelled {targets}: jobs {join_names(target.jobs)}."
    if not is_agreed:
        text = f"Nothing was cancelled: {name}."
    elif not target.jobs:
        text = f"No job of {name} waits or runs."
    data = {
        "campaign": name,
        "directory": str(tracked_campaign.directory),
        "cancelled": is_agreed and bool(target.jobs),
        "jobs": list(target.jobs),
        "repeats": [
            {"point": repeat.array.point.key, "repeat": repeat.number} for repeat in target.repeats
        ],
    }
    return Result(data, text, warnings=target.left)
