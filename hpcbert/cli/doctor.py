"""hpcbert doctor."""

from __future__ import annotations

from dataclasses import asdict

import click

from hpcbert.cli.output import Result, printable, returns_result
from hpcbert.config import site
from hpcbert.errors import CheckError
from hpcbert.flows.doctor import examine
from hpcbert.slurm.runner import run

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@click.option("--site", "site_file", default="", help="A site.toml, or its folder.")
@returns_result
def doctor(*, site_file: str) -> Result:
    """Check that this machine can do what the site says."""
    findings = tuple(examine(site.load(site_file), run=run))
    lines = []
    for one in findings:
        status = click.style(f"{one.status:<4}", _COLOURS[one.status])
        lines.append(f"{status} {one.name}: {printable(one.detail)}")
        lines += [f"     {one.hint}"] if one.hint else []
    failed = [one.name for one in findings if one.status == "fail"]
    errors = (CheckError(f"Failed: {', '.join(failed)}."),) if failed else ()
    code = CheckError.exit_code if failed else 0
    return Result([asdict(one) for one in findings], "\n".join(lines), code, errors)


command = doctor
