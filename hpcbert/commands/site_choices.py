"""The offers of a cluster's partitions to a user, best first: which GPUs, how long, to whom."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hpcbert.errors import format_count
from hpcbert.scheduler.slurm.admission import describe_restriction
from hpcbert.scheduler.slurm.cluster import Cluster
from hpcbert.slurm.inventory import Partition

_HOUR = 3600


@dataclass(frozen=True)
class GpuKind:
    """GPUs of one type in a partition.

    Attributes:
        name: The type; empty if the cluster names none.
        count: GPUs per node, on most of the nodes that have any.
        nodes: Number of nodes with that many.
        most: The largest number on a node.
        sliced: Whether these are slices of GPUs (MIG).
    """

    name: str
    count: int
    nodes: int
    most: int
    sliced: bool

    @property
    def gres(self) -> str:
        """The name to request one of them with in sbatch."""
        return f"gpu:{self.name}" if self.name else "gpu"

    def __str__(self) -> str:
        slices = ", slices of GPUs (MIG)" if self.sliced else ""
        return f"{format_count(self.nodes, 'node')} with {self.gres}:{self.count}{slices}"


@dataclass(frozen=True)
class PartitionOffer:
    """One partition.

    Attributes:
        partition: The partition itself.
        kinds: Its GPUs by type: whole ones before slices, many before few.
        barred: Why the user can't run there, the end of a sentence; empty if no reason is known.
        preempting: The partitions whose jobs may preempt its own.
        forced_sharing: As in `PartitionRules`.
    """

    partition: Partition
    kinds: tuple[GpuKind, ...]
    barred: str = ""
    preempting: tuple[str, ...] = ()
    forced_sharing: str = ""

    @property
    def name(self) -> str:
        """The partition's name."""
        return self.partition.name

    @property
    def tier(self) -> tuple[bool, bool, bool]:
        """Whether it is closed to the user, has no GPUs, has no whole GPUs."""
        return (bool(self.barred), not self.kinds, all(kind.sliced for kind in self.kinds))

    @property
    def rank(self) -> tuple[object, ...]:
        """Its rank among others, the lowest first."""
        limit = self.partition.limit.seconds
        gpu_kinds = [kind for kind in self.kinds if not kind.sliced] or self.kinds
        return (
            *self.tier,
            limit is not None and limit < _HOUR,
            self.partition.least_nodes > 1,
            not self.partition.default,
            bool(self.forced_sharing),
            bool(self.preempting),
            -sum(kind.nodes * kind.count for kind in gpu_kinds),
            self.name,
        )

    @property
    def bounds(self) -> list[str]:
        """What the partition allows a job: its time and nodes, as far as limited."""
        bounds = []
        if self.partition.limit.seconds is not None:
            bounds.append(f"{self.partition.limit} at most")
        if self.partition.least_nodes > 1:
            bounds.append(f"no fewer than {self.partition.least_nodes} nodes a job")
        if self.partition.most_nodes is not None:
            bounds.append(f"at most {self.partition.most_nodes} nodes a job")
        return bounds

    @property
    def risk(self) -> str:
        """What may end its jobs early, a clause; empty if nothing is known."""
        names = ", ".join(self.preempting)
        return f"its jobs may be preempted by those of {names}" if names else ""

    def drawback(self, other: PartitionOffer) -> str:
        """Return the reason to prefer another one, the end of a sentence; may be empty."""
        if self.barred:
            return f"is not for you: {self.barred}"
        if other.kinds and not self.kinds:
            return "has no GPUs"
        return f"allows {', '.join(self.bounds)}" if self.bounds else ""

    def __str__(self) -> str:
        kinds = "; ".join(map(str, self.kinds)) or f"no GPUs, {self.partition.nodes} nodes"
        caution = self.barred or self.risk
        ending = f"; {caution}" if caution else ""
        return f"{self.name} ({', '.join([kinds, *self.bounds])}{ending})"


def list_offers(cluster: Cluster) -> tuple[PartitionOffer, ...]:
    """Return the offers of all partitions, best first.

    First come partitions with GPUs that the user may use: whole ones before slices, jobs of an
    hour before shorter ones, jobs of any size before those of many nodes only, the default before
    other partitions, nodes of their own before shared ones, jobs that none preempts before others,
    many GPUs before few.
    """
    offers = [
        PartitionOffer(
            partition,
            _count_gpus(partition),
            _explain_bar(partition, cluster),
            cluster.find_preempting(partition.name),
            rule.forced_sharing if (rule := cluster.rules.get(partition.name)) else "",
        )
        for partition in cluster.partitions.values()
    ]
    return tuple(sorted(offers, key=lambda offer: offer.rank))


def _count_gpus(partition: Partition) -> tuple[GpuKind, ...]:
    nodes: dict[str, Counter[int]] = {}
    sliced_types: set[str] = set()
    for group in partition.groups:
        counts: Counter[str] = Counter()
        for resource in group.resources:
            if resource.name == "gpu" and resource.count:
                counts[resource.kind] += resource.count
                sliced_types |= {resource.kind} if resource.sliced else set()
        for name, count in counts.items():
            nodes.setdefault(name, Counter())[count] += group.count
    kinds = []
    for name, sizes in nodes.items():
        count, node_count = max(sizes.items(), key=lambda size: (size[1], size[0]))
        kinds.append(GpuKind(name, count, node_count, max(sizes), name in sliced_types))
    return tuple(sorted(kinds, key=lambda kind: (kind.sliced, -kind.nodes * kind.count, kind.name)))


def _explain_bar(partition: Partition, cluster: Cluster) -> str:
    """Return the reason why the user can't run there; empty if none is known."""
    rule = cluster.rules.get(partition.name)
    if partition.state != "up":
        return f"it is {partition.state}"
    if rule is None:
        return ""
    reason = describe_restriction(rule)
    enforced = cluster.settings.enforced
    if reason or "associations" not in enforced or not cluster.rights.own:
        return reason
    associations = [
        association
        for association in cluster.rights.own
        if association.partition in {"", partition.name}
    ]
    if not any(rule.takes_account(association.account) for association in associations):
        return f"it is for the accounts {', '.join(rule.accounts) or 'of others'} only"
    qos = {name for association in associations for name in association.qos}
    if "qos" in enforced and qos and not any(map(rule.takes_qos, qos)):
        return f"it is for the QOS {', '.join(rule.qos) or 'of others'} only"
    return ""
