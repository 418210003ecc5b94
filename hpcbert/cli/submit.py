"""hpcbert submit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hpcbert.cli.options import (
    SectionedCommand,
    add_submit_options,
    count_option,
    flag_option,
    make_reader,
    refuse_typed,
    text_option,
)
from hpcbert.cli.output import Result, returns_result
from hpcbert.config.campaignfile import check_name
from hpcbert.config.options import Options
from hpcbert.config.schedulers import ALLOCATION

# Options that are allowed with --resume.
_RESUME_OPTIONS = ("resume", "wait", "max_retries", "runs", "site_file", "as_json")


@click.command(cls=SectionedCommand)
@add_submit_options
@click.option(
    "-J",
    "--name",
    default="",
    callback=make_reader(check_name),
    help="Name of the campaign, for every command.",
)
@text_option("--note", "Note about the campaign, as hpcbert note writes it.")
@flag_option("--dry-run", "Show and check everything, run and write nothing.")
@flag_option("--rehearse", "Run everything but the training.")
@flag_option("--force", "Submit even if something is known to be missing.")
@flag_option("--wait", "Watch until all repeats end, then print the table.")
@flag_option("--here", "Run in the allocation of this shell, as its steps.", "in_allocation")
@text_option("--resume", "Resume an interrupted submission.", "CAMPAIGN")
@text_option("--like", "Measure the same again.", "CAMPAIGN")
@count_option(
    "--max-retries", "With --wait: retry each invalid repeat up to N times.", least=0, default=0
)
@click.argument("file", required=False, type=click.Path(path_type=Path), metavar="[FILE]")
@returns_result
def submit(
    options: Options,
    *,
    file: Path | None,
    dry_run: bool,
    wait: bool,
    in_allocation: bool,
    resume: str,
    max_retries: int,
    **request: Any,
) -> Result:
    """Submit a point, a whole scaling curve, or a campaign.toml, with five repeats of each point.

    submit makes one sbatch script and one job array per point. Together they are a campaign, in one
    directory. On Slurm, each job gets an allocation (its nodes), in which srun starts the measured
    step: the ranks that train. submit prints the jobs and the directory, and returns.

    With --like the points, the options and the protocol are those of another campaign, of all
    campaigns that a file named, or of an archive; submit reports what differs here, such as the
    image and the site.

    \b
    Examples:
      hpcbert submit --fw pytorch --nodes 1 --gpus-per-node 2 --scaling --wait
      hpcbert submit --fw oneflow --nodes 4 --gpus-per-node 8
      hpcbert submit --fw oneflow --nodes 4 --gpus-per-node 8 --dry-run
      hpcbert submit campaign.toml
      hpcbert submit --resume 20261121T100000Z-oneflow-3f9a1c
      hpcbert submit --like table4.zip
    """
    from hpcbert.cli import submit_run  # not needed for --help or a wrong option

    if not wait:
        refuse_typed(("max_retries",), "without --wait")
    retries = max_retries if wait else None
    if resume:
        params = click.get_current_context().params
        ignored = [param for param in params if param not in _RESUME_OPTIONS]
        refuse_typed(ignored, "with --resume, which submits what was written down")
        return submit_run.resume(resume, options, retries=retries)
    if in_allocation:
        refuse_typed(("scheduler",), "with --here")
        options = replace(options, scheduler=ALLOCATION)
    return submit_run.submit_new(options, file, retries=retries, dry=dry_run, **request)
