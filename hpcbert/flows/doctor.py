"""Checking that this machine can do what the site says, one small check at a time."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert.config import places, recipe
from hpcbert.errors import HpcbertError
from hpcbert.flows import doctor_containers
from hpcbert.flows.finding import Finding
from hpcbert.logs import grammar
from hpcbert.slurm.commands import submission_environment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hpcbert.inventory import Site
    from hpcbert.slurm.runner import Outcome, Runner


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
    yield _runs(Path(site.runs))
    yield from _recipes(site)
    if site.scheduler == "local":
        yield _torch()
    else:
        yield from _slurm(site, run)
    yield from doctor_containers.examine(site, named, run=run, nodes=nodes)


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


def _slurm(site: Site, run: Runner) -> Iterator[Finding]:
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
    if site.partition:
        found = ask(
            *("sinfo", "--noheader", "--all", "--format=%P %D nodes %G"),
            f"--partition={site.partition}",
        )
        ok = found.ok and bool(found.stdout.strip())
        detail = " ".join(found.stdout.split()) or f"there is no partition {site.partition!r}"
        yield Finding("partition", "ok" if ok else "fail", detail, "" if ok else "See `sinfo`.")
    if site.mpi:
        types = ask("srun", "--mpi=list")
        ok = site.mpi in (types.stdout + types.stderr).split()
        detail = f"srun --mpi={site.mpi}"
        yield Finding("MPI", "ok" if ok else "fail", detail, "" if ok else "See `srun --mpi=list`.")
    if site.runtime == "pyxis":
        usage = ask("srun", "--help")
        ok = "--container-image" in usage.stdout
        hint = "" if ok else 'Install pyxis, or set container.runtime = "none".'
        yield Finding("pyxis", "ok" if ok else "fail", "srun --container-image", hint)


def _judged(name: str, outcome: Outcome, detail: str, hint: str, *, bad: str = "fail") -> Finding:
    if outcome.ok:
        return Finding(name, "ok", detail)
    lines = outcome.stderr.strip().splitlines()
    return Finding(name, bad, lines[-1] if lines else f"status {outcome.returncode}", hint)
