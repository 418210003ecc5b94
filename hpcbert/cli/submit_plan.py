"""From the options of submit and plan to drafted campaigns, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from hpcbert import scheduler
from hpcbert.campaign import notes
from hpcbert.cli.campaigns import open_past
from hpcbert.cli.request import (
    CampaignRequest,
    complete_options,
    find_submitter,
    read_file,
    read_requests,
)
from hpcbert.cli.unused_options import is_typed, refuse_typed
from hpcbert.config import campaignfile
from hpcbert.config.campaignfile import CampaignFile
from hpcbert.config.options import Options, list_unused
from hpcbert.config.site import Site
from hpcbert.errors import UsageError
from hpcbert.scheduler.base import World
from hpcbert.script.draft import Draft
from hpcbert.system.decode import Invalid
from hpcbert.system.runner import PrefetchingRunner


class SubmitPlan(NamedTuple):
    """Campaigns of one command line, to run one after the other.

    Attributes:
        options: The typed options, completed from a campaign.toml.
        warnings: Warnings about them.
    """

    options: Options
    site: Site
    drafts: tuple[Draft, ...]
    warnings: tuple[str, ...]


def plan_campaigns(
    options: Options,
    *,
    file: Path | None,
    like: str,
    rehearse: bool,
    ahead: PrefetchingRunner,
    name: str = "",
    note: str = "",
    dry: bool = False,
    planned: bool = False,
) -> SubmitPlan:
    """Return what a submission will be; nothing is written.

    Args:
        options: The options.
        file: The path of a campaign.toml.
        like: The campaign to measure again.
        rehearse: Whether nothing will train.
        ahead: Asks the scheduler while templates are loaded and rendered.
        name: The campaign's name.
        note: A note about it.
        dry: Whether to draft scripts to read, for Slurm if this machine is too small.
        planned: Whether only the cost is of interest, so that paths may be missing.

    Raises:
        HpcbertError: The request is impossible.
    """
    from hpcbert.script import again

    past = open_past(like, options) if like else None
    campaign_file = read_file(file)
    options = complete_options(options, campaign_file)
    name_and_note = _read_name_and_note(name, note, campaign_file)
    requests = read_requests(options, dry=dry, rehearse=rehearse, past=past, file=campaign_file)
    for request in () if planned else requests:
        backend = scheduler.create_scheduler(request.options.scheduler, World(ahead))
        for argv in backend.foreseen(request.site, request.recipe):
            ahead.begin(argv, env=backend.asking)
    drafts: list[Draft] = []
    warnings: list[str] = []
    for request in requests:
        draft = _draft_campaign(request, name_and_note, ahead, dry=dry or planned)
        drafts.append(draft)
        warnings += request.warnings
        warnings += () if planned else draft.resolved.warnings
        warnings += again.list_differences(past, draft) if past else ()
    return SubmitPlan(
        options, requests[0].site, chain_drafts(drafts), tuple(dict.fromkeys(warnings))
    )


def _read_name_and_note(name: str, note: str, file: CampaignFile | None) -> tuple[str, str]:
    """Return the campaign's name and note: as typed, else as the file has them."""
    file = file or CampaignFile()
    name = name if is_typed("name") else file.name or ""
    note = note if is_typed("note") else file.note or ""
    try:
        return campaignfile.check_name(name) if name else "", notes.check_note(note)
    except Invalid as error:
        raise UsageError(f"--name {error}", hint=error.hint) from None


def chain_drafts(drafts: Sequence[Draft]) -> tuple[Draft, ...]:
    """Return drafts in a row, each waiting for the one before: their points share the network."""
    row = list(drafts[:1])
    for previous, draft in pairwise(drafts):
        waits = "" if draft.campaign.concurrent_points else previous.campaign.id
        row.append(replace(draft, campaign=replace(draft.campaign, after=waits)))
    return tuple(row)


def _draft_campaign(
    request: CampaignRequest,
    name_and_note: tuple[str, str],
    ahead: PrefetchingRunner,
    *,
    dry: bool,
) -> Draft:
    """Return what a campaign will be."""
    from hpcbert.script.draft import draft as draft_campaign  # with Jinja: Slurm answers meanwhile

    scheduler_name = request.options.scheduler
    refuse_typed(list_unused(scheduler_name), f"with the {scheduler_name} scheduler")
    backend = scheduler.create_scheduler(scheduler_name, World(ahead))
    name, note = name_and_note
    fitted_options = backend.fit(request.options, request.site, request.recipe)
    options = replace(fitted_options, name=name, note=note, dry=dry)
    return draft_campaign(
        request.request, request.site, request.recipe, options=options, submitter=find_submitter()
    )


def refuse_costly(drafts: Sequence[Draft], max_gpu_hours: float, *, tries: int) -> None:
    """Refuse campaigns that may together take more GPU-hours than allowed."""
    from hpcbert.script import cost

    costs = [point for draft in drafts for point in cost.array_costs(draft.campaign.arrays)]
    cost.refuse_expensive(costs, max_gpu_hours, tries=tries)


def find_obstacles(
    drafts: Sequence[Draft], *, ignore_failures: bool, ahead: PrefetchingRunner
) -> tuple[tuple[UsageError, ...], tuple[str, ...]]:
    """Return what prevents submitting campaigns, and the warnings about them."""
    from hpcbert.commands.obstacles import find_submission_obstacles, list_queries

    for draft in drafts:
        for argv in list_queries(draft):
            ahead.begin(argv)
    findings = {
        finding: None for draft in drafts for finding in find_submission_obstacles(draft, run=ahead)
    }
    failures = [finding for finding in findings if finding.status == "fail"]
    if not failures and not ignore_failures:
        for draft in drafts:
            backend = scheduler.create_scheduler(draft.campaign.scheduler, World(ahead))
            failures += backend.impossible(draft.campaign.arrays, draft.scripts)
    if failures and not ignore_failures:
        errors = [
            UsageError(f"{finding.name}: {finding.detail}", hint=finding.hint)
            for finding in failures
        ]
        last = UsageError("Nothing was submitted.", hint="--force submits anyway.")
        return (*errors, last), ()
    return (), tuple(f"{finding.detail} {finding.hint}" for finding in findings)
