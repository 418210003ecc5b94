"""The offers of a cluster's partitions to a user, best first: which GPUs, how long, to whom."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcbert.scheduler.slurm.admission import closed

if TYPE_CHECKING:
    from hpcbert.scheduler.slurm.cluster import Cluster
    from hpcbert.slurm.partitions import Partition

_HOUR = 3600


@dataclass(frozen=True)
class GpuKind:
    """GPUs of one type in a partition.

    Attributes:
        name: The type; empty if the cluster names none.
        count: GPUs per node, on most of the nodes that have any.
        nodes: Number of nodes with that many.
        fewer: Number of nodes with another number of them.
        most: The largest number on a node.
        sliced: Whether these are slices of GPUs (MIG).
    """

    name: str
    count: int
    nodes: int
    fewer: int
    most: int
    sliced: bool

    @property
    def all(self) -> int:
        """Their total on nodes that have the usual number."""
        return self.nodes * self.count

    @property
    def gres(self) -> str:
        """The name to request one of them with in sbatch."""
        return f"gpu:{self.name}" if self.name else "gpu"

    def __str__(self) -> str:
        nodes = f"{self.nodes} node" + ("" if self.nodes == 1 else "s")
        slices = ", slices of GPUs (MIG)" if self.sliced else ""
        return f"{nodes} with {self.gres}:{self.count}{slices}"


@dataclass(frozen=True)
class Offer:
    """One partition.

    Attributes:
        partition: The partition itself.
        kinds: Its GPUs by type, best first.
        barred: Why the user can't run there, the end of a sentence; empty if no reason is known.
    """

    partition: Partition
    kinds: tuple[GpuKind, ...]
    barred: str = ""

    @property
    def name(self) -> str:
        """The partition's name."""
        return self.partition.name

    @property
    def rank(self) -> tuple[object, ...]:
        """Its rank among others, the lowest first."""
        whole = [one for one in self.kinds if not one.sliced]
        limit = self.partition.limit.seconds
        return (
            bool(self.barred),
            not self.kinds,
            not whole,
            limit is not None and limit < _HOUR,
            self.partition.least_nodes > 1,
            not self.partition.default,
            -sum(one.all for one in whole or self.kinds),
            self.name,
        )

    def __str__(self) -> str:
        kinds = "; ".join(map(str, self.kinds)) or f"no GPUs, {self.partition.nodes} nodes"
        barred = f"; {self.barred}" if self.barred else ""
        return f"{self.name} ({kinds}{''.join(f', {one}' for one in self.bounds)}{barred})"

    @property
    def bounds(self) -> tuple[str, ...]:
        """What the partition allows a job: its time and nodes, as far as limited."""
        one = self.partition
        return (
            *(() if one.limit.seconds is None else (f"{one.limit} at most",)),
            *(() if one.least_nodes <= 1 else (f"no fewer than {one.least_nodes} nodes a job",)),
            *(() if one.most_nodes is None else (f"at most {one.most_nodes} nodes a job",)),
        )


def offers(cluster: Cluster) -> tuple[Offer, ...]:
    """Return what each partition offers, best first.

    First come partitions with GPUs that the user may use: whole ones before slices, jobs of an
    hour before shorter ones, jobs of any size before those of many nodes only, the default before
    other partitions, many GPUs before few.
    """
    found = (Offer(one, _kinds(one), _barred(one, cluster)) for one in cluster.partitions.values())
    return tuple(sorted(found, key=lambda one: one.rank))


def _kinds(partition: Partition) -> tuple[GpuKind, ...]:
    """Return the GPUs of a partition by type, whole ones and many before slices and few."""
    nodes: dict[str, Counter[int]] = {}
    sliced: set[str] = set()
    for group in partition.groups:
        counts: Counter[str] = Counter()
        for one in group.resources:
            if one.name == "gpu" and one.count:
                counts[one.kind] += one.count
                sliced |= {one.kind} if one.sliced else set()
        for kind, count in counts.items():
            nodes.setdefault(kind, Counter())[count] += group.count
    found = []
    for kind, sizes in nodes.items():
        count, alike = max(sizes.items(), key=lambda one: (one[1], one[0]))
        others = sum(sizes.values()) - alike
        found.append(GpuKind(kind, count, alike, others, max(sizes), kind in sliced))
    return tuple(sorted(found, key=lambda one: (one.sliced, -one.all, one.name)))


def _barred(partition: Partition, cluster: Cluster) -> str:
    """Return why the user can't run in a partition."""
    rule = cluster.rules.get(partition.name)
    if partition.state != "up" or rule is None:
        return f"it is {partition.state}" if partition.state != "up" else ""
    enforced = cluster.settings.enforced
    if (why := closed(rule)) or "associations" not in enforced or not cluster.rights.own:
        return why
    own = [one for one in cluster.rights.own if one.partition in {"", partition.name}]
    if not any(rule.takes_account(one.account) for one in own):
        return f"it is for the accounts {', '.join(rule.accounts) or 'of others'} only"
    qos = {name for one in own for name in one.qos}
    if "qos" in enforced and qos and not any(map(rule.takes_qos, qos)):
        return f"it is for the QOS {', '.join(rule.qos) or 'of others'} only"
    return ""
