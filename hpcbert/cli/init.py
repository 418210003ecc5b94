"""hpcbert init, hpcbert doctor."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import click

from hpcbert.campaign.store import write_text
from hpcbert.cli.options import (
    count_option,
    flag_option,
    refuse_typed,
    shared_option,
    shared_options,
    text_option,
)
from hpcbert.cli.output import Result, replace_controls, returns_result
from hpcbert.cli.request import find_submitter
from hpcbert.commands.doctor import Visit, examine
from hpcbert.commands.init import (
    Proposal,
    Question,
    complete,
    describe_choices,
    has_cluster,
    local_values,
    render_site,
)
from hpcbert.config import site
from hpcbert.config.options import Options, list_unused
from hpcbert.config.places import default_site, find_site
from hpcbert.config.schedulers import find_traits
from hpcbert.errors import CheckError, ConfigError, SchedulerError, UsageError
from hpcbert.finding import Finding
from hpcbert.model import Shape
from hpcbert.scheduler.base import SchedulerContext
from hpcbert.scheduler.slurm.cluster import Cluster
from hpcbert.system import machine
from hpcbert.system.runner import run

# Options that mean nothing without Slurm.
_SLURM = ("partition", "account", "qos", "gpu_type", "mpi", "interface")


@click.command()
@flag_option("--slurm", "Ask this cluster's Slurm; fail without an answer.")
@flag_option("--local", "Use this machine only, even if there is Slurm.", "only_local")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("site.toml"),
    show_default=True,
    help="File to write.",
)
@shared_options("partition", "account", "qos")
@text_option("--gpu-type", "Type of GPU, as Slurm names it.")
@click.option("--gpus-per-node", type=click.IntRange(1, 1024), help="GPUs per node.")
@shared_option("time_limit", "Time limit of one repeat.")
@text_option("--mpi", "Value of srun --mpi.")
@text_option("--interface", "Network interface that ranks use.")
@shared_options("runtime", "runs")
@flag_option("--force", "Overwrite an existing file.")
@returns_result
def init(*, output: Path, slurm: bool, only_local: bool, force: bool, **options: Any) -> Result:
    """Write a site.toml for this cluster or machine, with every key explained.

    init examines what Slurm has and allows, and gives the reason for each value and the
    alternatives. On a terminal it asks if there is a choice; elsewhere the options decide.

    \b
    Examples:
      hpcbert init
      hpcbert init --partition gpu --gpu-type a100
      hpcbert init --local
    """
    if only_local:
        refuse_typed(_SLURM, "with --local")
    if (output.exists() or output.is_symlink()) and not force:
        raise UsageError(
            "The file exists already.", where=str(output), hint="Give --force to overwrite it."
        )
    cluster, proposal = Cluster(SchedulerContext(run)), None
    if not only_local and has_cluster(cluster):
        terminals = sys.stdin.isatty() and sys.stderr.isatty()
        asks = terminals and not click.get_current_context().params.get("as_json")
        pick = _ask_user if asks else attrgetter("default")
        surroundings = machine.inspect_machine(os.environ)
        proposal = Proposal(cluster, surroundings, output.absolute().parent, options, pick)
        complete(proposal)
    if proposal is None:
        refuse_typed(_SLURM, "without Slurm, which this machine does not have")
        if slurm:
            raise SchedulerError("Slurm does not answer here.", hint="Run this on a login node.")
    values = proposal.values if proposal else local_values(options)
    write_text(output, render_site(default_site().read_text(encoding="utf-8"), values))
    warnings = _warn_other_site(output)
    site_flag = f" --site {shlex.quote(str(output))}" if warnings else ""
    text, kind = f"Read it, then: hpcbert doctor{site_flag}", "this machine"
    if proposal:
        text += f"\n{describe_choices(proposal.choices)}"
        kind, warnings = f"the Slurm cluster {proposal.name}", [*proposal.warnings, *warnings]
    data = {
        "file": str(output),
        "detected": {key: value for key, value in values.items() if value is not None},
        "choices": proposal.choices if proposal else [],
    }
    return Result(data, f"{output}: for {kind}. {text}", warnings=tuple(warnings))


def _ask_user(question: Question) -> str:
    names = list(question.options)
    title = question.name if names else f"{question.name} ({question.flag})"
    if names:
        click.echo(f"Which {question.name}? ({question.flag})", err=True)
    for number, (name, description) in enumerate(question.options.items(), 1):
        begins_with_name = name and description.startswith(name)
        text = description if begins_with_name else f"{name or '(none)'}: {description}"
        click.echo(f"  {number}  {replace_controls(text)}", err=True)
    default = question.default or ("" if "" in names else None)
    while True:
        answer: str = click.prompt(title, default=default, show_default=bool(default), err=True)
        answer = answer.strip()
        if answer.isdigit() and names and 1 <= int(answer) <= len(names):
            return names[int(answer) - 1]
        if not names or answer in names:
            return answer
        click.echo(f"{replace_controls(answer)} is not one of them.", err=True)


def _warn_other_site(output: Path) -> list[str]:
    try:
        path, source = find_site("", env=os.environ, cwd=Path.cwd())
    except ConfigError as error:
        return [f"hpcbert does not use {output} here. {error} {error.hint}"]
    if path.resolve() == output.resolve():
        return []
    return [f"hpcbert uses {path} here ({source}). To use {output}, give --site {output}."]


_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
_MAX_WAIT = 300


@click.command()
@shared_options("site_file")
@click.option("--fw", "frameworks", multiple=True, help="Check this framework's image and data.")
@count_option("--nodes", "Check this many nodes from inside a job.", least=0)
@count_option("--gpus-per-node", "GPUs per node; the site's by default.")
@count_option("--wait", "Seconds to wait for the job to start.", default=_MAX_WAIT)
@shared_options("runtime", "runs", "partition", "account", "qos", "reservation")
@shared_option("nodelist", "Nodes that a job must have.")
@shared_option("exclude", "Nodes that a job must not have.")
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
        status = click.style(f"{finding.status:<4}", fg=_COLOURS[finding.status])
        yield f"{status} {finding.name}: {replace_controls(finding.detail)}"
        if finding.hint:
            yield f"     {finding.hint}"
        if finding.change:
            yield f"     change: {finding.change}"
        if finding.remedy:
            yield f"     try: {finding.remedy}"
