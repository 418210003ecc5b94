"""hpcbert cancel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from hpcbert.campaign import store
from hpcbert.cli.campaigns import takes_runs
from hpcbert.cli.options import flag_option
from hpcbert.cli.output import Result, confirm, convert_error, join_results, returns_result
from hpcbert.commands import submit as flow
from hpcbert.commands.monitor import open_campaign
from hpcbert.errors import HpcbertError, Interruption, format_count, join_names
from hpcbert.system.runner import run


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
