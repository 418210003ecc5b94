"""hpcbert doctor."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from hpcbert.cli.options import shared_option
from hpcbert.cli.output import Result, printable, returns_result
from hpcbert.cli.request import submitter
from hpcbert.cli.unused_options import refuse_typed
from hpcbert.config import site
from hpcbert.config.options import Options, unused_with
from hpcbert.config.schedulers import traits
from hpcbert.errors import CheckError
from hpcbert.model import Shape
from hpcbert.system.runner import run

if TYPE_CHECKING:
    from hpcbert.finding import Finding

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
_PATIENCE = 300


@click.command(
    epilog="\b\nExamples:\n"
    "  hpcbert doctor\n"
    "  hpcbert doctor --nodes 4 --fw oneflow\n"
    "  hpcbert doctor --nodes 4 --partition gpu --account project"
)
@shared_option("site_file")
@click.option("--fw", "frameworks", multiple=True, help="Check this framework's image and data.")
@click.option(
    "--nodes", type=click.IntRange(0), default=0, help="Check this many nodes from inside a job."
)
@click.option(
    "--gpus-per-node", type=click.IntRange(1), help="GPUs per node; the site's by default."
)
@click.option(
    "--wait",
    type=click.IntRange(1),
    default=_PATIENCE,
    show_default=True,
    help="Seconds to wait for the job to start.",
)
@shared_option("runtime")
@shared_option("runs")
@shared_option("partition")
@shared_option("account")
@shared_option("qos")
@shared_option("reservation")
@shared_option("nodelist", "Nodes that a job must have.", metavar=None)
@shared_option("exclude", "Nodes that a job must not have.", metavar=None)
@shared_option("time_limit")
@returns_result
def doctor(
    *,
    site_file: str,
    frameworks: tuple[str, ...],
    nodes: int,
    gpus_per_node: int | None,
    wait: int,
    **given: Any,
) -> Result:
    """Check that this machine, and nodes, can do what the site says.

    With --nodes, doctor submits a job with the script of a normal submission, which checks that
    many nodes from inside.
    """
    from hpcbert.commands.doctor import Visit, examine  # imports Jinja, which --help does not need

    here = site.load(site_file, Options(**given))
    like = traits(here.scheduler)
    if not like.srun:
        unused = ("nodes", "gpus_per_node", "wait", *unused_with(here.scheduler))
        refuse_typed(unused, f"with the {here.scheduler} scheduler")
    gpus = gpus_per_node or here.nodes.gpus_per_node
    here = replace(here, nodes=replace(here.nodes, gpus_per_node=gpus))
    visit = Visit(Shape(nodes, gpus), wait, submitter()) if nodes else None
    findings = tuple(examine(here, run=run, frameworks=frameworks, visit=visit))
    failed = [finding.name for finding in findings if finding.status == "fail"]
    errors = (CheckError(f"Failed: {', '.join(failed)}."),) if failed else ()
    rows = [{"code": finding.code, **asdict(finding)} for finding in findings]
    return Result(rows, "\n".join(line for finding in findings for line in _lines(finding)), errors)


def _lines(finding: Finding) -> list[str]:
    """Return a finding as text: what was found, then what to do about it."""
    status = click.style(f"{finding.status:<4}", _COLOURS[finding.status])
    lines = [f"{status} {finding.name}: {printable(finding.detail)}"]
    lines += [f"     {finding.hint}"] if finding.hint else []
    lines += [f"     change: {finding.change}"] if finding.change else []
    return lines + ([f"     try: {finding.remedy}"] if finding.remedy else [])
