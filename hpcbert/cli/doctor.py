"""hpcbert doctor."""

from __future__ import annotations

import click

from hpcbert.cli import conflicts
from hpcbert.cli.output import Result, printable, returns_result
from hpcbert.config import site
from hpcbert.config.schedulers import traits
from hpcbert.errors import CheckError
from hpcbert.flows.doctor import examine
from hpcbert.system.runner import run

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@click.option("--site", "site_file", default="", help="A site.toml, or its folder.")
@click.option("--fw", "frameworks", multiple=True, help="Check this framework's image and data.")
@click.option(
    "--nodes", type=click.IntRange(0), default=0, help="Look at so many nodes from inside a job."
)
@returns_result
def doctor(*, site_file: str, frameworks: tuple[str, ...], nodes: int) -> Result:
    """Check that this machine can do what the site says."""
    here = site.load(site_file)
    if not traits(here.scheduler).srun:
        conflicts.refuse_typed(("nodes",), f"with the {here.scheduler} scheduler")
    findings = tuple(examine(here, run=run, frameworks=frameworks, nodes=nodes))
    lines = []
    for one in findings:
        status = click.style(f"{one.status:<4}", _COLOURS[one.status])
        lines.append(f"{status} {one.name}: {printable(one.detail)}")
        lines += [f"     {one.hint}"] if one.hint else []
        lines += [f"     change: {one.change}"] if one.change else []
    failed = [one.name for one in findings if one.status == "fail"]
    errors = (CheckError(f"Failed: {', '.join(failed)}."),) if failed else ()
    return Result(findings, "\n".join(lines), errors)
