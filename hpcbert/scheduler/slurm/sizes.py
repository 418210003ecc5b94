"""Whether nodes and partitions have the CPUs and the memory that jobs request.

Where EnforcePartLimits is NO, its default, sbatch accepts jobs that no node or partition can run,
and they wait forever (PartitionConfig and MaxMemPerLimit, seen with 22.05.8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcbert.finding import Finding
from hpcbert.scheduler.slurm.permitted import partitions_of
from hpcbert.slurm import nodes
from hpcbert.slurm.caps import tres

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hpcbert.scheduler.slurm.cluster import Cluster
    from hpcbert.scheduler.slurm.wanted import Wanted

_CPUS, _MEMORY = "site.toml: nodes.cpus_per_gpu", "site.toml: slurm.memory"


def of_nodes(jobs: Sequence[Wanted], cluster: Cluster) -> Iterator[Finding]:
    """Yield what jobs request of a node that the largest node of their partitions lacks.

    The cluster is asked only about jobs with a number of CPUs for each rank, or with memory.
    """
    for job in dict.fromkeys(jobs):
        memory = _memory(job)
        if job.cpus <= 1 and not memory:
            continue
        names = partitions_of(job, cluster)
        there = [size for name in names for size in nodes.read_sizes(cluster.sizes, name)]
        if not there:
            continue
        most, largest = max(one.cpus for one in there), max(one.memory for one in there)
        if job.cpus * job.tasks > most:
            yield Finding(
                "CPUs",
                "fail",
                f"No node has {job.cpus * job.tasks} CPUs for {job.tasks} ranks of {job.cpus} "
                f"CPUs; the largest has {most}.",
                "Lower nodes.cpus_per_gpu; 0 requests no number.",
                _CPUS,
                remedy=f"{_CPUS} = {most // job.tasks}",
            )
        if memory > largest:
            yield Finding(
                "memory",
                "fail",
                f"No node has the memory {job.memory}; the largest has {largest} MiB.",
                "Lower slurm.memory; 0 requests all that a node has.",
                _MEMORY,
                remedy=f'{_MEMORY} = "0"',
            )


def of_partitions(job: Wanted, cluster: Cluster) -> Iterator[Finding]:
    """Yield that a job requests more memory of a node than its partitions allow (MaxMemPerNode)."""
    limits = {
        name: cluster.rules[name].most_memory if name in cluster.rules else None
        for name in partitions_of(job, cluster)
    }
    most = max((one or 0 for one in limits.values()), default=0)
    if not most or None in limits.values() or not job.memory:
        return
    if 0 < _memory(job) <= most:
        return
    all_of_it = "all memory" if not _memory(job) else job.memory
    yield Finding(
        "memory",
        "fail",
        f"Partition {next(iter(limits))} allows a job {most} MiB of a node (MaxMemPerNode); "
        f"slurm.memory requests {all_of_it}.",
        "Request less with slurm.memory, or name another partition with --partition.",
        _MEMORY,
        remedy=f'{_MEMORY} = "{most}"',
    )


def _memory(job: Wanted) -> int:
    """Return the memory that a job requests of each node, in MiB; 0: all of it, or no number."""
    return tres(f"mem={job.memory}").get("mem", 0)
