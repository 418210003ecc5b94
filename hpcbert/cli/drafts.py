"""From the options of submit to campaigns, planned in full, with what is wrong with them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from hpcbert import scheduler
from hpcbert.campaign import notes
from hpcbert.cli import conflicts
from hpcbert.cli.asked import ReadFile, filled, read, submitter
from hpcbert.cli.campaigns import past
from hpcbert.cli.conflicts import typed
from hpcbert.config import campaignfile
from hpcbert.config.campaignfile import CampaignFile
from hpcbert.config.schedulers import traits
from hpcbert.errors import UsageError
from hpcbert.scheduler.base import World
from hpcbert.system.decode import Invalid
from hpcbert.system.runner import Ahead, run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hpcbert.cli.asked import Asked
    from hpcbert.cli.options import PointOptions
    from hpcbert.config.site import Site
    from hpcbert.script.again import Past
    from hpcbert.script.draft import Draft


class Drafted(NamedTuple):
    """Campaigns of one command line, to run one after the other.

    Attributes:
        options: The typed options, completed from a campaign.toml.
        warnings: Warnings about them.
    """

    options: PointOptions
    site: Site
    drafts: tuple[Draft, ...]
    warnings: tuple[str, ...]


def drafted(
    options: PointOptions,
    *,
    file: Path | None,
    name: str,
    note: str,
    like: str,
    dry: bool,
    rehearse: bool,
    ahead: Ahead,
) -> Drafted:
    """Return what a submission will be; nothing is written.

    What the scheduler will be asked is asked while templates are loaded and rendered.

    Raises:
        HpcbertError: The request is impossible.
    """
    then = past(like, options) if like else None
    written = ReadFile.at(file)
    options = filled(options, written)
    called = _called(name, note, written)
    asked = read(options, dry=dry, rehearse=rehearse, then=then, written=written)
    for one in asked:
        backend = scheduler.of(one.options.scheduler, World(run))
        for argv in backend.foreseen(one.site, one.recipe):
            ahead.begin(argv, env=backend.asking)
    each = [_drafted(one, called, then, ahead) for one in asked]
    warnings = tuple(dict.fromkeys(text for _, some in each for text in some))
    made = chained([one for one, _ in each])
    return Drafted(options, asked[0].site, made, warnings)


def _called(name: str, note: str, written: ReadFile | None) -> tuple[str, str]:
    """Return the campaign's name and note: as typed, else as the file has them.

    Raises:
        UsageError: One of them is invalid.
    """
    file = written.file if written else CampaignFile()
    name = name if typed("name") else file.name or ""
    note = note if typed("note") else file.note or ""
    try:
        return campaignfile.name(name) if name else "", notes.checked(note)
    except Invalid as error:
        raise UsageError(f"--name {error}", hint=error.hint) from None


def chained(drafts: Sequence[Draft]) -> tuple[Draft, ...]:
    """Return drafts in a row, each waiting for the one before: their points share the network."""
    chained = list(drafts[:1])
    for before, made in pairwise(drafts):
        waits = "" if made.campaign.concurrent_points else before.campaign.id
        chained.append(replace(made, campaign=replace(made.campaign, after=waits)))
    return tuple(chained)


def _drafted(
    asked: Asked, called: tuple[str, str], then: Past | None, ahead: Ahead
) -> tuple[Draft, tuple[str, ...]]:
    """Return what a campaign will be, and the warnings about it."""
    from hpcbert.script import again
    from hpcbert.script.draft import draft  # with Jinja: Slurm answers meanwhile

    scheduler_name = asked.options.scheduler
    conflicts.refuse_typed(traits(scheduler_name).unused, f"with the {scheduler_name} scheduler")
    runs_on = scheduler.of(scheduler_name, World(ahead))
    name, note = called
    chosen = replace(runs_on.fit(asked.options, asked.site, asked.recipe), name=name, note=note)
    made = draft(asked.request, asked.site, asked.recipe, options=chosen, submitter=submitter())
    differences = again.differences(then, made) if then else ()
    return made, (*asked.warnings, *made.resolved.warnings, *differences)


def refuse_costly(drafts: Sequence[Draft], most: float, *, tries: int) -> None:
    """Refuse campaigns that may together take more GPU-hours than allowed.

    Raises:
        UsageError: They may.
    """
    from hpcbert.script import cost

    costs = [each for one in drafts for each in cost.of_arrays(one.campaign.arrays, one.scripts)]
    cost.refuse(costs, most, tries=tries)


def obstacles(
    drafts: Sequence[Draft], *, ignored: bool, ahead: Ahead
) -> tuple[tuple[UsageError, ...], tuple[str, ...]]:
    """Return what prevents submitting campaigns, and the warnings about them."""
    from hpcbert.checks.obstacles import foreseen, of_submission

    for made in drafts:
        for argv in foreseen(made):
            ahead.begin(argv)
    found = {one: None for made in drafts for one in of_submission(made, run=ahead)}
    certain = [one for one in found if one.status == "fail"]
    if not certain and not ignored:
        certain = [
            one
            for made in drafts
            for one in scheduler.of(made.campaign.scheduler, World(ahead)).impossible(
                made.scripts.values()
            )
        ]
    if certain and not ignored:
        errors = [UsageError(f"{one.name}: {one.detail}", hint=one.hint) for one in certain]
        last = UsageError("Nothing was submitted.", hint="--force submits anyway.")
        return (*errors, last), ()
    return (), tuple(f"{one.detail} {one.hint}" for one in found)
