"""What a person says about retries, and which nodes one should keep away from and why. Pure.

A node is suspected

* if Slurm lost it, or could not start a job on it: of a job on several nodes those that are down
  now, or else those on which nothing of the campaign ended well;
* if a repeat failed, hung or vanished on it, other repeats of the same point ended well, and none
  of the campaign's that ended well ran on it.

What a person or the scheduler did on purpose (cancelled, preempted), a lack of memory and a log
that is wrong although the job ended well are no fault of a node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcbert.system.lazy import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# A retry never keeps away from more than one node in four that could run it, nor from so many that
# its point no longer fits.
_SHARE = 4
_LOST = frozenset({"NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL"})
_FAILED = frozenset({"FAILED", "TIMEOUT", "UNKNOWN"})
MAX_RETRIES = 2


@dataclass(frozen=True)
class RetryPolicy:
    """Which repeats are submitted again, and where.

    Attributes:
        limit: How often one repeat is submitted again at most.
        exclude: Nodes to keep away from in any case.
        suspect: Whether to keep away from nodes that failed.
        cancelled: Whether repeats that somebody cancelled are submitted again too, as they are
            when somebody asks for it. Else those that need a longer time limit or a smaller batch
            are left alone too.
        time_limit: Of one repeat, in sbatch's form; empty for the one that there was.
    """

    limit: int = MAX_RETRIES
    exclude: tuple[str, ...] = ()
    suspect: bool = True
    cancelled: bool = True
    time_limit: str = ""


@dataclass(frozen=True)
class RepeatOutcome:
    """One repeat as it ended.

    Attributes:
        point: Key of its point.
        repeat: Its number.
        state: The scheduler's word.
        good: Whether it counts.
        nodes: Where it ran.
    """

    point: str
    repeat: int
    state: str
    good: bool
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """What to do about nodes; each with the reason.

    Attributes:
        excluded: Nodes to keep away from.
        spared: Nodes that are suspected too, of which there would be too many.
    """

    excluded: tuple[tuple[str, str], ...] = ()
    spared: tuple[tuple[str, str], ...] = ()


class Suspicion:
    """What the ends of a campaign's repeats say against the nodes of one partition.

    Args:
        tries: How the repeats ended.
        nodes: Nodes of the partition, and whether each is usable now.
    """

    def __init__(self, tries: Sequence[RepeatOutcome], nodes: Mapping[str, bool]) -> None:
        self.nodes = nodes
        self._healthy = {node for one in tries if one.good for node in one.nodes}
        self._lost: dict[str, str] = {}
        self._tries: dict[str, list[RepeatOutcome]] = {}
        for one in tries:
            self._tries.setdefault(one.point, []).append(one)
            if not one.good and one.state in _LOST:
                self._lost |= _of_lost(one, self._healthy, nodes)

    def of(self, point: str) -> dict[str, str]:
        """Return the nodes that a point's next try should keep away from, the worst first."""
        failed: dict[str, str] = {}
        tries = self._tries.get(point, [])
        works = any(one.good for one in tries)
        for one in tries:
            if works and not one.good and one.state in _FAILED:
                why = f"repeat {one.repeat} was {one.state} on it"
                why += ", and all that ended well ran elsewhere"
                suspected = (node for node in one.nodes if node not in self._healthy)
                failed |= dict.fromkeys(suspected, why)
        rest = {node: why for node, why in failed.items() if node not in self._lost}
        return {**self._lost, **rest}


def _of_lost(one: RepeatOutcome, healthy: set[str], nodes: Mapping[str, bool]) -> dict[str, str]:
    what = f"repeat {one.repeat} of {one.point} was {one.state} on it"
    if len(one.nodes) == 1:
        return {one.nodes[0]: what}
    down = [node for node in one.nodes if not nodes.get(node, True)]
    if down:
        return dict.fromkeys(down, f"{what}, and it is down")
    unproven = [node for node in one.nodes if node not in healthy]
    return dict.fromkeys(unproven, f"{what}, and nothing ended well on it")


def limit(suspects: Mapping[str, str], nodes: Mapping[str, bool], *, needed: int) -> Verdict:
    """Choose among suspects so that enough nodes are left.

    Args:
        suspects: Node and reason, the worst first.
        nodes: Nodes of the partition, and whether each is usable now; empty if nobody tells.
        needed: Nodes that the point takes.
    """
    usable = sum(nodes.values())
    room = min(max(1, usable // _SHARE), max(0, usable - needed))
    excluded: list[tuple[str, str]] = []
    spared: list[tuple[str, str]] = []
    for node, why in suspects.items():
        # Slurm gives nobody a node that is down; it may be up again by then.
        costs = nodes.get(node, False)
        if nodes and (room > 0 or not costs):
            excluded.append((node, why))
            room -= costs
        else:
            spared.append((node, why))
    return Verdict(tuple(excluded), tuple(spared))
