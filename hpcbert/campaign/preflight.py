"""The findings of a preflight: the nodes' network bandwidth, and the nodes that jobs exclude.

The job itself writes it into its status file (preflight.bash), one line per node.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpcbert.campaign.record import Event, read_record
from hpcbert.campaign.repeats import TrackedCampaign
from hpcbert.errors import format_count
from hpcbert.model import Array
from hpcbert.system.grouping import group

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
        nodes: The measured nodes, in its order.
        inside, between: Medians of all nodes, MB/s.
        left_out: Ids of the jobs that exclude nodes because of it.
        spared: Jobs that don't, although a node is slow: id and reason.
    """

    array: Array
    state: Literal["waits", "runs", "done", "failed"]
    nodes: tuple[NodeFabric, ...] = ()
    inside: int = 0
    between: int = 0
    left_out: tuple[str, ...] = ()
    spared: tuple[tuple[str, str], ...] = ()

    @property
    def slow(self) -> dict[str, str]:
        """The nodes that are far below the others, each with the reason."""
        return {node.name: self._describe(node) for node in self.nodes if node.slow}

    def _describe(self, node: NodeFabric) -> str:
        rates = [("inside it", node.inside, self.inside), ("to others", node.between, self.between)]
        texts = [
            f"{rate / _GB:.3g} GB/s {where} (median {usual / _GB:.3g})"
            for where, rate, usual in rates
            if usual
        ]
        return f"the preflight measured {' and '.join(texts)}"


def read_preflight(watched: TrackedCampaign) -> Preflight | None:
    """Return a campaign's preflight by its job's own account; None if it has none."""
    array = watched.campaign.preflight
    if array is None:
        return None
    record = read_record(watched.directory / array.status(array.repeats[0]))
    job_record = record.newest()
    state: Literal["waits", "runs", "done", "failed"] = "waits"
    if job_record.exit is not None:
        state = "failed" if job_record.exit else "done"
    elif job_record.start is not None:
        state = "runs"
    attempt = record.attempts.get(job_record.attempt, ())
    events = group((str(event.get("event")), event) for event in attempt)
    fabric: Event = next(iter(events.get("fabric", ())), {})
    spared = events.get("spared", ())
    return Preflight(
        array=array,
        state=state,
        nodes=tuple(filter(None, map(_read_node, events.get("node", ())))),
        inside=_as_count(fabric.get("inside")),
        between=_as_count(fabric.get("between")),
        left_out=tuple(str(event.get("job", "")) for event in events.get("left-out", ())),
        spared=tuple((str(event.get("job", "")), str(event.get("why", ""))) for event in spared),
    )


def _read_node(event: Event) -> NodeFabric | None:
    name, inside, between = event.get("name"), event.get("inside"), event.get("between")
    if not (name and isinstance(name, str)):
        return None
    slow = event.get("slow") is True
    return NodeFabric(name, _as_count(inside), _as_count(between), slow=slow)


def find_log(watched: TrackedCampaign, array: Array) -> Path:
    """Return the file with most of the output of a preflight's ranks; each pair has its own."""
    path = watched.directory / array.log.replace("{repeat}", str(array.repeats[0]))
    output = path.with_name(f"{array.job_id}.out")
    return next(
        (candidate for candidate in (path, path.with_suffix(FAILED)) if candidate.exists()), output
    )


def _as_count(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0


def _read_cause(log: Path) -> str:
    from hpcbert.logs import failures  # with the grammar of logs, which submitting does not need

    return failures.last_error(log)


def describe_preflight(watched: TrackedCampaign, *, over: bool = False) -> tuple[str, ...]:
    """Return sentences for the user about a campaign's preflight; empty if it has none."""
    preflight = read_preflight(watched)
    if preflight is None:
        return ()
    if preflight.state != "done":
        job = f"job {preflight.array.job_id}" if preflight.array.job_id else "its job"
        log = find_log(watched, preflight.array)
        path = log.relative_to(watched.directory)
        cause = _read_cause(log) if preflight.state == "failed" else ""
        clause = {
            "waits": "has not begun; all points wait for it",
            "runs": "measures the network; all points wait for it",
            "failed": f"failed, so no point runs: see {path} of the campaign"
            + f" ({cause})" * bool(cause),
        }[preflight.state]
        if over and preflight.state != "failed":
            clause = "has recorded no end: somebody or something ended it"
        return (f"The preflight, {job}, {clause}.",)
    texts = [
        f"{name} is far below the others: {reason}." for name, reason in preflight.slow.items()
    ]
    if preflight.left_out:
        jobs = format_count(len({*preflight.left_out}), "job")
        texts.append(f"Excluded from {jobs}: {', '.join(preflight.slow)}.")
    texts += [f"Job {job} runs on them nevertheless: {reason}." for job, reason in preflight.spared]
    count = len(preflight.nodes)
    return tuple(texts) or (f"The preflight found none of {count} nodes far below the others.",)


def warn_about_preflight(watched: TrackedCampaign, *, over: bool) -> tuple[str, ...]:
    """Return `describe_preflight`'s sentences if a node or the preflight has a problem."""
    preflight = read_preflight(watched)
    if preflight is None or (preflight.state == "done" and not preflight.slow):
        return ()
    return tuple(
        f"{watched.campaign.id}: {text}" for text in describe_preflight(watched, over=over)
    )
