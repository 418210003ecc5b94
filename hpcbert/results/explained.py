"""Explain a table's efficiency, in sentences with their numbers. Pure.

Each sentence is either a finding or names the run that would give one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpcbert.logs.arithmetic import median
from hpcbert.model import Shape
from hpcbert.results.metrics import model_named
from hpcbert.results.reduce import BASELINE
from hpcbert.results.words import device_of, plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcbert.model import Group, Row, SpeedupTable
    from hpcbert.results.metrics import Model

# Shares of the median below which a slow node, or a wait, is not reported.
_NODE, _WAIT = 0.01, 0.01
# How far a 95th percentile must be above the median to be reported, as a share.
_TAIL = 0.10
# Runs without a node that a statement about the node needs.
_WITHOUT = 2
_POSITIONS, _KINDS = 512, 2


@dataclass(frozen=True)
class Observation:
    """One sentence.

    Attributes:
        about: `node`, `nodes`, `all-reduce`, `slow-node`, `steps` or `input`.
        shape: The point that it is about; None for the table.
        text: The sentence.
        numbers: The numbers in it, by name.
        missing: Whether it names the run that would give the answer, instead of a finding.
    """

    about: str
    shape: Shape | None
    text: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    missing: bool = False


def explain(
    table: SpeedupTable,
    *,
    bandwidths: Mapping[Shape, float],
    waits: Mapping[Shape, Sequence[float]],
) -> tuple[Observation, ...]:
    """Explain the efficiency in a table's rows.

    Args:
        table: The table.
        bandwidths: Bus bandwidth of all-reduce as nccl-tests measured it, GB/s, by shape.
        waits: Shares of time that runs waited for input, by shape.
    """
    rows = [row for row in table.rows if row.median]
    if not rows:
        return (
            Observation("nodes", None, "No point has a number, so there is nothing to explain."),
        )
    findings = [_within(table, rows), *_between(table, rows)]
    for row in rows:
        findings += _all_reduce(table.group, row, rows, bandwidths)
        findings += _slow_node(row)
        findings += _steps(row)
    return (*findings, *_input(table.group, rows, waits))


def _run_of(group: Group, shape: Shape, *, fw: str = "") -> str:
    """Return the command that measures a shape."""
    text = (
        "" if fw else f" --precision {group.precision} --batch-size {group.batch_size_per_device}"
    )
    text += " --device cpu" if group.device == "cpu" and not fw else ""
    where = f"--nodes {shape.nodes} --gpus-per-node {shape.gpus_per_node}"
    return plain(f"hpcbert submit --fw {fw or group.framework} {where}{text}")


def _at(rows: Sequence[Row], shape: Shape) -> Row | None:
    return next((row for row in rows if row.shape == shape), None)


def _within(table: SpeedupTable, rows: Sequence[Row]) -> Observation:
    """Report the loss inside a node: the rate of one GPU compared with that of a whole node."""
    width = max(row.shape.gpus_per_node for row in rows)
    full = Shape(1, width)
    if width == 1:
        text = f"One {device_of(table.group)} per node: nothing is lost inside a node."
        return Observation("node", full, text)
    one, node = _at(rows, BASELINE), _at(rows, full)
    if one is None or node is None or not (one.median and node.median):
        lacking = BASELINE if one is None else full
        text = f"The loss inside a node is unknown without a run of {lacking}: "
        return Observation("node", full, text + _run_of(table.group, lacking), missing=True)
    ideal = width * one.median
    lost = 1 - node.median / ideal
    text = (
        f"Inside a node {lost:.1%} is lost: {full} gives {node.median:,.2f} samples/s, where "
        f"{width} times the {one.median:,.2f} of one {device_of(table.group)} are "
        f"{ideal:,.2f}."
    )
    return Observation("node", full, text, {"lost": lost, "ideal": ideal, "measured": node.median})


def _between(table: SpeedupTable, rows: Sequence[Row]) -> list[Observation]:
    """Report the loss between nodes: the rate of one node compared with that of several."""
    several = [row for row in rows if row.shape.nodes > 1]
    if not several:
        width = max(row.shape.gpus_per_node for row in rows)
        more = Shape(2, width)
        text = f"The loss between nodes is unknown without a run of {more}: "
        text += _run_of(table.group, more)
        return [Observation("nodes", more, text, missing=True)]
    findings = []
    for row in several:
        node = _at(rows, Shape(1, row.shape.gpus_per_node))
        if node is None or not node.median or not row.median:
            lacking = Shape(1, row.shape.gpus_per_node)
            text = f"The loss of {row.shape} between nodes is unknown without a run of {lacking}: "
            text += _run_of(table.group, lacking)
            findings.append(Observation("nodes", row.shape, text, missing=True))
            continue
        ideal = row.shape.nodes * node.median
        lost = 1 - row.median / ideal
        text = (
            f"Between nodes {row.shape} loses {lost:.1%}: it gives {row.median:,.2f} samples/s, "
            f"where {row.shape.nodes} times the {node.median:,.2f} of one node are {ideal:,.2f}."
        )
        numbers = {"lost": lost, "ideal": ideal, "measured": row.median}
        findings.append(Observation("nodes", row.shape, text, numbers))
    return findings


def parameters(model: Model) -> int:
    """Return the number of weights, and so of gradients, of a BERT with pre-training heads.

    Embeddings with their norm, blocks, pooler, both heads; the masked-LM head shares its matrix
    with the embeddings (google-research/bert@eedf571, modeling.py and run_pretraining.py).
    """
    hidden, wide = model.hidden, model.intermediate
    block = 4 * (hidden**2 + hidden) + 2 * hidden * wide + wide + hidden + 4 * hidden
    embeddings = (model.vocabulary + _POSITIONS + _KINDS) * hidden + 2 * hidden
    heads = (hidden**2 + hidden) + 2 * hidden + model.vocabulary + 2 * hidden + 2
    return embeddings + model.layers * block + (hidden**2 + hidden) + heads


def _accumulation(group: Group) -> int:
    words = group.variant.split(",")
    texts = (word.removeprefix("acc") for word in words if word.startswith("acc"))
    return next((int(word) for word in texts if word.isdecimal()), 1)


def _all_reduce(
    group: Group, row: Row, rows: Sequence[Row], bandwidths: Mapping[Shape, float]
) -> list[Observation]:
    """Compare the time of all-reduce alone with the time that a step lost."""
    shape = row.shape
    base = _at(rows, Shape(1, shape.gpus_per_node) if shape.nodes > 1 else BASELINE)
    model = model_named(group.model)
    by_nccl = shape.gpus > 1 and group.device != "cpu"
    if not by_nccl or base is None or model is None or not (row.median and base.median):
        return []
    speed = bandwidths.get(shape)
    if speed is None:
        if shape.nodes == 1:
            return []
        text = f"The time of the network of {shape} alone is unknown without nccl-tests: "
        text += _run_of(group, shape, fw="nccl-tests")
        return [Observation("all-reduce", shape, text, missing=True)]
    samples = group.batch_size_per_device * _accumulation(group)
    step = shape.gpus * samples / row.median
    lost = step - base.shape.gpus * samples / base.median
    size = parameters(model) * 4
    alone = 2 * (shape.gpus - 1) / shape.gpus * size / (speed * 1e9)
    numbers = {"bytes": float(size), "gb_per_s": speed, "alone_seconds": alone}
    numbers |= {"lost_seconds": lost, "step_seconds": step}
    half = (
        "" if group.precision in {"fp32", "tf32"} else " (half of it if they are sent in 16 bits)"
    )
    text = (
        f"All-reduce of {size / 1e6:,.0f} MB of fp32 gradients over {shape} takes "
        f"{alone * 1e3:,.1f} ms{half} at the {speed:,.1f} GB/s that nccl-tests measured; a step of "
        f"{step * 1e3:,.1f} ms lost {max(0.0, lost) * 1e3:,.1f} ms to {base.shape}: "
    )
    if lost <= 0:
        text += "all of it is hidden behind computation."
    elif lost <= alone:
        numbers["hidden"] = 1 - lost / alone
        text += f"{1 - lost / alone:.0%} of it is hidden behind computation."
    else:
        text += f"the network alone does not explain {(lost - alone) * 1e3:,.1f} ms of that."
    return [Observation("all-reduce", shape, text, numbers)]


def _slow_node(row: Row) -> list[Observation]:
    """Name a node that lowers the median: without its runs, the median would be higher."""
    runs = [(frozenset(run.nodes), run.throughput) for run in row.runs if run.valid]
    known = [(nodes, speed) for nodes, speed in runs if nodes and speed]
    if len(known) < _WITHOUT + 1 or not row.median:
        return []
    changes: dict[str, tuple[float, int]] = {}
    for node in sorted(set().union(*(nodes for nodes, _ in known))):
        without = [speed for nodes, speed in known if node not in nodes]
        if _WITHOUT <= len(without) < len(known):
            changes[node] = median(without), len(without)
    if not changes:
        text = (
            f"All runs of {row.shape} had the same nodes, so they can't be compared with each "
            "other (in a step all ranks wait for the slowest): repeats on other nodes would show "
            "it, as an array makes them (--repeats-in array)."
        )
        return (
            [Observation("slow-node", row.shape, text, missing=True)] if row.shape.nodes > 1 else []
        )
    node, (best, count) = max(changes.items(), key=lambda one: one[1][0])
    gain = best / row.median - 1
    numbers = {
        "median": row.median,
        "median_without": best,
        "gain": gain,
        "runs_without": float(count),
    }
    if gain < _NODE:
        text = (
            f"No node of {row.shape} stands out: without the runs of any one of them the median "
            f"rises by {max(0.0, gain):.1%} at most."
        )
    else:
        text = (
            f"Without the runs on {plain(node)} the median of {row.shape} would be {best:,.2f} "
            f"samples/s instead of {row.median:,.2f}, {gain:.1%} more ({count} of {len(known)} "
            "runs)."
        )
    return [Observation("slow-node", row.shape, text, numbers)]


def _steps(row: Row) -> list[Observation]:
    """Report whether some steps take much longer than most."""
    metrics = row.metrics
    if metrics is None or not metrics.step_seconds or not metrics.step_seconds_p95:
        return []
    tail = metrics.step_seconds_p95 / metrics.step_seconds - 1
    if tail < _TAIL:
        return []
    text = (
        f"Steps of {row.shape} are uneven: the median is {metrics.step_seconds * 1e3:,.1f} ms, one "
        f"in twenty takes {metrics.step_seconds_p95 * 1e3:,.1f} ms or more, {tail:.0%} longer."
    )
    return [Observation("steps", row.shape, text, {"tail": tail})]


def _input(
    group: Group, rows: Sequence[Row], waits: Mapping[Shape, Sequence[float]]
) -> list[Observation]:
    """Report the share of the time that programs waited for their input."""
    findings = []
    for row in rows:
        if shares := waits.get(row.shape, ()):
            share = median(list(shares))
            text = f"{row.shape} waited {share:.1%} of the time for its input"
            text += "." if share >= _WAIT else ": that does not matter."
            findings.append(Observation("input", row.shape, text, {"share": share}))
    if not findings:
        what = f"{group.framework}'s logs don't say how long they waited for input"
        text = f"{plain(what)}: compare with a run on synthetic data (--data synthetic)."
        return [Observation("input", None, text, missing=True)]
    return findings
