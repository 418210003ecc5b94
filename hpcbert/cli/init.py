"""hpcbert init."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from hpcbert.campaign.store import write_text
from hpcbert.cli import conflicts
from hpcbert.cli.conflicts import Conflict
from hpcbert.cli.output import Result, returns_result
from hpcbert.config.places import default_site, find_site
from hpcbert.errors import ConfigError, SchedulerError, UsageError
from hpcbert.flows.init import detect, site_text
from hpcbert.system.runner import run

# On a cluster: the real model, and nothing that is right for two cores only.
_CLUSTER: dict[str, str | None] = {
    "name": '"cluster"',
    "env.OMP_NUM_THREADS": None,
    "frameworks.pytorch.model": '"bert-base"',
    "frameworks.pytorch.batch_sizes.fp32": None,
    "frameworks.pytorch.batch_sizes.bf16": None,
    "frameworks.pytorch.options.vocab_size": None,
}


@click.command()
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("site.toml"),
    show_default=True,
    help="The file to write.",
)
@click.option("--slurm", is_flag=True, help="Ask this cluster's Slurm; fail if it does not answer.")
@click.option("--local", "only_local", is_flag=True, help="This machine only, whatever Slurm says.")
@click.option("--force", is_flag=True, help="Overwrite a file that is there.")
@returns_result
def init(*, output: Path, slurm: bool, only_local: bool, force: bool) -> Result:
    """Write a site.toml for this cluster or machine, every key explained."""
    conflicts.refuse(Conflict(("slurm",), lambda given: given["only_local"], "with --local"))
    if (output.exists() or output.is_symlink()) and not force:
        raise UsageError("There is such a file already.", where=str(output), hint="Give --force.")
    found = {} if only_local else detect(run)
    if slurm and not found:
        raise SchedulerError("Slurm does not answer here.", hint="Run this on a login node.")
    values: dict[str, str | None] = {**_CLUSTER, **found} if found else {}
    text = site_text(default_site().read_text(encoding="utf-8"), values)
    write_text(output, text, mode=0o666)
    kind = "a Slurm cluster" if found else "this machine"
    others = _outranked(output)
    flag = f" --site {shlex.quote(str(output))}" if others else ""
    return Result(
        data={"file": str(output), "detected": found},
        text=f"{output}: for {kind}. Read it, then: hpcbert doctor{flag}",
        warnings=tuple(others),
    )


def _outranked(output: Path) -> list[str]:
    """Return why hpcbert uses another site than the file that was written, if it does."""
    try:
        path, by = find_site("", env=os.environ, cwd=Path.cwd())
    except ConfigError as error:
        return [f"hpcbert does not use {output} here. {error}"]
    if path.resolve() == output.resolve():
        return []
    why = "because of HPCBERT_SITE" if by == "HPCBERT_SITE" else f"found {by}"
    remedy = "unset HPCBERT_SITE or give" if by == "HPCBERT_SITE" else "give"
    return [f"hpcbert uses {path} here, {why}. To use {output}, {remedy} --site {output}."]
