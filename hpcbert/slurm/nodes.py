"""What sinfo tells about nodes: which there are, and which could run something."""

from __future__ import annotations

from typing import NamedTuple

_FIELDS = "%N|%P|%T"
_SIZES = "%N|%P|%c|%m"
# What a node is that runs jobs or could (sinfo(1), NODE STATE CODES); a mark behind a state, for
# example `*` for a node that does not answer, says that it can't.
_USABLE = frozenset({"idle", "mixed", "allocated", "completing", "reserved", "planned", "blocked"})


class Size(NamedTuple):
    """What a node has: CPUs, and memory in MiB."""

    cpus: int
    memory: int


def sinfo_argv() -> list[str]:
    """Return the query for all nodes, a line for each partition that one is in."""
    return ["sinfo", "--noheader", "--all", "--Node", f"--format={_FIELDS}"]


def sizes_argv() -> list[str]:
    """Return the query for the sizes of all nodes, a line for each partition that one is in."""
    return ["sinfo", "--noheader", "--all", "--Node", f"--format={_SIZES}"]


def read_sizes(text: str, partition: str) -> list[Size]:
    """Return the sizes of the nodes that `sizes_argv` prints.

    Args:
        text: What it printed; a line that is not understood is passed over.
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
    """Say whether a line is of a partition, or with none named of the default one."""
    return place.removesuffix("*") == partition if partition else place.endswith("*")


def read_sinfo(text: str, partition: str) -> dict[str, bool]:
    """Return the nodes that `sinfo_argv` prints, and whether each runs jobs or could.

    Args:
        text: What it printed; a line that is not understood is passed over.
        partition: Which one's nodes; empty for those of the default one.
    """
    return {name: state in _USABLE for name, state in read_states(text, partition).items()}


def read_states(text: str, partition: str) -> dict[str, str]:
    """Return the state of each node, in small letters: `idle`, `mixed`, `down*`.

    Args:
        text: What `sinfo_argv` printed.
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
    """Return how many of a partition's nodes run nothing and could.

    Args:
        text: What `sinfo_argv` printed.
        partition: As of `read_sinfo`.
    """
    return sum(state == "idle" for state in read_states(text, partition).values())
