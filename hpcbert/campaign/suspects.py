"""The user's choices for retries, and the nodes that a retry should avoid, with reasons. Pure.

hpcbert suspects a node

* if Slurm lost it, or could not start a job on it: of a job on several nodes, those that are down
  now, or else those on which no repeat of the campaign succeeded;
* if a repeat failed, hung or vanished on it, while other repeats of the same point succeeded, and
  none of the campaign's successful repeats ran on it.

A deliberate end (cancelled, preempted), a lack of memory, and a wrong log of a successful job do
not count against a node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# A retry never excludes more than one node in four of those that could run it, nor so many that
# its point no longer fits.
_MAX_SHARE = 4
_LOST = frozenset({"NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL"})
_FAILED = frozenset({"FAILED", "TIMEOUT", "UNKNOWN"})
MAX_RETRIES = 2


@dataclass(frozen=True)
class RetryPolicy:
    """Which repeats to retry, and where.

    Attributes:
        limit: Maximum number of retries of one repeat.
        exclude: Nodes to exclude in any case.
        suspect: Whether to exclude nodes that failed.
        cancelled: Whether to retry cancelled repeats too, as an explicit retry does. If not,
            repeats that need a longer time limit or a smaller batch are left alone too.
        time_limit: Limit of one repeat, in sbatch's form; empty for the present one.
    """

    limit: int = MAX_RETRIES
    exclude: tuple[str, ...] = ()
    suspect: bool = True
    cancelled: bool = True
    time_limit: str = ""


@dataclass(frozen=True)
class RepeatOutcome:
    """The end of one repeat.

    Attributes:
        point: Key of its point.
        repeat: Its number.
        state: The scheduler's word.
        good: Whether it is valid.
        nodes: The nodes that it ran on.
    """

    point: str
    repeat: int
    state: str
    good: bool
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """The nodes to exclude and to spare, with the reasons.

    Attributes:
        excluded: Nodes to exclude.
        spared: Suspected nodes that are not excluded, because too few would be left.
    """

    excluded: tuple[tuple[str, str], ...] = ()
    spared: tuple[tuple[str, str], ...] = ()


class Suspicion:
    """The evidence in the ends of a campaign's repeats against the nodes of one partition."""

    def __init__(self, tries: Sequence[RepeatOutcome], nodes: Mapping[str, bool]) -> None:
        self.nodes = nodes
        self._healthy = {
            node for repeat_outcome in tries if repeat_outcome.good for node in repeat_outcome.nodes
        }
        self._lost: dict[str, str] = {}
        self._tries: dict[str, list[RepeatOutcome]] = {}
        for repeat_outcome in tries:
            self._tries.setdefault(repeat_outcome.point, []).append(repeat_outcome)
            if not repeat_outcome.good and repeat_outcome.state in _LOST:
                self._lost |= _suspect_lost_nodes(repeat_outcome, self._healthy, nodes)

    def of(self, point: str) -> dict[str, str]:
        """Return the nodes that a point's next attempt should avoid, the worst first."""
        failed: dict[str, str] = {}
        tries = self._tries.get(point, [])
        has_success = any(repeat_outcome.good for repeat_outcome in tries)
        for repeat_outcome in tries:
            if has_success and not repeat_outcome.good and repeat_outcome.state in _FAILED:
                text = f"repeat {repeat_outcome.repeat} was {repeat_outcome.state} on it"
                text += ", and all successful repeats ran elsewhere"
                suspected = (node for node in repeat_outcome.nodes if node not in self._healthy)
                failed |= dict.fromkeys(suspected, text)
        failed_only = {node: reason for node, reason in failed.items() if node not in self._lost}
        return {**self._lost, **failed_only}


def _suspect_lost_nodes(
    repeat_outcome: RepeatOutcome, healthy: set[str], nodes: Mapping[str, bool]
) -> dict[str, str]:
    text = (
        f"repeat {repeat_outcome.repeat} of {repeat_outcome.point} was {repeat_outcome.state} on it"
    )
    if len(repeat_outcome.nodes) == 1:
        return {repeat_outcome.nodes[0]: text}
    down = [node for node in repeat_outcome.nodes if not nodes.get(node, True)]
    if down:
        return dict.fromkeys(down, f"{text}, and it is down")
    unproven = [node for node in repeat_outcome.nodes if node not in healthy]
    return dict.fromkeys(unproven, f"{text}, and no repeat succeeded on it")


def limit_exclusions(
    suspects: Mapping[str, str], nodes: Mapping[str, bool], *, needed: int
) -> Verdict:
    """Choose among suspects so that enough nodes are left.

    Args:
        suspects: Node and reason, the worst first.
        nodes: Nodes of the partition, and whether each is usable now; empty if unknown.
    """
    usable = sum(nodes.values())
    quota = min(max(1, usable // _MAX_SHARE), max(0, usable - needed))
    excluded: list[tuple[str, str]] = []
    spared: list[tuple[str, str]] = []
    for node, suspect in suspects.items():
        # Slurm gives nobody a node that is down; it may be up again by then.
        costs = nodes.get(node, False)
        if nodes and (quota > 0 or not costs):
            excluded.append((node, suspect))
            quota -= costs
        else:
            spared.append((node, suspect))
    return Verdict(tuple(excluded), tuple(spared))
