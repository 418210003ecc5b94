"""The findings of a preflight: the nodes' network bandwidth, and the nodes that jobs exclude.

The job itself writes it into its status file (preflight.bash), one line per node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpcbert.campaign.record import Event, read_record
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.errors import format_count
from hpcbert.logs import failures
from hpcbert.model import Array

# The end of the log of a failed all-reduce.
FAILED = ".failed"
_GB = 1000.0


@dataclass(frozen=True)
class NodeFabric:
    """The measurements of one node.

    Attributes:
        inside: Bus bandwidth of an all-reduce inside it, MB/s; 0 if there was none.
        between: The same with the better of its two neighbours.
        slow: Whether one of them is far below the others.
    """

    name: str
    inside: int
    between: int
    slow: bool


@dataclass(frozen=True)
class Preflight:
    """The state of a preflight.

    Attributes:
        array: Its job.
        state: Whether it waits, runs, is over, or failed.
        nodes: The measured nodes, in its order.
        inside, between: Medians of all nodes, MB/s.
        all: Bus bandwidth over all nodes at once, MB/s; 0 if there are only two.
        left_out: Jobs that exclude nodes because of it: id, and the nodes, separated by commas.
        spared: Jobs that don't, although a node is slow: id and reason.
    """

    array: Array
    state: Literal["waits", "runs", "done", "failed"]
    nodes: tuple[NodeFabric, ...] = ()
    inside: int = 0
    between: int = 0
    all: int = 0
    left_out: tuple[tuple[str, str], ...] = ()
    spared: tuple[tuple[str, str], ...] = ()

    @property
    def slow(self) -> dict[str, str]:
        """The nodes that are far below the others, each with the reason."""
        return {node.name: self._reason(node) for node in self.nodes if node.slow}

    def _reason(self, node_fabric: NodeFabric) -> str:
        pairs = (
            ("inside it", node_fabric.inside, self.inside),
            ("to others", node_fabric.between, self.between),
        )
        worst = min((pair for pair in pairs if pair[2]), key=lambda pair: pair[1] / pair[2])
        where, rate, median_rate = worst
        text = f"{rate / _GB:.3g} GB/s {where}; the median is {median_rate / _GB:.3g}"
        return f"the preflight measured {text}"


def read_preflight(watched: TrackedCampaign) -> Preflight | None:
    """Return a campaign's preflight by its job's own account; None if it has none."""
    array = watched.campaign.preflight
    if array is None:
        return None
    record = read_record(watched.directory / array.status(array.repeats[0]))
    job_record = record.newest()
    events = record.attempts.get(job_record.attempt, ())
    nodes = tuple(filter(None, map(_read_node, _select_events(events, "node"))))
    fabric = next(iter(_select_events(events, "fabric")), {})
    over = job_record.exit is not None
    state: Literal["waits", "runs", "done", "failed"] = "waits"
    if over:
        state = "failed" if job_record.exit else "done"
    elif job_record.start is not None:
        state = "runs"
    return Preflight(
        array=array,
        state=state,
        nodes=nodes,
        inside=_as_count(fabric.get("inside")),
        between=_as_count(fabric.get("between")),
        all=_as_count(fabric.get("all")),
        left_out=_read_pairs(events, "left-out", "nodes"),
        spared=_read_pairs(events, "spared", "why"),
    )


def find_log(watched: TrackedCampaign, array: Array) -> Path:
    """Return the file with most of the output of a preflight's ranks; each pair has its own."""
    path = watched.directory / array.log.replace("{repeat}", str(array.repeats[0]))
    output = path.with_name(f"{array.job_id}.out")
    return next(
        (candidate for candidate in (path, path.with_suffix(FAILED)) if candidate.exists()), output
    )


def _select_events(events: tuple[Event, ...], name: str) -> list[Event]:
    return [event for event in events if event.get("event") == name]


def _read_pairs(events: tuple[Event, ...], name: str, key: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (str(event.get("job", "")), str(event.get(key, "")))
        for event in _select_events(events, name)
    )


def _read_node(event: Event) -> NodeFabric | None:
    name = event.get("name")
    if not isinstance(name, str) or not name:
        return None
    inside, between = _as_count(event.get("inside")), _as_count(event.get("between"))
    return NodeFabric(name, inside, between, slow=event.get("slow") is True)


def _as_count(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0


def describe_preflight(watched: TrackedCampaign, *, over: bool = False) -> tuple[str, ...]:
    """Return sentences for the user about a campaign's preflight; empty if it has none."""
    preflight = read_preflight(watched)
    if preflight is None:
        return ()
    if preflight.state != "done":
        job = f"job {preflight.array.job_id}" if preflight.array.job_id else "its job"
        log = find_log(watched, preflight.array)
        path = log.relative_to(watched.directory)
        cause = failures.last_error(log) if preflight.state == "failed" else ""
        clause = {
            "waits": "has not begun; all points wait for it",
            "runs": "measures the network; all points wait for it",
            "failed": f"failed, so no point runs: see {path} of the campaign"
            + f" ({cause})" * bool(cause),
        }[preflight.state]
        if over and preflight.state != "failed":
            clause = "has recorded no end: somebody or something ended it"
        return (f"The preflight, {job}, {clause}.",)
    return tuple(_describe_slow_nodes(preflight)) or (
        f"The preflight found none of {len(preflight.nodes)} nodes far below the others.",
    )


def _describe_slow_nodes(preflight: Preflight) -> Iterator[str]:
    """Yield sentences about slow nodes and the jobs that exclude them."""
    for name, reason in preflight.slow.items():
        yield f"{name} is far below the others: {reason}."
    if excluded_jobs := {job for job, _ in preflight.left_out}:
        jobs = format_count(len(excluded_jobs), "job")
        yield f"Excluded from {jobs}: {', '.join(preflight.slow)}."
    for job, reason in preflight.spared:
        yield f"Job {job} runs on them nevertheless: {reason}."


def warn_about_preflight(watched: TrackedCampaign, *, over: bool) -> tuple[str, ...]:
    """Return `describe_preflight`'s sentences if a node or the preflight has a problem."""
    preflight = read_preflight(watched)
    if preflight is None or (preflight.state == "done" and not preflight.slow):
        return ()
    return tuple(
        f"{watched.campaign.id}: {text}" for text in describe_preflight(watched, over=over)
    )
