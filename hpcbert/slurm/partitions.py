"""sinfo's output about partitions: how many nodes with how many GPUs, and for how long.

Generic resources are read in each form that Slurm prints (SchedMD/slurm, 22.05 to 26.05,
src/interfaces/gres.c, _foreach_node_state_log, and src/common/slurmdb_defs.c for TRES).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hpcbert.slurm.hostlist import expand
from hpcbert.timelimit import TimeLimit

_PARTITION_FIELDS = "%P|%a|%D|%l|%s|%G|%N"
_COUNT = re.compile(r"(\d{1,6})([KMG]?)")
_THOUSANDS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}
_MOST_GPUS = 1024
_TRES = re.compile(r"([\w/:.+-]+)=(\d{1,15}(?:\.\d{1,6})?)([KMGTP]?)")
# For memory, in MiB; for others Slurm counts in thousands.
_MEMORY_UNITS = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_COUNT_UNITS = {"": 1, "K": 1_000, "M": 1_000_000, "G": 10**9, "T": 10**12, "P": 10**15}
# A resource that jobs see and do not use up; no type has this name.
_UNCONSUMED = "no_consume"
# `1g.10gb`, `a100_3g.20gb`, `nvidia_h100_80gb_hbm3_1g.10gb+me`, as slurmd names NVIDIA's slices.
_SLICE = re.compile(r"(?:.*[_-])?\d+g\.\d+gb(?:[.+].*)?", re.IGNORECASE)


@dataclass(frozen=True)
class Resource:
    """One generic resource of a node, or of a job's request: `gpu:v100:8`.

    Attributes:
        name: `gpu`.
        kind: Its type, `v100`; empty if there is none.
        count: Number of them.
    """

    name: str
    kind: str
    count: int

    @property
    def sliced(self) -> bool:
        """Whether it is a slice of a GPU (MIG), by its type."""
        return _SLICE.fullmatch(self.kind) is not None

    def __str__(self) -> str:
        return ":".join(filter(None, (self.name, self.kind, str(self.count))))


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of a partition with the same resources.

    Attributes:
        count: Number of nodes.
        names: Their names, as far as sinfo prints them.
        resources: The resources of each of them.
    """

    count: int
    names: tuple[str, ...]
    resources: tuple[Resource, ...]

    def has(self, resource: Resource) -> bool:
        """Return whether each of the nodes has this much of a resource, in one type or several."""
        candidates = [candidate for candidate in self.resources if candidate.name == resource.name]
        counts = [
            candidate.count
            for candidate in candidates
            if not resource.kind or candidate.kind == resource.kind
        ]
        return sum(counts) >= resource.count


@dataclass(frozen=True)
class Partition:
    """One partition.

    Attributes:
        default: Whether jobs that name none run there.
        state: `up`, `down`, `drain` or `inact`.
        limit: The longest job that it allows.
        most_nodes: The most nodes of a job; None without a limit.
        groups: Its nodes.
        exact: Whether its nodes are known, so that a request that none of them can meet is refused.
        least_nodes: The fewest nodes of a job.
    """

    name: str
    default: bool
    state: str
    limit: TimeLimit
    most_nodes: int | None
    groups: tuple[NodeGroup, ...]
    exact: bool = True
    least_nodes: int = 1

    @property
    def nodes(self) -> int:
        """Number of its nodes."""
        return sum(group.count for group in self.groups)

    def fitting(self, requirements: Sequence[Resource]) -> set[str]:
        """Return the names of the nodes that have all of some resources."""
        return {
            name
            for group in self.groups
            if all(map(group.has, requirements))
            for name in group.names
        }


def partitions_argv() -> list[str]:
    """Return the query for all partitions, even hidden ones: one line per group of equal nodes."""
    return ["sinfo", "--noheader", "--all", f"--format={_PARTITION_FIELDS}"]


def read_partitions(text: str) -> dict[str, Partition]:
    """Read the output of `partitions_argv`, by name; lines that can't be read are skipped."""
    partitions: dict[str, Partition] = {}
    for line in text.splitlines():
        words = line.split("|")
        if len(words) != _PARTITION_FIELDS.count("|") + 1 or not words[2].strip().isdigit():
            continue
        name = words[0].removesuffix("*")
        previous_groups = partitions[name].groups if name in partitions else ()
        names = expand(words[6]) if words[6].strip() else ()
        least_nodes, _, most_nodes = (
            words[4].strip().rpartition("-")
        )  # Of `1-infinite`, `1-4` or `2`.
        least_nodes = least_nodes or most_nodes
        group = NodeGroup(int(words[2]), names, parse_resources(words[5]))
        partitions[name] = Partition(
            name=name,
            default=words[0].endswith("*"),
            state=words[1].strip(),
            limit=TimeLimit.parse_reported(words[3]),
            most_nodes=int(most_nodes) if most_nodes.isdigit() else None,
            groups=(*previous_groups, group),
            least_nodes=int(least_nodes) if least_nodes.isdigit() else 1,
        )
    return partitions


def parse_resources(text: str) -> tuple[Resource, ...]:
    """Read generic resources as sinfo prints and sbatch takes them, or as a TRES of accounting.

    `gpu:8`, `gpu:2080ti:8(S:0-1)`, `gpu:a100:4,gpu:1g.10gb:7(IDX:0-6)`, `gpu:h100:no_consume:8`,
    `gres/gpu:h100=8`, `(null)`. Only what follows the last colon, or `=`, is a count:
    a type may begin with a digit, or be a number (`gpu:4090:8`). No node has more than
    `_MOST_GPUS`, so that `gpu:4090` alone is a type too.
    """
    # Commas also appear in parentheses.
    words = re.sub(r"\([^)]*\)", "", text.strip()).split(",")
    return tuple(resource for word in words if (resource := _parse_resource(word)) is not None)


def _parse_resource(word: str) -> Resource | None:
    word = word.strip().removeprefix("gres/").removeprefix("gres:").replace("=", ":")
    name, *fields = (part for part in word.split(":") if part != _UNCONSUMED)
    match = _COUNT.fullmatch(fields[-1]) if fields else None
    if not name:
        return None
    count = int(match[1]) * _THOUSANDS[match[2]] if match else 0
    if match is None or (name == "gpu" and len(fields) == 1 and count > _MOST_GPUS):
        return Resource(name, ":".join(fields), 1)
    return Resource(name, ":".join(fields[:-1]), count)


def parse_tres(text: str) -> dict[str, int]:
    """Read trackable resources: `cpu=16,mem=500G,node=2,gres/gpu=4,gres/gpu:a100=4`.

    Memory is in MiB; parts that can't be read are skipped.
    """
    counts = {}
    for word in text.split(","):
        if match := _TRES.fullmatch(word.strip()):
            name, number, unit = match.groups()
            factor = _MEMORY_UNITS[unit] if name == "mem" else _COUNT_UNITS[unit]
            counts[name] = int(float(number) * factor)
    return counts
