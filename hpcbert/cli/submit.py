"""hpcbert submit."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import click

from hpcbert.campaign import store
from hpcbert.cli.campaigns import announce_runs
from hpcbert.cli.options import SectionedCommand, add_submit_options, refuse_others, refuse_typed
from hpcbert.cli.output import Result, returns_result
from hpcbert.config.options import Options
from hpcbert.config.schedulers import ALLOCATION
from hpcbert.system.runner import PrefetchingRunner, run

# Options that are allowed with --resume.
_RESUME_OPTIONS = ("resume", "wait", "max_retries", "runs", "site_file")


@click.command(
    cls=SectionedCommand,
    epilog="\b\nExamples:\n"
    "  hpcbert submit --fw pytorch --nodes 1 --gpus-per-node 2 --scaling --wait\n"
    "  hpcbert submit --fw oneflow --nodes 4 --gpus-per-node 8\n"
    "  hpcbert submit --fw oneflow --nodes 4 --gpus-per-node 8 --dry-run\n"
    "  hpcbert submit campaign.toml\n"
    "  hpcbert submit --resume 20261121T100000Z-oneflow-3f9a1c\n"
    "  hpcbert submit --like table4.zip",
)
@add_submit_options
@click.option("-J", "--name", default="", help="Name of the campaign, for every command.")
@click.option("--note", default="", help="Note about the campaign, as hpcbert note writes it.")
@click.option("--dry-run", is_flag=True, help="Show and check everything, run and write nothing.")
@click.option("--rehearse", is_flag=True, help="Run everything but the training.")
@click.option("--force", is_flag=True, help="Submit even if something is known to be missing.")
@click.option("--wait", is_flag=True, help="Watch until all repeats end, then print the table.")
@click.option(
    "--here",
    "in_allocation",
    is_flag=True,
    help="Run in the allocation of this shell, as its steps.",
)
@click.option("--resume", default="", metavar="CAMPAIGN", help="Resume an interrupted submission.")
@click.option("--like", default="", metavar="CAMPAIGN", help="Measure the same again.")
@click.option(
    "--max-retries",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="With --wait: retry each invalid repeat up to N times.",
)
@click.argument("file", required=False, type=click.Path(path_type=Path), metavar="[FILE]")
@returns_result
def submit(
    options: Options,
    *,
    file: Path | None,
    name: str,
    note: str,
    dry_run: bool,
    rehearse: bool,
    force: bool,
    wait: bool,
    in_allocation: bool,
    resume: str,
    like: str,
    max_retries: int,
) -> Result:
    """Submit a point, a whole scaling curve, or a campaign.toml, with five repeats of each point.

    submit makes one sbatch script and one job array per point. Together they are a campaign, in one
    directory. On Slurm, each job gets an allocation (its nodes), in which srun starts the measured
    step: the ranks that train. submit prints the jobs and the directory, and returns.

    With --like the points, the options and the protocol are those of another campaign, of all
    campaigns that a file named, or of an archive; submit reports what differs here, such as the
    image and the site.
    """
    from hpcbert.cli import request, submit_run  # not needed for --help or a wrong option

    if not wait:
        refuse_typed(("max_retries",), "without --wait")
    retries = max_retries if wait else None
    if resume:
        refuse_others(_RESUME_OPTIONS, "with --resume, which submits what was written down")
        return submit_run.resume(resume, options, retries=retries)
    if in_allocation:
        options = _choose_allocation(options)
    runs = announce_runs(options.runs, options.site_file)
    if not dry_run:
        store.record_submit(runs)
    with closing(PrefetchingRunner(run)) as ahead:
        plan = request.plan_campaigns(
            options,
            file=file,
            like=like,
            rehearse=rehearse,
            ahead=ahead,
            name=name,
            note=note,
            dry=dry_run,
        )
        request.refuse_costly(plan, tries=1 + max_retries)
        errors, doubts = request.find_obstacles(plan.drafts, force=dry_run or force, ahead=ahead)
    warnings = (*plan.warnings, *doubts)
    if errors:
        return Result(errors=errors, warnings=warnings)
    if dry_run:
        return submit_run.dry_run(plan.drafts, warnings)
    directories = [draft.directory for draft in plan.drafts]
    return submit_run.submit_campaigns(
        directories, plan.site, plan.drafts, retries=retries, warnings=warnings
    )


def _choose_allocation(options: Options) -> Options:
    refuse_typed(("scheduler",), "with --here")
    return replace(options, scheduler=ALLOCATION)
