"""Checking that Slurm is here and has what a site says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbert.finding import Finding
from hpcbert.scheduler.slurm import capacity
from hpcbert.slurm import partitions
from hpcbert.slurm.commands import submission_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcbert.config.site import Site
    from hpcbert.system.runner import Outcome, Runner


def examine(site: Site, run: Runner, nodes: int) -> Iterator[Finding]:
    """Yield whether Slurm answers and has what the site says.

    Args:
        site: What is to be checked.
        run: Starts Slurm's commands.
        nodes: How many nodes a job would take.
    """

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
    found = capacity.ask(run)
    gpus = f"{site.slurm.gres}:{site.nodes.gpus_per_node}" if site.slurm.gres else ""
    job = capacity.Wanted(
        site.slurm.partition, nodes, site.slurm.time_limit, partitions.resources(gpus)
    )
    if not found:
        hint = "Ask the cluster's administrators what you may see of it."
        yield Finding("partition", "warn", "sinfo says nothing of partitions", hint)
        return
    wrong = tuple(capacity.of_cluster([job], Path(site.runs), found))
    each = ", ".join(f"{one.name} ({one.nodes} nodes)" for one in found.values())
    yield from wrong or (Finding("partition", "ok", f"{job.partition or 'default'} of {each}"),)


def _judged(name: str, outcome: Outcome, detail: str, hint: str, *, bad: str = "fail") -> Finding:
    if outcome.ok:
        return Finding(name, "ok", detail)
    lines = outcome.stderr.strip().splitlines()
    return Finding(name, bad, lines[-1] if lines else f"status {outcome.returncode}", hint)
