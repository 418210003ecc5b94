"""The request of a job to the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcbert.config.slurmwords import values
from hpcbert.slurm.hostlist import expand
from hpcbert.slurm.partitions import resources
from hpcbert.timelimit import TimeLimit

if TYPE_CHECKING:
    from hpcbert.config.site import Site
    from hpcbert.model import JobRequest
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


def wanted(request: JobRequest) -> Wanted:
    """Return what an array requests of the cluster."""
    return Wanted(
        partition=request.partition,
        nodes=request.nodes,
        limit=TimeLimit.reported(request.time_limit),
        resources=resources(request.gres),
        account=request.account,
        qos=request.qos,
        tasks=request.tasks_per_node,
        cpus=request.cpus_per_task,
        memory=request.memory,
        exclusive=request.exclusive,
        nodelist=_names(request.nodelist),
        exclude=_names(request.exclude),
    )


def _names(text: str) -> tuple[str, ...]:
    """Return the nodes of a list; none for the path of a file, which sbatch reads itself."""
    return () if "/" in text else expand(text)
