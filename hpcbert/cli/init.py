"""hpcbert init."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from hpcbert.campaign.store import write_text
from hpcbert.cli.options import refuse_typed, shared_option
from hpcbert.cli.output import Result, replace_controls, returns_result
from hpcbert.commands.init import (
    Proposal,
    Question,
    describe_choices,
    has_cluster,
    local_values,
    propose,
    render_site,
)
from hpcbert.config.places import default_site, find_site
from hpcbert.errors import ConfigError, SchedulerError, UsageError
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.scheduler.slurm.cluster import Cluster
from hpcbert.system import machine
from hpcbert.system.runner import run

# Options that mean nothing without Slurm.
_SLURM = ("partition", "account", "qos", "gpu_type", "mpi", "interface")


@click.command(
    epilog="\b\nExamples:\n  hpcbert init\n  hpcbert init --partition gpu --gpu-type a100"
    "\n  hpcbert init --local"
)
@click.option("--slurm", is_flag=True, help="Ask this cluster's Slurm; fail without an answer.")
@click.option(
    "--local", "only_local", is_flag=True, help="Use this machine only, even if there is Slurm."
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("site.toml"),
    show_default=True,
    help="File to write.",
)
@shared_option("partition")
@shared_option("account")
@shared_option("qos", "Slurm QOS.")
@click.option("--gpu-type", default="", help="Type of GPU, as Slurm names it.")
@click.option("--gpus-per-node", type=click.IntRange(1, 1024), help="GPUs per node.")
@shared_option("time_limit", "Time limit of one repeat.")
@click.option("--mpi", default="", help="Value of srun --mpi.")
@click.option("--interface", default="", help="Network interface that ranks use.")
@shared_option("runtime")
@shared_option("runs")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@returns_result
def init(*, output: Path, slurm: bool, only_local: bool, force: bool, **options: Any) -> Result:
    """Write a site.toml for this cluster or machine, with every key explained.

    init examines what Slurm has and allows, and gives the reason for each value and the
    alternatives. On a terminal it asks if there is a choice; elsewhere the options decide.
    """
    if only_local:
        refuse_typed(_SLURM, "with --local")
    if (output.exists() or output.is_symlink()) and not force:
        raise UsageError(
            "The file exists already.", where=str(output), hint="Give --force to overwrite it."
        )
    proposal = None if only_local else _propose_site(output, options)
    if proposal is None:
        missing = (
            "with --local" if only_local else "without Slurm, which this machine does not have"
        )
        refuse_typed(_SLURM, missing)
        if slurm:
            raise SchedulerError("Slurm does not answer here.", hint="Run this on a login node.")
    values = proposal.values if proposal else local_values(options)
    text = render_site(default_site().read_text(encoding="utf-8"), values)
    write_text(output, text)
    kind = f"the Slurm cluster {proposal.name}" if proposal else "this machine"
    site_warnings = _warn_other_site(output)
    flag = f" --site {shlex.quote(str(output))}" if site_warnings else ""
    lines = [f"{output}: for {kind}. Read it, then: hpcbert doctor{flag}"]
    return Result(
        data={
            "file": str(output),
            "detected": {key: value for key, value in values.items() if value is not None},
            "choices": proposal.choices if proposal else [],
        },
        text="\n".join([*lines, *([describe_choices(proposal.choices)] if proposal else [])]),
        warnings=(*(proposal.warnings if proposal else ()), *site_warnings),
    )


def _propose_site(output: Path, options: dict[str, Any]) -> Proposal | None:
    cluster = Cluster(SchedulerContext(run))
    if not has_cluster(cluster):
        return None
    surroundings = machine.inspect_machine(os.environ)
    return propose(cluster, surroundings, options, _make_picker(), folder=output.absolute().parent)


def _make_picker() -> Callable[[Question], str]:
    """Return `_ask_user` at a terminal without `--json`, else a function that takes defaults."""
    if (
        sys.stdin.isatty()
        and sys.stderr.isatty()
        and not click.get_current_context().params.get("as_json")
    ):
        return _ask_user
    return lambda question: question.default


def _ask_user(question: Question) -> str:
    """Ask the user to choose one of several; a number or the name answers."""
    names = list(question.options)
    if names:
        click.echo(f"Which {question.name}? ({question.flag})", err=True)
    for number, (name, description) in enumerate(question.options.items(), 1):
        text = (
            description
            if description.startswith(name) and name
            else f"{name or '(none)'}: {description}"
        )
        click.echo(f"  {number}  {replace_controls(text)}", err=True)
    default = question.default or ("" if "" in names else None)
    while True:
        answer: str = click.prompt(
            question.name if names else f"{question.name} ({question.flag})",
            default=default,
            show_default=bool(default),
            err=True,
        ).strip()
        if answer.isdigit() and names and 1 <= int(answer) <= len(names):
            return names[int(answer) - 1]
        if not names or answer in names:
            return answer
        click.echo(f"{replace_controls(answer)} is not one of them.", err=True)


def _warn_other_site(output: Path) -> list[str]:
    """Return a warning if hpcbert finds another site than the file just written."""
    try:
        path, source = find_site("", env=os.environ, cwd=Path.cwd())
    except ConfigError as error:
        return [f"hpcbert does not use {output} here. {error} {error.hint}"]
    if path.resolve() == output.resolve():
        return []
    text = "because of HPCBERT_SITE" if source == "HPCBERT_SITE" else f"found {source}"
    remedy = "unset HPCBERT_SITE or give" if source == "HPCBERT_SITE" else "give"
    return [f"hpcbert uses {path} here, {text}. To use {output}, {remedy} --site {output}."]
