"""hpcbert doctor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import click

from hpcbert.cli.options import refuse_typed, shared_option
from hpcbert.cli.output import Result, replace_controls, returns_result
from hpcbert.cli.request import find_submitter
from hpcbert.commands.doctor import Visit, examine
from hpcbert.config import site
from hpcbert.config.options import Options, list_unused
from hpcbert.config.schedulers import find_traits
from hpcbert.errors import CheckError
from hpcbert.finding import Finding
from hpcbert.model import Shape
from hpcbert.system.runner import run

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
_MAX_WAIT = 300


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
    default=_MAX_WAIT,
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
    **values: Any,
) -> Result:
    """Check that this machine, and nodes, can do what the site says.

    With --nodes, doctor submits a job with the script of a normal submission, which checks that
    many nodes from inside.
    """
    site_config = site.load(site_file, Options(**values))
    scheduler_traits = find_traits(site_config.scheduler)
    if not scheduler_traits.srun:
        unused = ("nodes", "gpus_per_node", "wait", *list_unused(site_config.scheduler))
        refuse_typed(unused, f"with the {site_config.scheduler} scheduler")
    gpus = gpus_per_node or site_config.nodes.gpus_per_node
    site_config = replace(site_config, nodes=replace(site_config.nodes, gpus_per_node=gpus))
    visit = Visit(Shape(nodes, gpus), wait, find_submitter()) if nodes else None
    findings = tuple(examine(site_config, run=run, frameworks=frameworks, visit=visit))
    failures = [finding.name for finding in findings if finding.status == "fail"]
    errors = (CheckError(f"Failed: {', '.join(failures)}."),) if failures else ()
    rows = [{"code": finding.code, **asdict(finding)} for finding in findings]
    return Result(rows, "\n".join(_format_findings(findings)), errors)


def _format_findings(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the lines of all findings; recipes without a fault share one."""
    recipes = [
        finding for finding in findings if finding.code == "recipe" and finding.status == "ok"
    ]
    for finding in findings:
        if finding not in recipes:
            yield from _format_finding(finding)
        elif finding is recipes[0]:
            detail = f"{len(recipes)} can be read; hpcbert frameworks lists them"
            yield from _format_finding(Finding("recipes", "ok", detail))


def _format_finding(finding: Finding) -> list[str]:
    status = click.style(f"{finding.status:<4}", _COLOURS[finding.status])
    lines = [f"{status} {finding.name}: {replace_controls(finding.detail)}"]
    lines += [f"     {finding.hint}"] if finding.hint else []
    lines += [f"     change: {finding.change}"] if finding.change else []
    return lines + ([f"     try: {finding.remedy}"] if finding.remedy else [])
