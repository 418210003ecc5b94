"""What sinfo says of partitions: how many nodes with how many GPUs, and for how long."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpcbert.slurm.hostlist import expand
from hpcbert.timelimit import TimeLimit

_FIELDS = "%P|%a|%D|%l|%s|%G|%N"
_COUNT = re.compile(r"(\d{1,6})([KMG]?)")
_THOUSANDS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


@dataclass(frozen=True)
class Resource:
    """One generic resource of a node, or one that a job asks for: `gpu:v100:8`.

    Attributes:
        name: `gpu`.
        kind: Its type, `v100`; empty where none is said.
        count: How many.
    """

    name: str
    kind: str
    count: int


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of a partition that have the same resources.

    Attributes:
        count: How many there are.
        names: Their names, as far as sinfo says them.
        resources: What each of them has.
    """

    count: int
    names: tuple[str, ...]
    resources: tuple[Resource, ...]

    def has(self, wanted: Resource) -> bool:
        """Say whether each of the nodes has so many of a resource, of one type or of several."""
        same = [one for one in self.resources if one.name == wanted.name]
        fitting = [one.count for one in same if not wanted.kind or one.kind == wanted.kind]
        return sum(fitting) >= wanted.count


@dataclass(frozen=True)
class Partition:
    """One partition.

    Attributes:
        default: Whether jobs that name none go there.
        state: `up`, `down`, `drain` or `inact`.
        limit: What a job may ask for.
        most_nodes: Nodes that a job may ask for; None without a limit.
        groups: Its nodes.
    """

    name: str
    default: bool
    state: str
    limit: TimeLimit
    most_nodes: int | None
    groups: tuple[NodeGroup, ...]

    @property
    def nodes(self) -> int:
        """How many nodes it has."""
        return sum(group.count for group in self.groups)


def sinfo_argv() -> list[str]:
    """Return the query for all partitions, hidden ones too: a line a group of equal nodes."""
    return ["sinfo", "--noheader", "--all", f"--format={_FIELDS}"]


def read_sinfo(text: str) -> dict[str, Partition]:
    """Read what `sinfo_argv` prints, by name; a line that is not understood is passed over."""
    found: dict[str, Partition] = {}
    for line in text.splitlines():
        words = line.split("|")
        if len(words) != _FIELDS.count("|") + 1 or not words[2].strip().isdigit():
            continue
        name = words[0].removesuffix("*")
        before = found[name].groups if name in found else ()
        names = expand(words[6]) if words[6].strip() else ()
        most = words[4].strip().rpartition("-")[2]  # Of `1-infinite`, `1-4` or `2`.
        group = NodeGroup(int(words[2]), names, resources(words[5]))
        found[name] = Partition(
            name=name,
            default=words[0].endswith("*"),
            state=words[1].strip(),
            limit=TimeLimit.reported(words[3]),
            most_nodes=int(most) if most.isdigit() else None,
            groups=(*before, group),
        )
    return found


def resources(text: str) -> tuple[Resource, ...]:
    """Read generic resources as sinfo prints and sbatch takes them.

    `gpu:8`, `gpu:2080ti:8(S:0-1)`, `gpu:a100:4,gpu:1g.10gb:7(IDX:0-6)`, `(null)`. Only what stands
    behind the last colon is a count: a type may begin with a digit.
    """
    # Commas stand in parentheses too.
    words = re.sub(r"\([^)]*\)", "", text.strip()).split(",")
    return tuple(one for word in words if (one := _resource(word)) is not None)


def _resource(word: str) -> Resource | None:
    name, *rest = word.strip().split(":")
    match = _COUNT.fullmatch(rest[-1]) if rest else None
    if not name:
        return None
    if match is None:
        return Resource(name, ":".join(rest), 1)
    return Resource(name, ":".join(rest[:-1]), int(match[1]) * _THOUSANDS[match[2]])
