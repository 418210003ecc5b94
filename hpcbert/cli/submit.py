"""hpcbert submit."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcbert import scheduler
from hpcbert.campaign import notes, store
from hpcbert.cli import conflicts
from hpcbert.cli.asked import ReadFile, filled, read, submitter
from hpcbert.cli.campaigns import past
from hpcbert.cli.conflicts import Conflict, typed
from hpcbert.cli.options import SHARED_CONFLICTS, PointOptions, point_options
from hpcbert.cli.output import Result, returns_result
from hpcbert.cli.submission import carried_out
from hpcbert.cli.submission import dry_run as shown
from hpcbert.config import campaignfile, site
from hpcbert.config.campaignfile import CampaignFile
from hpcbert.config.decode import Invalid
from hpcbert.config.schedulers import traits
from hpcbert.errors import UsageError
from hpcbert.scheduler.base import World
from hpcbert.system.runner import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcbert.cli.asked import Asked
    from hpcbert.script.again import Past
    from hpcbert.script.draft import Draft

_CONFLICTS = (
    Conflict(("wait", "max_retries", "force"), lambda given: given["dry_run"], "with --dry-run"),
    Conflict(("max_retries",), lambda given: not given["wait"], "without --wait"),
    Conflict(("max_retries",), lambda given: given["rehearse"], "with --rehearse"),
    *SHARED_CONFLICTS,
)
# What may stand beside --resume.
_RESUMING = ("resume", "wait", "max_retries", "runs", "site_file")


@click.command(
    epilog="\b\nExamples:\n"
    "  hpcbert submit --fw pytorch --nodes 1 --gpus-per-node 2 --scaling --wait\n"
    "  hpcbert submit --fw oneflow --nodes 4 --gpus-per-node 8\n"
    "  hpcbert submit --fw oneflow --nodes 4 --gpus-per-node 8 --dry-run\n"
    "  hpcbert submit campaign.toml\n"
    "  hpcbert submit --resume 20261121T100000Z-oneflow-3f9a1c\n"
    "  hpcbert submit --like table4.zip"
)
@point_options
@click.option("--name", default="", help="What list calls the campaign.")
@click.option("--note", default="", help="A line about it, as hpcbert note writes it.")
@click.option("--dry-run", is_flag=True, help="Show and check everything, run and write nothing.")
@click.option("--rehearse", is_flag=True, help="Run everything but the training.")
@click.option("--force", is_flag=True, help="Submit in spite of what is known to be missing.")
@click.option("--wait", is_flag=True, help="Watch until all is over, then print the table.")
@click.option("--resume", default="", metavar="CAMPAIGN", help="Take up an interrupted submission.")
@click.option("--like", default="", metavar="CAMPAIGN", help="Measure the same again.")
@click.option(
    "--max-retries",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="With --wait: submit a repeat that does not count again, so often at most.",
)
@click.argument("file", required=False, type=click.Path(path_type=Path), metavar="[FILE]")
@returns_result
def submit(
    options: PointOptions,
    *,
    file: Path | None,
    name: str,
    note: str,
    dry_run: bool,
    rehearse: bool,
    force: bool,
    wait: bool,
    resume: str,
    like: str,
    max_retries: int,
) -> Result:
    """Submit a point, a whole scaling curve, or what a campaign.toml says, five repeats each.

    One sbatch script and one job array a point; prints what was submitted and where, and returns.

    With --like the points, the options and the protocol are those of another campaign, or of an
    archive; what is otherwise here, as image and site, is named.
    """
    conflicts.refuse(*_CONFLICTS)
    if resume:
        conflicts.refuse_others(_RESUMING, "with --resume, which submits what was written down")
        here = site.load(options.site_file)
        directory = store.resolve(resume, Path(options.runs or here.runs))
        return carried_out([directory], here, retries=max_retries if wait else None)
    then = past(like, options) if like else None
    written = ReadFile.at(file)
    options = filled(options, written)
    called = _called(name, note, written)
    asked = read(options, dry=dry_run, rehearse=rehearse, then=then, written=written)
    drafts = chained([_drafted(one, called, then) for one in asked])
    made = [draft for draft, _ in drafts]
    if options.max_gpu_hours is not None:
        _refuse_costly(made, options.max_gpu_hours, tries=1 + max_retries)
    errors, warnings = _obstacles(drafts, ignored=dry_run or force)
    if errors:
        return Result(errors=errors)
    if dry_run:
        return shown(made, warnings)
    retries = max_retries if wait else None
    directories = [one.directory for one in made]
    return carried_out(directories, asked[0].site, made, retries=retries, warnings=warnings)


def _called(name: str, note: str, written: ReadFile | None) -> tuple[str, str]:
    """Return the name and the note of what is submitted: as typed, else as the file has them.

    Raises:
        UsageError: One can't be that.
    """
    file = written.file if written else CampaignFile()
    name = name if typed("name") else file.name or ""
    note = note if typed("note") else file.note or ""
    try:
        return campaignfile.name(name) if name else "", notes.checked(note)
    except Invalid as error:
        raise UsageError(f"--name {error}", hint=error.hint) from None


_Drafted = tuple["Draft", tuple[str, ...]]


def chained(drafts: Sequence[_Drafted]) -> list[_Drafted]:
    """Return drafts of which each waits for the one before it: their points share the network."""
    chained = list(drafts[:1])
    for (before, _), (made, said) in pairwise(drafts):
        waits = "" if made.campaign.concurrent_points else before.campaign.id
        chained.append((replace(made, campaign=replace(made.campaign, after=waits)), said))
    return chained


def _drafted(asked: Asked, called: tuple[str, str], then: Past | None) -> _Drafted:
    """Return what a campaign will be, and what is to be said about that."""
    from hpcbert.script.draft import draft  # with Jinja, which --help has no use for

    scheduler_name = asked.options.scheduler
    conflicts.refuse_typed(traits(scheduler_name).unused, f"with the {scheduler_name} scheduler")
    runs_on = scheduler.of(scheduler_name, World(run))
    name, note = called
    chosen = replace(runs_on.fit(asked.options, asked.site, asked.recipe), name=name, note=note)
    made = draft(asked.request, asked.site, asked.recipe, options=chosen, submitter=submitter())
    warnings = (*asked.warnings, *made.resolved.warnings)
    if then:
        from hpcbert.script import again

        warnings += again.differences(then, made)
    return made, warnings


def _refuse_costly(drafts: Sequence[Draft], most: float, *, tries: int) -> None:
    """Refuse campaigns that together may take more GPU-hours.

    Raises:
        UsageError: They may.
    """
    from hpcbert.script import cost

    costs = [each for one in drafts for each in cost.of_arrays(one.campaign.arrays, one.scripts)]
    cost.refuse(costs, most, tries=tries)


def _obstacles(
    drafts: Sequence[_Drafted], *, ignored: bool
) -> tuple[tuple[UsageError, ...], tuple[str, ...]]:
    """Return what keeps campaigns from being submitted, and what is to be said about them."""
    from hpcbert.checks.obstacles import of_submission

    found = {one: None for made, _ in drafts for one in of_submission(made, run=run)}
    said = dict.fromkeys(text for _, warnings in drafts for text in warnings)
    certain = [one for one in found if one.status == "fail"]
    if certain and not ignored:
        errors = [UsageError(f"{one.name}: {one.detail}", hint=one.hint) for one in certain]
        last = UsageError("Nothing was submitted.", hint="--force submits all the same.")
        return (*errors, last), ()
    return (), (*said, *(f"{one.detail} {one.hint}" for one in found))
