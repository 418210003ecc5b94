"""Checking that this machine can do what the site says, one small check at a time."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert.checks import containers as doctor_containers
from hpcbert.checks import nodes as doctor_nodes
from hpcbert.checks import obstacles
from hpcbert.checks.settings import complaints
from hpcbert.config import places, recipe
from hpcbert.config.schedulers import traits
from hpcbert.errors import HpcbertError
from hpcbert.finding import Finding
from hpcbert.logs import grammar
from hpcbert.script import inputs
from hpcbert.slurm import partitions
from hpcbert.slurm.commands import submission_environment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hpcbert.config.site import Site
    from hpcbert.system.runner import Outcome, Runner


def examine(
    site: Site, *, run: Runner, frameworks: Sequence[str] = (), nodes: int = 0
) -> Iterator[Finding]:
    """Yield the findings for a site, the cheap checks first.

    Args:
        site: What is to be checked.
        run: Starts the programs that are asked.
        frameworks: Names of those whose images and data are to be checked too.
        nodes: Nodes to look at from inside a job step; 0: only this machine.

    Raises:
        UsageError: There is no framework of a name.
    """
    folders = places.recipe_folders(Path(site.where))
    named = [recipe.load(places.find_recipe(name, folders)) for name in frameworks]
    yield Finding("site", "ok", site.where)
    for error in complaints(site):
        yield Finding("site", "fail", str(error), error.hint)
    yield _runs(Path(site.runs))
    yield from _recipes(site)
    for one in named:
        found = tuple(obstacles.of_framework(site, one, inputs.find(site, one)))
        yield from found or (Finding(f"what {one.name} needs", "ok", "it is here"),)
    if site.scheduler == "local":
        yield _torch()
    else:
        yield from _slurm(site, run, max(nodes, 1))
    yield from doctor_containers.examine(site, named, run=run, nodes=nodes)
    if nodes and traits(site.scheduler).srun:
        yield from doctor_nodes.examine(site, named, run=run, nodes=nodes)


def _runs(runs: Path) -> Finding:
    present = next(path for path in (runs, *runs.parents) if path.exists())
    if present.is_dir() and os.access(present, os.W_OK | os.X_OK):
        return Finding("runs directory", "ok", str(runs))
    return Finding(
        "runs directory",
        "fail",
        f"{present} can't be written",
        "Set runs in the site.toml to a directory of yours that all nodes share.",
    )


def _recipes(site: Site) -> Iterator[Finding]:
    folders = places.recipe_folders(Path(site.where))
    for name, folder in places.list_recipes(folders).items():
        yield _recipe(name, folder)


def _recipe(name: str, folder: Path) -> Finding:
    try:
        found = recipe.load(folder)
        grammar.parse(found.log, where=f"{folder}/recipe.toml")
    except HpcbertError as error:
        return Finding(f"recipe {name}", "fail", str(error), error.hint)
    return Finding(f"recipe {name}", "ok", str(folder))


def _torch() -> Finding:
    if importlib.util.find_spec("torch"):
        return Finding("PyTorch", "ok", "the pytorch recipe can train on this machine")
    return Finding(
        "PyTorch",
        "warn",
        "not installed beside hpcbert; the pytorch recipe can't train here",
        "pip install 'hpcbert[torch]', or name another interpreter in the site.toml.",
    )


def _slurm(site: Site, run: Runner, nodes: int) -> Iterator[Finding]:
    def ask(*argv: str) -> Outcome:
        return run(argv, env=submission_environment(os.environ), timeout=30)

    version = ask("sbatch", "--version")
    yield _judged("sbatch", version, version.stdout.strip(), "Run this on a login node.")
    if not version.ok:
        return
    ping = ask("scontrol", "ping")
    hint = "Ask the cluster's administrators, or check SLURM_CONF."
    yield _judged("slurmctld", ping, " ".join(ping.stdout.split()), hint)
    sacct = ask("sacct", "-n", "-X", "-o", "JobID")
    hint = "Without accounting, states come from squeue and from the jobs' own status files."
    yield _judged("accounting", sacct, "sacct answers", hint, bad="warn")
    yield from _partition(site, run, nodes)
    if site.slurm.mpi:
        types = ask("srun", "--mpi=list")
        ok = site.slurm.mpi in (types.stdout + types.stderr).split()
        detail = f"srun --mpi={site.slurm.mpi}"
        yield Finding("MPI", "ok" if ok else "fail", detail, "" if ok else "See `srun --mpi=list`.")
    if site.container.runtime == "pyxis":
        usage = ask("srun", "--help")
        ok = "--container-image" in usage.stdout
        hint = "" if ok else 'Install pyxis, or set container.runtime = "none".'
        yield Finding("pyxis", "ok" if ok else "fail", "srun --container-image", hint)


def _partition(site: Site, run: Runner, nodes: int) -> Iterator[Finding]:
    """Yield whether a job of this site fits its partition."""
    found = obstacles.ask(run)
    gpus = f"{site.slurm.gres}:{site.nodes.gpus_per_node}" if site.slurm.gres else ""
    job = obstacles.Wanted(
        site.slurm.partition, nodes, site.slurm.time_limit, partitions.resources(gpus)
    )
    if not found:
        hint = "Ask the cluster's administrators what you may see of it."
        yield Finding("partition", "warn", "sinfo says nothing of partitions", hint)
        return
    wrong = tuple(obstacles.of_cluster([job], Path(site.runs), found))
    each = ", ".join(f"{one.name} ({one.nodes} nodes)" for one in found.values())
    yield from wrong or (Finding("partition", "ok", f"{job.partition or 'default'} of {each}"),)


def _judged(name: str, outcome: Outcome, detail: str, hint: str, *, bad: str = "fail") -> Finding:
    if outcome.ok:
        return Finding(name, "ok", detail)
    lines = outcome.stderr.strip().splitlines()
    return Finding(name, bad, lines[-1] if lines else f"status {outcome.returncode}", hint)
