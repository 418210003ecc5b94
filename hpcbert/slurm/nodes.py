"""sinfo's output about nodes: which exist, and which could run something."""

from __future__ import annotations

from typing import NamedTuple

_STATE_FIELDS = "%N|%P|%T"
_SIZE_FIELDS = "%N|%P|%c|%m"
# States of nodes that run jobs or could (sinfo(1), NODE STATE CODES); a mark after a state, for
# example `*` for a node that does not answer, means that it can't.
_USABLE = frozenset({"idle", "mixed", "allocated", "completing", "reserved", "planned", "blocked"})


class NodeSize(NamedTuple):
    """The size of a node: CPUs, and memory in MiB."""

    cpus: int
    memory: int


def node_states_argv() -> list[str]:
    """Return the query for all nodes, one line for each partition of a node."""
    return ["sinfo", "--noheader", "--all", "--Node", f"--format={_STATE_FIELDS}"]


def node_sizes_argv() -> list[str]:
    """Return the query for the sizes of all nodes, one line for each partition of a node."""
    return ["sinfo", "--noheader", "--all", "--Node", f"--format={_SIZE_FIELDS}"]


def read_node_sizes(text: str, partition: str) -> list[NodeSize]:
    """Return the sizes of nodes from the output of `node_sizes_argv`.

    Args:
        text: The output; lines that can't be read are skipped.
        partition: As of `read_usable_nodes`.
    """
    rows = (line.split("|") for line in text.splitlines())
    complete_rows = [row for row in rows if len(row) == _SIZE_FIELDS.count("|") + 1]
    return [
        NodeSize(int(cpus), int(memory))
        for _, row_partition, cpus, memory in complete_rows
        if _is_in_partition(row_partition, partition) and cpus.isdigit() and memory.isdigit()
    ]


def _is_in_partition(row_partition: str, partition: str) -> bool:
    """Return whether a line belongs to a partition, by default to the default one."""
    return (
        row_partition.removesuffix("*") == partition if partition else row_partition.endswith("*")
    )


def read_usable_nodes(text: str, partition: str) -> dict[str, bool]:
    """Return the nodes in the output of `node_states_argv`, and whether each runs jobs or could.

    Args:
        text: The output; lines that can't be read are skipped.
        partition: The partition; empty for the default one.
    """
    return {name: state in _USABLE for name, state in read_node_states(text, partition).items()}


def read_node_states(text: str, partition: str) -> dict[str, str]:
    """Return the state of each node, in small letters: `idle`, `mixed`, `down*`.

    Args:
        text: The output of `node_states_argv`.
        partition: As of `read_usable_nodes`.
    """
    states = {}
    for line in text.splitlines():
        words = line.split("|")
        if len(words) != _STATE_FIELDS.count("|") + 1:
            continue
        name, row_partition, state = words
        if _is_in_partition(row_partition, partition):
            states[name] = state.removesuffix("+").lower()
    return states


def count_free_nodes(text: str, partition: str) -> int:
    """Return how many of a partition's nodes run nothing and could run jobs.

    Args:
        text: The output of `node_states_argv`.
        partition: As of `read_usable_nodes`.
    """
    return sum(state == "idle" for state in read_node_states(text, partition).values())
