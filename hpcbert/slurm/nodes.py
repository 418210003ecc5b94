"""sinfo's output about nodes: which exist, and which could run something."""

from __future__ import annotations

from typing import NamedTuple

_FIELDS = "%N|%P|%T"
_SIZES = "%N|%P|%c|%m"
# States of nodes that run jobs or could (sinfo(1), NODE STATE CODES); a mark after a state, for
# example `*` for a node that does not answer, means that it can't.
_USABLE = frozenset({"idle", "mixed", "allocated", "completing", "reserved", "planned", "blocked"})


class Size(NamedTuple):
    """The size of a node: CPUs, and memory in MiB."""

    cpus: int
    memory: int


def sinfo_argv() -> list[str]:
    """Return the query for all nodes, one line for each partition of a node."""
    return ["sinfo", "--noheader", "--all", "--Node", f"--format={_FIELDS}"]


def sizes_argv() -> list[str]:
    """Return the query for the sizes of all nodes, one line for each partition of a node."""
    return ["sinfo", "--noheader", "--all", "--Node", f"--format={_SIZES}"]


def read_sizes(text: str, partition: str) -> list[Size]:
    """Return the sizes of nodes from the output of `sizes_argv`.

    Args:
        text: The output; lines that can't be read are skipped.
        partition: As of `read_sinfo`.
    """
    rows = (line.split("|") for line in text.splitlines())
    known = [row for row in rows if len(row) == _SIZES.count("|") + 1]
    return [
        Size(int(cpus), int(memory))
        for _, place, cpus, memory in known
        if _in(place, partition) and cpus.isdigit() and memory.isdigit()
    ]


def _in(place: str, partition: str) -> bool:
    """Return whether a line belongs to a partition, by default to the default one."""
    return place.removesuffix("*") == partition if partition else place.endswith("*")


def read_sinfo(text: str, partition: str) -> dict[str, bool]:
    """Return the nodes in the output of `sinfo_argv`, and whether each runs jobs or could.

    Args:
        text: The output; lines that can't be read are skipped.
        partition: The partition; empty for the default one.
    """
    return {name: state in _USABLE for name, state in read_states(text, partition).items()}


def read_states(text: str, partition: str) -> dict[str, str]:
    """Return the state of each node, in small letters: `idle`, `mixed`, `down*`.

    Args:
        text: The output of `sinfo_argv`.
        partition: As of `read_sinfo`.
    """
    found = {}
    for line in text.splitlines():
        words = line.split("|")
        if len(words) != _FIELDS.count("|") + 1:
            continue
        name, place, state = words
        if _in(place, partition):
            found[name] = state.removesuffix("+").lower()
    return found


def free(text: str, partition: str) -> int:
    """Return how many of a partition's nodes run nothing and could run jobs.

    Args:
        text: The output of `sinfo_argv`.
        partition: As of `read_sinfo`.
    """
    return sum(state == "idle" for state in read_states(text, partition).values())
