"""hpcbert submit."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcbert import scheduler
from hpcbert.campaign import store
from hpcbert.cli import conflicts
from hpcbert.cli.asked import read, submitter
from hpcbert.cli.campaigns import opened
from hpcbert.cli.conflicts import Conflict
from hpcbert.cli.options import SHARED_CONFLICTS, PointOptions, point_options
from hpcbert.cli.output import Result, returns_result, say
from hpcbert.config import site
from hpcbert.config.schedulers import traits
from hpcbert.errors import CheckError, Interruption, UsageError
from hpcbert.scheduler.base import World
from hpcbert.system.runner import run

if TYPE_CHECKING:
    from hpcbert.config.site import Site
    from hpcbert.model import Array, Campaign
    from hpcbert.script.again import Past
    from hpcbert.script.draft import Draft

_CONFLICTS = (
    Conflict(("wait", "max_retries", "force"), lambda given: given["dry_run"], "with --dry-run"),
    Conflict(("max_retries",), lambda given: not given["wait"], "without --wait"),
    Conflict(("max_retries",), lambda given: given["rehearse"], "with --rehearse"),
    *SHARED_CONFLICTS,
)
_MARKS = {True: "ok  ", False: "FAIL", None: "skip"}
# What --like says itself.
_MEASURED = (
    *(
        "fw",
        "nodes",
        "gpus_per_node",
        "device",
        "precision",
        "batch_size",
        "model",
        "preset",
        "settings",
    ),
    *("accumulation", "global_batch_size", "xla", "scaling", "repeats", "iters", "skip"),
    *("concurrent_repeats", "concurrent_points", "repeats_in"),
)
# What may stand beside --resume.
_RESUMING = ("resume", "wait", "max_retries", "runs", "site_file")


@click.command(
    epilog="\b\nExamples:\n"
    "  hpcbert submit --fw pytorch --nodes 1 --gpus-per-node 2 --scaling --wait\n"
    "  hpcbert submit --fw oneflow --nodes 4 --gpus-per-node 8\n"
    "  hpcbert submit --fw oneflow --nodes 4 --gpus-per-node 8 --dry-run\n"
    "  hpcbert submit --resume 20261121T100000Z-oneflow-3f9a1c\n"
    "  hpcbert submit --like table4.zip"
)
@point_options
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
@returns_result
def submit(
    options: PointOptions,
    *,
    dry_run: bool,
    rehearse: bool,
    force: bool,
    wait: bool,
    resume: str,
    like: str,
    max_retries: int,
) -> Result:
    """Submit a point, or a whole scaling curve, five repeats each.

    One sbatch script and one job array a point; prints what was submitted and where, and returns.

    With --like the points, the options and the protocol are those of another campaign, or of an
    archive; what is otherwise here, as image and site, is named.
    """
    conflicts.refuse(*_CONFLICTS)
    if resume:
        conflicts.refuse_others(_RESUMING, "with --resume, which submits what was written down")
        here = site.load(options.site_file)
        directory = store.resolve(resume, Path(options.runs or here.runs))
        return _carried_out(directory, here, retries=max_retries if wait else None)
    from hpcbert.checks.obstacles import of_submission
    from hpcbert.script import cost
    from hpcbert.script.draft import draft  # with Jinja, which --help has no use for

    then = _past(like, options) if like else None
    asked = read(options, dry=dry_run, rehearse=rehearse, then=then)
    name = asked.options.scheduler
    conflicts.refuse_typed(traits(name).unused, f"with the {name} scheduler")
    runs_on = scheduler.of(name, World(run))
    chosen = runs_on.fit(asked.options, asked.site, asked.recipe)
    made = draft(asked.request, asked.site, asked.recipe, options=chosen, submitter=submitter())
    warnings = (*asked.warnings, *made.resolved.warnings)
    if then:
        from hpcbert.script import again

        warnings += again.differences(then.campaign, made.campaign)
    if options.max_gpu_hours is not None:
        costs = cost.of_arrays(made.campaign.arrays, made.scripts)
        cost.refuse(costs, options.max_gpu_hours, tries=1 + max_retries)
    found = of_submission(made, run=run)
    certain = [one for one in found if one.status == "fail"]
    if certain and not (dry_run or force):
        errors = [UsageError(f"{one.name}: {one.detail}", hint=one.hint) for one in certain]
        last = UsageError("Nothing was submitted.", hint="--force submits all the same.")
        return Result(errors=(*errors, last))
    warnings += tuple(f"{one.detail} {one.hint}" for one in found)
    if dry_run:
        return _dry_run(made, warnings)
    retries = max_retries if wait else None
    return _carried_out(made.directory, asked.site, made, retries=retries, warnings=warnings)


def _past(name: str, options: PointOptions) -> Past:
    """Return the campaign or archive that --like names; it says what is measured.

    Raises:
        UsageError: There is none, or it is damaged, or another option says what is measured.
    """
    from hpcbert.script import again

    conflicts.refuse_typed(_MEASURED, "with --like, which says what is measured")
    runs = Path(options.runs or site.load(options.site_file).runs)
    (found,) = opened([name], runs)
    return again.past(found.directory)


def _carried_out(
    directory: Path,
    here: Site,
    made: Draft | None = None,
    *,
    retries: int | None,
    warnings: tuple[str, ...] = (),
) -> Result:
    """Submit a campaign, and watch it if that was asked for.

    Args:
        directory: The campaign.
        here: The site.
        made: What it is to be; None where it is there already.
        retries: With how many retries it is watched; None: it is not.
        warnings: What was noticed before.
    """
    from hpcbert.campaign.suspects import RetryPolicy
    from hpcbert.cli.watching import Display, followed
    from hpcbert.flows.submit import left_behind, submit_pending

    waiting = None if retries is None else Display(err=True).waiting
    try:
        campaign = submit_pending(
            directory, run=run, floor=here.slurm.poll_floor, draft=made, waiting=waiting
        )
    except Interruption as error:
        left = left_behind(directory)
        data = _data(directory, left) if left else None
        return Result(data, errors=(error,), warnings=warnings)
    if retries is not None:
        say(_submitted(directory, campaign).text, err=True)
        return followed((directory,), RetryPolicy(retries), here)
    return _submitted(directory, campaign, (*warnings, *store.caution(directory)))


def _dry_run(made: Draft, warnings: tuple[str, ...]) -> Result:
    from hpcbert.scheduler.slurm.gates import sbatch_argv

    arrays = made.campaign.in_order
    runs_on = scheduler.of(made.campaign.scheduler, World(run))
    checks = runs_on.checks({array.script: made.scripts[array.name] for array in arrays})
    failed = [check for check in checks if check.ok is False]
    errors = tuple(CheckError(f"{check.name}: {check.detail}") for check in failed)
    lines = []
    for array in arrays:
        lines += [f"$ {runs_on.describe(made.directory, array)}", made.scripts[array.name]]
    lines += [f"{_MARKS[check.ok]} {check.name} {check.detail}".rstrip() for check in checks]
    lines += ["Nothing was written, nothing was submitted."]
    data = {
        "campaign": made.campaign.id,
        "directory": str(made.directory),
        "scheduler": made.campaign.scheduler,
        "arrays": [
            {
                **_described(array),
                "argv": sbatch_argv(made.directory, array),
                "script_text": made.scripts[array.name],
            }
            for array in arrays
        ],
        "checks": checks,
    }
    return Result(data, "\n".join(lines), errors, warnings)


def _described(array: Array) -> dict[str, Any]:
    point = array.point
    return {
        "name": array.name,
        "shape": str(point.shape),
        "model": point.model,
        "precision": point.precision,
        "device": point.device,
        "batch_size_per_device": point.batch_size_per_device,
        "global_batch_size": point.global_batch_size,
        "repeats": list(array.repeats),
        "preflight": array.preflight,
        "script": array.script,
        "script_sha256": array.script_sha256,
        "state": array.state,
        "job_id": array.job_id or None,
        "cluster": array.cluster or None,
        "changed": [
            {"what": what, "asked": asked, "has": has} for what, asked, has in array.changed
        ],
    }


def _submitted(directory: Path, campaign: Campaign, warnings: tuple[str, ...] = ()) -> Result:
    points, count = {array.point for array in campaign.measured}, len(campaign.current)
    lines = [f"campaign {campaign.id}: {len(points)} points, {count} repeats"]
    if check := campaign.preflight:
        lines.append(f"  preflight of {check.point.shape.nodes} nodes  job {check.job_id}")
    for array in campaign.measured:
        point = array.point
        lines.append(
            f"  {point.framework} {point.model} {point.shape!s:>6} {point.precision} "
            f"b{point.batch_size_per_device}{' cpu' if point.device == 'cpu' else ''}  "
            f"job {array.job_id}"
        )
    where = shlex.quote(str(directory))
    lines += [f"in {directory}", f"watch it:  hpcbert monitor {where}"]
    if campaign.rehearse:
        lines.append("A rehearsal: ranks replay a sample log, no number comes of it.")
    else:
        lines.append(f"then:      hpcbert collect {where}")
    # A site's plugin may make something else of a job than was asked for.
    changed = tuple(
        f"Job {array.job_id} has {what}={has}, where {asked or 'none'} was asked for: something "
        "at this site changed it."
        for array in campaign.arrays
        for what, asked, has in array.changed
    )
    return Result(_data(directory, campaign), "\n".join(lines), warnings=(*warnings, *changed))


def _data(directory: Path, campaign: Campaign) -> dict[str, Any]:
    return {
        "campaign": campaign.id,
        "directory": str(directory),
        "scheduler": campaign.scheduler,
        "rehearse": campaign.rehearse,
        "arrays": [_described(array) for array in campaign.arrays],
    }
