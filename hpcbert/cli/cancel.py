"""hpcbert cancel."""

from __future__ import annotations

from pathlib import Path

import click

from hpcbert.campaign import store
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.cli.campaigns import find_runs
from hpcbert.cli.options import RUNS, SITE
from hpcbert.cli.output import Result, confirm, convert_error, returns_result
from hpcbert.commands import submit as flow
from hpcbert.commands.monitor import open_campaign
from hpcbert.errors import HpcbertError, Interruption, format_count, join_names
from hpcbert.scheduler.base import Target
from hpcbert.system.runner import run


@click.command(
    epilog="\b\nExamples:\n  hpcbert cancel\n  hpcbert cancel 20261121T100000Z-oneflow-3f9a1c --yes"
)
@click.argument("campaigns", nargs=-1, metavar="[CAMPAIGN]...")
@click.option("--yes", is_flag=True, help="Do not ask.")
@RUNS
@SITE
@returns_result
def cancel(*, campaigns: tuple[str, ...], yes: bool, runs: str, site_file: str) -> Result:
    """Cancel the jobs of campaigns.

    CAMPAIGN is a campaign's directory, its id or a part of the id, or the name of a file's
    campaigns; the newest one by default. hpcbert cancels only jobs that carry the campaign's name,
    belong to you and were submitted in its directory. Jobs that have ended stay as they are.
    """
    directories = store.resolve_all(campaigns, find_runs(runs, site_file))
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
    return Result(
        {"campaigns": [result.data for result in results]} if results else None,
        "\n".join(result.text for result in results),
        tuple(errors),
        tuple(warning for result in results for warning in result.warnings),
    )


def _cancel_campaign(directory: Path, *, ask: bool) -> Result:
    tracked_campaign = open_campaign(directory)
    name, target = tracked_campaign.campaign.id, flow.find_living(tracked_campaign, run=run)
    question = f"Cancel {_count_targets(target)} of {name}?"
    if target.jobs and ask and not confirm(question, "cancel"):
        data = _target_data(tracked_campaign, target, cancelled=False)
        return Result(data, f"Nothing was cancelled: {name}.", warnings=target.left)
    flow.cancel(tracked_campaign, target, run=run)
    text = f"Cancelled {_count_targets(target)} of {name}: jobs {join_names(target.jobs)}."
    if not target.jobs:
        text = f"No job of {name} waits or runs."
    data = _target_data(tracked_campaign, target, cancelled=bool(target.jobs))
    return Result(data, text, warnings=target.left)


def _count_targets(target: Target) -> str:
    """Return `5 repeats` or `5 repeats and the preflight`."""
    count = sum(not repeat.array.preflight for repeat in target.repeats)
    preflight = " and the preflight" if count < len(target.repeats) else ""
    return f"{format_count(count, 'repeat')}{preflight}"


def _target_data(
    tracked_campaign: TrackedCampaign, target: Target, *, cancelled: bool
) -> dict[str, object]:
    return {
        "campaign": tracked_campaign.campaign.id,
        "directory": str(tracked_campaign.directory),
        "cancelled": cancelled,
        "jobs": list(target.jobs),
        "repeats": [
            {"point": repeat.array.point.key, "repeat": repeat.number} for repeat in target.repeats
        ],
    }
