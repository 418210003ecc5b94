"""hpcbert lab."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TextIO

import click

from hpcbert.cli.options import count_option, flag_option, text_option
from hpcbert.cli.output import Result, pick, returns_result
from hpcbert.errors import CheckError
from hpcbert.lab import lifecycle
from hpcbert.lab.record import DEFAULT_DIRECTORY, LabPlan, command
from hpcbert.system.runner import run

_FOLDER = click.Path(file_okay=False, path_type=Path)
_TEXT_FILE = click.File(encoding="utf-8")
_DIRECTORY = click.option(
    "--directory",
    type=_FOLDER,
    default=DEFAULT_DIRECTORY,
    show_default=True,
    help="Directory of the lab.",
)


@click.group()
def lab() -> None:
    """Run a real Slurm cluster on this machine.

    munge, MariaDB, slurmdbd, slurmctld and one slurmd per node, each in namespaces of its own, with
    fake GPUs. The lab needs root and the distribution's Slurm packages.
    """


def _print_progress(line: str) -> None:
    click.echo(line, err=True)


def _make_result(status: lifecycle.LabStatus) -> Result:
    dead = [daemon.name for daemon in status.daemons if not daemon.alive]
    lines = [f"{node.name}  {node.address}  {node.state}" for node in status.nodes]
    directory = status.lab.directory
    lines += [f"use it:  {status.usage}", f"end it:  {command('down', directory)}"]
    errors = () if status.healthy else (CheckError(f"The lab is not healthy: {dead} ended."),)
    data = {
        "directory": str(directory),
        "healthy": status.healthy,
        "environment": status.lab.environment,
        "env_sh": str(status.lab.layout.env_sh),
        **pick(status, "daemons nodes"),
    }
    return Result(data, "\n".join(lines), errors)


@lab.command("up")
@_DIRECTORY
@count_option("--nodes", "Nodes.", default=4)
@count_option("--gpus-per-node", "Fake GPUs per node.", least=0, default=8)
@click.option(
    "--gpu-type", "gpu_types", multiple=True, help="GPU type, node by node; none: no GPUs."
)
@flag_option("--no-accounting", "Start no slurmdbd: a cluster without sacct.")
@click.option("--job-submit", type=_TEXT_FILE, help="A job_submit.lua that checks jobs.")
@click.option("--slurm-conf", type=_TEXT_FILE, help="Extra lines of slurm.conf, which win.")
@click.option("--lacks", multiple=True, help="A Slurm plugin to leave out.")
@text_option("--user", "Add an ordinary user who can run hpcbert.", "NAME")
@returns_result
def lab_up(
    *,
    directory: Path,
    no_accounting: bool,
    job_submit: TextIO | None,
    slurm_conf: TextIO | None,
    **values: Any,
) -> Result:
    """Start the cluster."""
    plan = LabPlan(
        directory=directory.absolute(),
        accounting=not no_accounting,
        job_submit=job_submit.read() if job_submit else "",
        settings=tuple(slurm_conf.read().splitlines()) if slurm_conf else (),
        **values,
    )
    lifecycle.up(plan, run=run, report=_print_progress)
    return _make_result(lifecycle.status(plan.directory, run=run))


@lab.command("status")
@_DIRECTORY
@returns_result
def lab_status(*, directory: Path) -> Result:
    """Report the state of the lab."""
    return _make_result(lifecycle.status(directory.absolute(), run=run))


@lab.command("down")
@_DIRECTORY
@returns_result
def lab_down(*, directory: Path) -> Result:
    """End the cluster and remove everything that it made.

    That works after a failed start too.
    """
    removal = lifecycle.down(directory.absolute(), run=run, report=_print_progress)
    data = {"ended": removal.ended, "left": list(removal.remains)}
    if not removal.remains:
        sentence = f"{removal.ended} processes ended, nothing is left behind.\n"
        shells = "Shells that sourced its env.sh need:  unset HPCBERT_SITE SLURM_CONF"
        return Result(data, sentence + shells)
    error = CheckError(f"Left behind: {', '.join(removal.remains)}.", where=str(directory))
    return Result(data, errors=(error,))
