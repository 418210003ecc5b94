"""hpcbert doctor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import click

from hpcbert.cli.options import count_option, refuse_typed, shared_option, shared_options
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


@click.command()
@shared_options("site_file")
@click.option("--fw", "frameworks", multiple=True, help="Check this framework's image and data.")
@count_option("--nodes", "Check this many nodes from inside a job.", least=0)
@count_option("--gpus-per-node", "GPUs per node; the site's by default.")
@count_option("--wait", "Seconds to wait for the job to start.", default=_MAX_WAIT)
@shared_options("runtime", "runs", "partition", "account", "qos", "reservation")
@shared_option("nodelist", "Nodes that a job must have.", metavar=None)
@shared_option("exclude", "Nodes that a job must not have.", metavar=None)
@shared_options("time_limit")
@returns_result
def doctor(
    *,
    site_file: str,
    frameworks: tuple[str, ...],
    nodes: int | None,
    gpus_per_node: int | None,
    wait: int,
    **values: Any,
) -> Result:
    """Check that this machine, and nodes, can do what the site says.

    With --nodes, doctor submits a job with the script of a normal submission, which checks that
    many nodes from inside.

    \b
    Examples:
      hpcbert doctor
      hpcbert doctor --nodes 4 --fw oneflow
      hpcbert doctor --nodes 4 --partition gpu --account project
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
    if recipes:
        detail = f"{len(recipes)} can be read; hpcbert frameworks lists them"
        place, finding = findings.index(recipes[0]), Finding("recipes", "ok", detail)
        later = [finding for finding in findings[place:] if finding not in recipes]
        findings = [*findings[:place], finding, *later]
    for finding in findings:
        status = click.style(f"{finding.status:<4}", _COLOURS[finding.status])
        yield f"{status} {finding.name}: {replace_controls(finding.detail)}"
        if finding.hint:
            yield f"     {finding.hint}"
        if finding.change:
            yield f"     change: {finding.change}"
        if finding.remedy:
            yield f"     try: {finding.remedy}"
