"""What sinfo tells about nodes: which there are, and which could run something."""

from __future__ import annotations

from dataclasses import dataclass

_FIELDS = "%N|%P|%T"
# What a node is that runs jobs or could (sinfo(1), NODE STATE CODES); a mark behind a state, for
# example `*` for a node that does not answer, says that it can't.
_USABLE = frozenset({"idle", "mixed", "allocated", "completing", "reserved", "planned", "blocked"})


@dataclass(frozen=True)
class NodeRow:
    """One node in one partition.

    Attributes:
        name: The node's.
        partition: The partition's.
        default: Whether that is the default partition.
        usable: Whether it runs jobs or could.
    """

    name: str
    partition: str
    default: bool
    usable: bool


def sinfo_argv() -> list[str]:
    """Return the query for all nodes, a line for each partition that one is in."""
    return ["sinfo", "--noheader", "--all", "--Node", f"--format={_FIELDS}"]


def read_sinfo(text: str) -> tuple[NodeRow, ...]:
    """Read what `sinfo_argv` prints; a line that is not understood is passed over."""
    lines = [line.split("|") for line in text.splitlines()]
    return tuple(
        NodeRow(
            name=line[0],
            partition=line[1].removesuffix("*"),
            default=line[1].endswith("*"),
            usable=line[2].removesuffix("+").lower() in _USABLE,
        )
        for line in lines
        if len(line) == _FIELDS.count("|") + 1
    )


def of_partition(rows: tuple[NodeRow, ...], partition: str) -> dict[str, bool]:
    """Return the nodes of a partition, or of the default one, and whether each is usable."""
    return {
        row.name: row.usable
        for row in rows
        if (row.partition == partition if partition else row.default)
    }
