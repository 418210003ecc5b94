"""The request of a job to the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcbert.config.slurmwords import values
from hpcbert.script import directives
from hpcbert.slurm.hostlist import expand
from hpcbert.slurm.partitions import resources
from hpcbert.timelimit import TimeLimit

if TYPE_CHECKING:
    from hpcbert.config.site import Site
    from hpcbert.slurm.partitions import Resource


@dataclass(frozen=True)
class Wanted:
    """A request.

    Attributes:
        partition: Its name, several joined by commas; empty for the default one.
        nodes: Number of nodes.
        limit: None in seconds if it requests none of its own.
        resources: What each node must have.
        account, qos: Empty for the default one.
        tasks: Ranks per node; 0 if unknown.
        cpus: CPUs of each rank.
        memory: What each node must have, as sbatch takes it; empty or 0 if not specified.
        exclusive: Whether it has its nodes to itself, with everything that they have.
        nodelist: Nodes that must be part of it.
        exclude: Nodes that must not.
    """

    partition: str
    nodes: int
    limit: TimeLimit
    resources: tuple[Resource, ...]
    account: str = ""
    qos: str = ""
    tasks: int = 0
    cpus: int = 1
    memory: str = ""
    exclusive: bool = False
    nodelist: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


def of_site(site: Site, nodes: int) -> Wanted:
    """Return the request of a site's job for some nodes, with all settings that apply to each."""
    slurm, gpus = site.slurm, site.nodes.gpus_per_node
    place = values(slurm.placement(nodes))
    return Wanted(
        partition=slurm.partition,
        nodes=nodes,
        limit=slurm.time_limit,
        resources=resources(f"{slurm.gres}:{gpus}" if slurm.gres else ""),
        account=slurm.account,
        qos=slurm.qos,
        tasks=gpus,
        cpus=max(1, site.nodes.cpus_per_gpu),
        memory=slurm.node_memory,
        exclusive=slurm.exclusive,
        nodelist=_names(place.get("nodelist", "")),
        exclude=_names(place.get("exclude", "")),
    )


def wanted(script: str) -> Wanted:
    """Return the request of a rendered script."""
    return Wanted(
        partition=directives.option(script, "partition"),
        nodes=int(directives.option(script, "nodes") or 1),
        limit=TimeLimit.reported(directives.option(script, "time")),
        resources=resources(directives.option(script, "gres")),
        account=directives.option(script, "account"),
        qos=directives.option(script, "qos"),
        tasks=int(directives.option(script, "ntasks-per-node") or 0),
        cpus=int(directives.option(script, "cpus-per-task") or 1),
        memory=directives.option(script, "mem"),
        exclusive=f"\n{directives.DIRECTIVE}--exclusive\n" in script,
        nodelist=_names(directives.option(script, "nodelist")),
        exclude=_names(directives.option(script, "exclude")),
    )


def _names(text: str) -> tuple[str, ...]:
    """Return the nodes of a list; none for the path of a file, which sbatch reads itself."""
    return () if "/" in text else expand(text)
