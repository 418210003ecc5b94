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

from hpcbert.model import Run

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
class Verdict:
    """The nodes to exclude, and those to spare because too few would be left, with reasons."""

    excluded: tuple[tuple[str, str], ...] = ()
    spared: tuple[tuple[str, str], ...] = ()


class Suspicion:
    """The evidence in the runs of a campaign, by point, against the nodes of one partition.

    Args:
        nodes: Nodes of the partition, and whether each is usable now.
    """

    def __init__(self, runs: Mapping[str, Sequence[Run]], nodes: Mapping[str, bool]) -> None:
        self._runs, self.nodes = runs, nodes
        self._healthy: set[str] = set()
        for point_runs in runs.values():
            self._healthy.update(node for run in point_runs if run.valid for node in run.nodes)
        self._lost: dict[str, str] = {}
        for point, point_runs in runs.items():
            for run in point_runs:
                if not run.valid and run.state in _LOST:
                    self._lost |= self._suspect_lost_nodes(point, run)

    def of(self, point: str) -> dict[str, str]:
        """Return the nodes that a point's next attempt should avoid, the worst first."""
        failed: dict[str, str] = {}
        runs = self._runs.get(point, ())
        has_success = any(run.valid for run in runs)
        for run in runs:
            if has_success and not run.valid and run.state in _FAILED:
                text = f"repeat {run.repeat} was {run.state} on it"
                text += ", and all successful repeats ran elsewhere"
                failed |= {node: text for node in run.nodes if node not in self._healthy}
        return self._lost | failed | self._lost  # A lost node keeps its reason, and its place.

    def _suspect_lost_nodes(self, point: str, run: Run) -> dict[str, str]:
        text = f"repeat {run.repeat} of {point} was {run.state} on it"
        if len(run.nodes) == 1:
            return {run.nodes[0]: text}
        down = [node for node in run.nodes if not self.nodes.get(node, True)]
        if down:
            return dict.fromkeys(down, f"{text}, and it is down")
        unproven = [node for node in run.nodes if node not in self._healthy]
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
